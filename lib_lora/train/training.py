"""A whole training: from a configuration to a network file, stage by stage, or onward from where it was left."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import torch

from lib_lora.errors import NoSpaceError, UsageError
from lib_lora.families.table import Family
from lib_lora.formats.checkpoint import Checkpoint, open_checkpoint
from lib_lora.formats.metadata import BaseFacts, TrainedFacts, base_facts, trained_metadata
from lib_lora.formats.network_file import check_writable
from lib_lora.train.attach import Attached, attach, selected_layers
from lib_lora.train.base_model import live_modules
from lib_lora.train.captions import caption_tags
from lib_lora.train.config import TrainConfig
from lib_lora.train.config_learning import NetworkConfig
from lib_lora.train.dataset import Picture
from lib_lora.train.disk import Disk
from lib_lora.train.loop import Ending, Loop, Watcher
from lib_lora.train.optim import Optimizer, flatten
from lib_lora.train.precision import make_scaler
from lib_lora.train.prepare import LeftError, prepare
from lib_lora.train.state import State, read_state
from lib_lora.train.text import WORDS

OPTIMIZERS = {
    "adamw": "torch.optim.AdamW",
    "adamw8bit": "bitsandbytes.optim.AdamW8bit",
    "prodigy": "prodigyopt.Prodigy",
    "lion": "lion_pytorch.Lion",
}
LYCORIS_MODULE = "lycoris.kohya"
LYCORIS_ALGORITHMS = {"lora": "locon", "oft": "diag-oft"}  # where it does not call a type as we do


@dataclass(frozen=True, slots=True)
class Result:
    """How a training ended: the network file when it is done, the steps taken, the validation losses by step, and why if it did not
    end as it was asked to."""

    ending: Ending
    step: int
    file: Path | None
    validations: Mapping[int, float]
    message: str = ""


def train(config: TrainConfig, folder: Path, created: datetime | None, watcher: Watcher) -> Result:
    """Train as configured, onward from the newest state in `folder`/state when there is one.

    folder: the run's, for saves and states; created: the date that the file is to tell, `None` for none. Raises LoraError and its
    kinds.
    """
    device = pick_device(config.run.device)
    watcher.stage("checkpoint")
    checkpoint = open_checkpoint(config.model.base)
    state = read_state(folder / "state") or State(0, {}, {})
    try:
        prepared = prepare(config, checkpoint, device, watcher)
    except LeftError as left:
        return Result(left.ending, state.step, None, state.validations)
    checkpoint = prepared.checkpoint
    config = _with_dialect(config, checkpoint.family)
    layers = selected_layers(checkpoint.family, checkpoint.layers, config.network)
    modules = live_modules(prepared.modules, layers)
    attached = attach(config.network, layers, modules, config.run.seed)
    fresh = {
        id_: {s: t.detach() for s, t in parts.items()} for id_, parts in attached.tensors.items()
    }
    check_writable(fresh, checkpoint.layers, checkpoint.family.components, config.saving.dialect)
    loop = Loop(prepared.material, make_optimizer(config, attached), config)
    if state.step:
        loop.resume(state.step, state.tensors, state.validations)
    base = base_facts(checkpoint.path)
    made_of = _made_of(base, prepared.pictures)
    _tell_changes(state, made_of, watcher)
    metadata = _metadata(config, checkpoint, base, prepared.pictures, created)
    disk = Disk(config, folder, checkpoint, attached, loop, metadata, made_of, prepared.preview)
    disk.prepare(watcher)
    watcher.stage("training", state.step, config.schedule.steps)
    try:
        ending = loop.run(watcher, disk)
        if ending == "done":
            disk.finish(watcher)
    except (NoSpaceError, OSError) as error:
        kept = disk.retreat()
        said, remedy = f"The system refused: {error}.", "put that right"
        if isinstance(error, NoSpaceError):
            said, remedy = str(error), "make room"
        message = f"{said} Paused after step {kept}: {remedy}, then resume."
        return Result("paused", kept, None, loop.validations, message)
    file = config.saving.out if ending == "done" else None
    return Result(ending, loop.done, file, loop.validations)


def _with_dialect(config: TrainConfig, family: Family) -> TrainConfig:
    """Return the configuration with the key names that the family's networks have where it leaves the choice."""
    if config.saving.dialect != "auto":
        return config
    return replace(config, saving=replace(config.saving, dialect=family.dialect))


