"""What the pages ask of the AUTOMATIC1111 WebUI v1.10.1: its files, its switches, its loaded model and its GPU."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from modules import launch_utils, sd_hijack, sd_models, sd_models_config, sd_vae, shared
from modules.paths_internal import data_path
from torch import Tensor, nn

from lib_lora.errors import UsageError
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.stream import TensorReader
from lib_lora.host import CheckpointInfo, Generated, GenerateRequest, HostFlags, HostInfo
from lib_lora.hosts.a1111 import REFUSE_DURING_RUN
from lib_lora.hosts.a1111_gpu import HAND_OVER
from lib_lora.hosts.a1111_model import live_modules

log = logging.getLogger(__name__)

COMPARED = 5
_MEMORY = ("lowvram", "medvram", "medvram_sdxl")
_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


class A1111Host:
    """The WebUI of this process. Implements `lib_lora.host.Host`; no question to it makes the WebUI load a model."""

    def info(self) -> HostInfo:
        """Tell who the host is."""
        restricted = bool(shared.cmd_opts.disable_extension_access)
        return HostInfo("AUTOMATIC1111 WebUI", launch_utils.git_tag(), Path(data_path), restricted)

    def flags(self) -> HostFlags:
        """Tell the switches that the WebUI was started with, and the attention that it has chosen."""
        options = shared.cmd_opts
        memory = next((name for name in _MEMORY if getattr(options, name)), "normal")
        # Who asks for either has a device that computes badly in half, whatever its weights are kept in.
        full = options.precision == "full" or options.upcast_sampling
        optimizer = sd_hijack.current_optimizer
        return HostFlags(
            memory=memory.replace("_", "-"),
            half=not (options.no_half or full),
            half_vae=not (options.no_half or options.no_half_vae),
            attention="none" if optimizer is None else optimizer.name,
            device=torch.device(shared.device).type,
        )

    def layers(self) -> Mapping[str, nn.Module]:
        """Return the live modules of the loaded model by layer id; none when no model is loaded."""
        model = sd_models.model_data.sd_model
        if model is None:
            return {}
        return live_modules(model, open_checkpoint(model.sd_checkpoint_info.filename).layers)

    def networks(self) -> Sequence[Path]:
        """List the network files that prompts can name."""
        import networks

        return [Path(disk.filename) for disk in networks.available_networks.values()]

    def network_folder(self) -> Path:
        """Tell where network files lie that prompts can name."""
        return Path(shared.cmd_opts.lora_dir)

    def checkpoints(self) -> Sequence[CheckpointInfo]:
        """List the base models, first the loaded one or else the one that would be loaded."""
        infos = list(sd_models.checkpoints_list.values())
        model = sd_models.model_data.sd_model
        if model is not None:
            first = model.sd_checkpoint_info
        elif infos:
            first = sd_models.select_checkpoint()
        else:
            return ()
        others = [info for info in infos if info.filename != first.filename]
        return [_described(info) for info in (first, *others)]

    def differing_layers(self) -> Sequence[str]:
        """Name those of five layers of the loaded model that differ from its file, as after a merge that nobody has saved.

        Where the WebUI has merged LoRA into a weight its backup is compared. Raises FileFormatError for a file that cannot be read.
        """
        model = sd_models.model_data.sd_model
        if model is None:
            return ()
        checkpoint = open_checkpoint(model.sd_checkpoint_info.filename)
        modules = live_modules(model, checkpoint.layers)
        step = max(1, (len(modules) - 1) // (COMPARED - 1))
        with TensorReader(checkpoint.path) as reader:
            return [
                layer_id
                for layer_id in list(modules)[::step][:COMPARED]
                if not _holds(
                    modules[layer_id], reader.read(checkpoint.layers[layer_id].weight.key)
                )
            ]

    def busy(self) -> bool:
        """Tell whether a picture is being made."""
        return shared.state.job_count > 0

    def generate(self, request: GenerateRequest) -> Generated:
        """Raise UsageError: pictures are made on the WebUI's own pages."""
        raise UsageError("Pictures are made on the WebUI's own pages.")

    def release_gpu(self) -> None:
        """Take the loaded model off the device until `restore_gpu`; waits for the picture that is being made."""
        HAND_OVER.release(refuse=shared.opts.data.get(REFUSE_DURING_RUN, False))

    def restore_gpu(self) -> None:
        """Give the device back and load the model again; harmless when nothing was released."""
        HAND_OVER.restore()

    def add_network(self, file: Path) -> None:
        """Make a new network file known to prompts; one from elsewhere is copied into the WebUI's folder.

        Raises UsageError when another file has its name there.
        """
        import networks

        folder = self.network_folder().absolute()
        if folder not in file.absolute().parents:
            target = folder / file.name
            if target.exists():
                raise UsageError(f"{folder} holds a {file.name!r} already.")
            shutil.copyfile(file, target)
        networks.update_available_networks_by_names([file.stem])

    def add_checkpoint(self, file: Path) -> None:
        """Make a new base model in one of the WebUI's folders known."""
        sd_models.list_models()

    def tell(self, sentence: str) -> None:
        """Show a sentence on the WebUI's console."""
        log.warning(sentence)


def _described(info: Any) -> CheckpointInfo:
    vae = sd_vae.resolve_vae(info.filename).vae
    config = sd_models_config.find_checkpoint_config_near_filename(info)
    return CheckpointInfo(
        info.name_for_extra, Path(info.filename), vae and Path(vae), config and Path(config)
    )


def _holds(module: nn.Module, weight: Tensor) -> bool:
    """Tell whether a module has this weight of a file, as the WebUI rounds it."""
    backup = getattr(module, "network_weights_backup", None)
    own: Any = module.weight if backup is None else backup
    if own.dtype in _EIGHT_BITS:
        weight = weight.half()
    return torch.equal(own.detach().cpu().float(), weight.to(own.dtype).float())
