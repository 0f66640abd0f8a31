"""The configurations of a base model's modules: told by a diffusers folder or by the WebUI's sidecar, else by its shapes.

A folder or the checkpoint's sidecar `.yaml` also tells what shapes do not: the heads of attention, and what the model predicts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lib_lora.errors import FileFormatError
from lib_lora.families.table import Family, ObjectiveName
from lib_lora.formats.checkpoint import Checkpoint
from lib_lora.train.model_shapes import Config, Configs, configs_from_shapes

EMBEDDED = Path(__file__).parents[1] / "demo" / "model"
# What of a configuration a checkpoint's shapes contradict when it is another model's.
CHECKED = (
    *("block_out_channels", "cross_attention_dim", "num_layers", "joint_attention_dim"),
    *("hidden_size", "num_hidden_layers", "d_model"),
)
SIDECAR_PREDICTIONS: dict[str, ObjectiveName] = {"v": "v", "eps": "epsilon"}
SCHEDULER_PREDICTIONS: dict[str, ObjectiveName] = {"v_prediction": "v", "epsilon": "epsilon"}


@dataclass(frozen=True, slots=True)
class Description:
    """The configurations of a model's modules, what it is told to predict, and whether its noise schedule ends in noise alone."""

    configs: Configs
    objective: ObjectiveName | None = None
    zero_terminal: bool = False


def describe_model(checkpoint: Checkpoint, folder: Path | None = None) -> Description:
    """Return what is known of a model: from the folder asked for, else from what lies beside the file, else from its shapes.

    Beside the file: a folder `model`, or a sidecar of the same name ending in `.yaml`, as the WebUI reads it. The embedded model's
    own folder serves what was merged from it. A folder that is asked for must describe this checkpoint; one that merely lies there
    and does not is left alone.
    """
    derived = configs_from_shapes(checkpoint)
    if folder is not None:
        found = _read_folder(folder, checkpoint.family, derived)
        wrong = _differences(found.configs, derived)
        if wrong:
            raise FileFormatError(
                f"{folder} describes another model than {checkpoint.path.name}: {wrong}."
            )
        return found
    sidecar = checkpoint.path.with_suffix(".yaml")
    known_folders = [checkpoint.path.parent / "model"] + [EMBEDDED] * (not sidecar.is_file())
    for known in known_folders:
        if all(
            (known / name / "config.json").is_file()
            for name in _folders(checkpoint.family, derived).values()
        ):
            found = _read_folder(known, checkpoint.family, derived)
            if not _differences(found.configs, derived):
                return found
    return _with_sidecar(Description(derived), checkpoint.family, sidecar)


def _folders(family: Family, configs: Configs) -> dict[str, str]:
    """Return the folder of each component in a diffusers model."""
    return {c.name: c.diffusers for c in family.components if c.name in configs}


def _read_folder(folder: Path, family: Family, derived: Configs) -> Description:
    configs = {
        component: _read_json(folder / name / "config.json", f"{name}/config.json")
        for component, name in _folders(family, derived).items()
    }
    scheduler = folder / "scheduler" / "scheduler_config.json"
    told = _read_json(scheduler, "scheduler_config.json") if scheduler.is_file() else {}
    return Description(
        configs,
        SCHEDULER_PREDICTIONS.get(str(told.get("prediction_type"))),
        told.get("rescale_betas_zero_snr") is True,
    )


def _read_json(file: Path, name: str) -> Config:
    try:
        return json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"A diffusers configuration folder holds {name}; {file} cannot be read: {error}"
        ) from None


def _differences(configs: Configs, derived: Configs) -> str:
    """Name the numbers of a configuration that the checkpoint's shapes contradict; empty when they agree."""
    return ", ".join(
        f"{component} {key} is {configs[component].get(key)} there and {value} in the file"
        for component, told in derived.items()
        for key, value in told.items()
        if key in CHECKED and configs[component].get(key) != value
    )


class _Sidecar(NamedTuple):
    """What a sidecar tells. network: the settings of the denoiser; clip: where the text encoder's own configuration may lie."""

    network: Mapping[str, Any]
    clip: str | None
    objective: ObjectiveName | None


def _read_sidecar(file: Path) -> _Sidecar:
    try:
        params = _section(yaml.safe_load(file.read_text("utf-8"))["model"], "params")
        network = _section(_section(params, "unet_config", "network_config"), "params")
        clip = _section(_section(params, "cond_stage_config"), "params").get("version")
        scaling = str(
            _section(_section(_section(params, "denoiser_config"), "params"), "scaling_config")
        )
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{file} is no model configuration of the WebUI: {error!r}") from None
    told = SIDECAR_PREDICTIONS.get(str(params.get("parameterization")))
    return _Sidecar(network, clip, "v" if "VScaling" in scaling else told)


def _with_sidecar(found: Description, family: Family, file: Path) -> Description:
    """Take what a WebUI sidecar tells, when there is one: heads, and what the model predicts."""
    if not file.is_file() or family.denoiser is None:
        return found
    network, clip, objective = _read_sidecar(file)
    configs = {name: dict(config) for name, config in found.configs.items()}
    denoiser = configs[family.denoiser.component]
    if "num_heads" in network:
        denoiser["attention_head_dim"] = network["num_heads"]
    elif "num_head_channels" in network:
        widths = denoiser.get("block_out_channels", ())
        denoiser["attention_head_dim"] = [
            max(1, width // network["num_head_channels"]) for width in widths
        ]
    if clip and (Path(clip) / "config.json").is_file():
        told = _read_json(Path(clip) / "config.json", "config.json")
        configs["te1"]["num_attention_heads"] = told["num_attention_heads"]
    return replace(found, configs=configs, objective=objective)


def _section(place: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return the first section of these names that is there, an empty one when none is; raises TypeError when it is none."""
    found: Any = next((place[name] for name in names if place.get(name) is not None), {})
    if not isinstance(found, Mapping):
        raise TypeError(f"{names[0]} holds no settings")
    return found