def pick_device(asked: str) -> torch.device:
    """Return the device that a configuration asks for; raises UsageError when there is none such."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise UsageError("run.device is cuda, but torch sees no CUDA device. Accepted: auto, cpu.")
    available = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(available if asked == "auto" else asked)


def make_optimizer(config: TrainConfig, attached: Attached) -> Optimizer:
    """Return the optimizer of an attached network: one group for each component that is trained."""
    rates = config.optimizer
    components = dict.fromkeys(id_.partition(".")[0] for id_ in attached.tensors)
    groups = [
        flatten(
            name,
            rates.text_encoder_rate if name.startswith("te") else rates.unet_rate,
            attached.trainable(name),
        )
        for name in components
    ]
    scaler = make_scaler(config.run.precision, groups[0].flat.device)
    return Optimizer(groups, config.optimizer, config.schedule, scaler)


def _made_of(base: BaseFacts, pictures: Iterable[Picture]) -> dict[str, str]:
    """Return a hash of the base model and one of the pictures: of their names, sizes, captions and repeats."""
    told = [
        (*each.file.parts[-2:], each.file.stat().st_size, each.caption, each.repeats)
        for each in pictures
    ]
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    return {"the base model": base.sha256, "the pictures or their captions": digest}


def _tell_changes(state: State, made_of: Mapping[str, str], watcher: Watcher) -> None:
    for name, digest in made_of.items():
        if state.made_of.get(name, digest) != digest:
            watcher.note(
                f"Changed since step {state.step}: {name}. It goes on with what is there now."
            )


def _metadata(
    config: TrainConfig,
    checkpoint: Checkpoint,
    base: BaseFacts,
    pictures: Iterable[Picture],
    created: datetime | None,
) -> Callable[[int], dict[str, str]]:
    """Return what the file tells of itself after so many steps."""
    pictures = tuple(pictures)

    def after(step: int) -> dict[str, str]:
        facts = TrainedFacts(
            name=config.saving.out.stem,
            rank=config.network.rank,
            alpha=config.network.alpha,
            base=base,
            resolution=(config.data.size, config.data.size),
            steps=step,
            images=len(pictures),
            created=created,
            trigger=config.data.caption,
            tags=_tags(pictures),
            settings=_settings(config),
        )
        return trained_metadata(checkpoint.family, facts)

    return after


def _tags(pictures: Iterable[Picture]) -> dict[str, dict[str, int]]:
    """Count in how many pictures of each folder a caption part, between commas, stands."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for picture in pictures:
        counts[picture.file.parent.name].update(caption_tags(picture.caption))
    return {folder: dict(found) for folder, found in counts.items()}


def _settings(config: TrainConfig) -> dict[str, str | int | float | bool]:
    """Name the settings in kohya's words."""
    optimizer, schedule = config.optimizer, config.schedule
    return {
        "unet_lr": optimizer.unet_rate if config.network.unet else "None",
        "text_encoder_lr": optimizer.text_encoder_rate if config.network.text_encoder else "None",
        "optimizer": f"{OPTIMIZERS[optimizer.type]}(weight_decay={optimizer.weight_decay:g})",
        "lr_scheduler": schedule.decay,
        "lr_warmup_steps": schedule.warmup,
        "max_train_steps": schedule.steps,
        "total_batch_size": schedule.batch,
        "gradient_accumulation_steps": schedule.accumulate,
        "max_grad_norm": optimizer.clip,
        "min_snr_gamma": config.loss.min_snr_gamma or "None",
        "noise_offset": config.loss.noise_offset or "None",
        "zero_terminal_snr": config.loss.zero_terminal_snr,
        "clip_skip": config.model.clip_skip,
        "enable_bucket": config.data.bucket_step > 0,
        "bucket_no_upscale": not config.data.upscale,
        "caption_dropout_rate": config.data.caption_dropout,
        "shuffle_caption": config.data.caption_orders > 0,
        "keep_tokens": config.data.keep_tags,
        "max_token_length": WORDS * config.data.caption_parts,
        "gradient_checkpointing": config.run.checkpointing,
        "fp8_base": config.run.storage == "fp8",
        "mixed_precision": "no" if config.run.precision == "fp32" else config.run.precision,
        "seed": config.run.seed,
        **_network_settings(config.network),
    }


def _network_settings(config: NetworkConfig) -> dict[str, str]:
    """Name what else there is to tell of the network: kohya's own knows plain LoRA, LyCORIS' every type, in its words."""
    convolutions = {"conv_dim": str(config.conv_rank), "conv_alpha": f"{config.conv_alpha:g}"}
    told = convolutions if config.conv_rank else {}
    chosen = {
        "dora_wd": config.dora,
        "rs_lora": config.rank_stabilized,
        "use_tucker": config.tucker,
        "factor": config.factor if config.type == "lokr" else False,
    }
    lycoris = {name: str(value) for name, value in chosen.items() if value is not False}
    if config.type == "lora" and not lycoris:
        return {"network_args": json.dumps(told)}
    return {
        "network_module": LYCORIS_MODULE,
        "network_args": json.dumps(
            {"algo": LYCORIS_ALGORITHMS.get(config.type, config.type), **told, **lycoris}
        ),
    }
