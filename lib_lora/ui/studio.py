"""The standalone host behind the pages: one model in memory, opened when it is first needed and kept until another is asked for."""

from __future__ import annotations

import gc
import logging
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from lib_lora.errors import LoraError, UsageError
from lib_lora.host import (
    CheckpointInfo,
    Generated,
    GenerateRequest,
    Host,
    HostFlags,
    HostInfo,
)
from lib_lora.ui.request import existing_file, typed_path

log = logging.getLogger(__name__)

OpenHost = Callable[[Path, Sequence[Path]], Host]
"""Loads a checkpoint with the folders of networks that prompts can name."""
REFUSED = "A training has the GPU; pictures can be drawn again when it is over or paused."


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the page begins with. size: that of the base model's pictures; fixed_files: the visitor may name no other files than these."""

    base: Path
    lora_dir: Path
    size: int | None
    samplers: Sequence[str]
    fixed_files: bool = False


class Studio:
    """The model of one server. Implements `lib_lora.host.Host`; no question to it but for a picture loads the model."""

    def __init__(self, open_host: OpenHost, defaults: Defaults) -> None:
        self.defaults = defaults
        self._open_host = open_host
        self._opened: tuple[Path, Path] | None = None
        self._host: Host | None = None
        self._lock = threading.Lock()
        self._lent = False
        self._device = "cuda" if torch.cuda.is_available() else "cpu"

    def draw(self, base: str, lora_dir: str, request: GenerateRequest) -> Generated:
        """Draw a picture, with another model first where another is asked for; raises LoraError."""
        wanted = self._files(base, lora_dir)
        with self._lock:
            if self._lent:
                raise LoraError(REFUSED)
            if self._host is None or self._opened != wanted:
                self._host = None  # two models may not fit in memory
                self._host = self._open_host(wanted[0], (wanted[1],))
                self._opened = wanted
            return self._host.generate(request)

    def network_names(self, lora_dir: str) -> list[str]:
        """Return the names that prompts can use, sorted; none for a folder that is not there."""
        _, folder = self._files("", lora_dir)
        return sorted(file.stem for file in folder.rglob("*.safetensors"))

    def info(self) -> HostInfo:
        """Tell who the host is."""
        folder = self.defaults.lora_dir.absolute()
        return HostInfo("LoRA Loom", "", folder, restricted=self.defaults.fixed_files)

    def flags(self) -> HostFlags:
        """Tell the precision and the device; both are fixed here."""
        return HostFlags(half=False, half_vae=False, device=self._device)

    def layers(self) -> Mapping[str, nn.Module]:
        """Return the live modules of the model by layer id; none before the first picture."""
        return self._host.layers() if self._host is not None else {}

    def networks(self) -> Sequence[Path]:
        """List the network files that prompts can name."""
        return sorted(self.network_folder().rglob("*.safetensors"))

    def network_folder(self) -> Path:
        """Tell where a new network file goes so that prompts can name it."""
        return self.defaults.lora_dir.absolute()

    def checkpoints(self) -> Sequence[CheckpointInfo]:
        """List the one base model that the server was started with."""
        base = self.defaults.base.absolute()
        return (CheckpointInfo(base.stem, base),)

    def differing_layers(self) -> Sequence[str]:
        """Name no layer: nothing is ever merged into the loaded model."""
        return ()

    def busy(self) -> bool:
        """Tell whether a picture is being made."""
        return self._lock.locked()

    def generate(self, request: GenerateRequest) -> Generated:
        """Draw one picture with the model that the server was started with."""
        return self.draw("", "", request)

    def release_gpu(self) -> None:
        """Let go of the model, after the picture that is being made; on a GPU no picture is drawn until `restore_gpu`."""
        with self._lock:
            self._host, self._opened = None, None
            self._lent = self._device == "cuda"
            gc.collect()
            if self._lent:
                torch.cuda.empty_cache()

    def restore_gpu(self) -> None:
        """Let pictures be drawn again; the model comes back with the first of them."""
        with self._lock:
            self._lent = False

    def add_network(self, file: Path) -> None:
        """Make a new network file known to prompts; one from elsewhere is copied. The model is read anew for the next picture."""
        target = self.network_folder() / file.name
        if file.absolute().parent != target.parent:
            if target.exists():
                raise UsageError(f"{target.parent} holds a {file.name!r} already.")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)

    def add_checkpoint(self, file: Path) -> None:
        """Do nothing: any checkpoint can be named on the page."""

    def tell(self, sentence: str) -> None:
        """Show a sentence on the console."""
        log.warning(sentence)

    def _files(self, base: str, lora_dir: str) -> tuple[Path, Path]:
        if self.defaults.fixed_files:
            return self.defaults.base, self.defaults.lora_dir
        file = existing_file(base) if base.strip() else self.defaults.base
        if file is None:
            raise UsageError(f"There is no checkpoint {base.strip()[:200]!r}.")
        try:
            folder = typed_path(lora_dir) if lora_dir.strip() else self.defaults.lora_dir
            folder.resolve().is_dir()  # refuses what no path can be
        except (RuntimeError, ValueError, OSError):
            raise UsageError(f"{lora_dir.strip()[:80]!r} cannot be read as a path.") from None
        return file, folder
