"""A whole training: from a configuration to a network file, stage by stage, or onward from where it was left."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch
from torch import Tensor, nn

from lib_lora.errors import NoSpaceError, UsageError
from lib_lora.formats.checkpoint import Checkpoint, open_checkpoint
from lib_lora.formats.metadata import TrainedFacts, base_facts, trained_metadata
from lib_lora.train.attach import Attached, attach, selected_layers
from lib_lora.train.base_model import BaseModel, live_modules, load_base_model
from lib_lora.train.buckets import Buckets
from lib_lora.train.cache import Captions, Latents, encode_captions, encode_pictures, tokenize
from lib_lora.train.config import NetworkConfig, TrainConfig
from lib_lora.train.dataset import Picture, find_pictures
from lib_lora.train.disk import Disk
from lib_lora.train.loop import Ending, Loop, Material, Watcher
from lib_lora.train.objective import Objective, objective_of
from lib_lora.train.optim import Optimizer, flatten
from lib_lora.train.preview import Preview
from lib_lora.train.state import State, read_state

COMPUTE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
NAMED_PROBLEMS = 10
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


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the steps compute with, the modules that are trained, the pictures that were readable, and what draws samples."""

    material: Material
    modules: Mapping[str, nn.Module]
    pictures: tuple[Picture, ...]
    preview: Preview | None


class Left(Exception):  # noqa: N818 - an ending, not an error
    """Someone asked to stop or to pause before the first step."""

    def __init__(self, ending: Ending) -> None:
        self.ending = ending


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
        prepared = _prepare(config, checkpoint, device, watcher)
    except Left as left:
        return Result(left.ending, state.step, None, state.validations)
    layers = selected_layers(checkpoint.family, checkpoint.layers, config.network)
    modules = live_modules(prepared.modules, layers)
    attached = attach(config.network, layers, modules, config.run.seed)
    loop = Loop(prepared.material, make_optimizer(config, attached), config)
    if state.step:
        loop.resume(state.step, state.tensors, state.validations)
    metadata = _metadata(config, checkpoint, prepared.pictures, created)
    disk = Disk(config, folder, checkpoint, attached, loop, metadata, prepared.preview)
    disk.prepare(watcher)
    watcher.stage("training", state.step, config.schedule.steps)
    try:
        ending = loop.run(watcher, disk)
        if ending == "done":
            disk.finish(watcher)
    except NoSpaceError as error:
        kept = disk.retreat()
        message = f"{error} Paused after step {kept}: make room, then resume."
        return Result("paused", kept, None, loop.validations, message)
    file = config.saving.out if ending == "done" else None
    return Result(ending, loop.done, file, loop.validations)


def pick_device(asked: str) -> torch.device:
    """Return the device that a configuration asks for; raises UsageError when there is none such."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise UsageError("run.device is cuda, but torch sees no CUDA device. Accepted: auto, cpu.")
    available = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(available if asked == "auto" else asked)


def make_optimizer(config: TrainConfig, attached: Attached) -> Optimizer:
    """Return the optimizer of an attached network: one group for each component that is trained."""
    peaks = {"unet": config.optimizer.unet_rate, "te1": config.optimizer.text_encoder_rate}
    tensors = {name: attached.trainable(name) for name in peaks}
    groups = [flatten(name, peaks[name], found) for name, found in tensors.items() if found]
    return Optimizer(groups, config.optimizer, config.schedule)


def _prepare(
    config: TrainConfig, checkpoint: Checkpoint, device: torch.device, watcher: Watcher
) -> Prepared:
    """Load the base model and encode the data; what the steps do not need is let go of on the way out."""
    dataset = find_pictures(config.data.folder, config.data.caption)
    watcher.stage("base model")
    base = load_base_model(checkpoint, config.model.config, COMPUTE_DTYPES[config.run.precision])

    def progress(done: int) -> None:
        watcher.stage("pictures", done, len(dataset.pictures))
        _leave_if_asked(watcher)

    progress(0)
    latent, vae = checkpoint.family.latent, base.vae.to(device)
    buckets = Buckets(config.data.size, config.data.bucket_step, config.data.upscale)
    latents = encode_pictures(vae, latent, dataset, buckets, progress)
    watcher.stage("captions")
    captions = tokenize(base.tokenizer, [picture.caption for picture in latents.pictures])
    _tell(latents, captions, watcher)
    trained: dict[str, nn.Module] = {"unet": base.unet.to(device)}
    text_encoder = base.text_encoder.to(device)
    if config.network.text_encoder:
        trained["te1"] = text_encoder
    context = _context(text_encoder, captions.ids.to(device), config.network.text_encoder)

    def denoise(noisy: Tensor, times: Tensor, pictures: Tensor, rows: Tensor) -> Tensor:
        return base.unet(noisy, times, encoder_hidden_states=context(rows)).sample

    material = Material(
        denoise=denoise,
        latents=[value.float() for value in latents.values],
        captions=captions.row_of.to(device),
        buckets=latents.buckets(),
        objective=objective_of(checkpoint.family.objective, config.loss.zero_terminal_snr),
        gamma=config.loss.min_snr_gamma,
        compute=base.unet.dtype,
    )
    preview = _preview(config, base, material.objective, device)
    return Prepared(material, trained, latents.pictures, preview)


def _context(text_encoder: nn.Module, ids: Tensor, trained: bool) -> Callable[[Tensor], Tensor]:
    """Return what gives the embeddings of rows of token ids: encoded anew each time where the text encoder is trained."""
    if not trained:
        return encode_captions(text_encoder, ids).__getitem__

    def context(rows: Tensor) -> Tensor:
        return text_encoder(ids[rows]).last_hidden_state

    return context


def _preview(
    config: TrainConfig, base: BaseModel, objective: Objective, device: torch.device
) -> Preview | None:
    """Return what draws the samples that are asked for; it keeps the autoencoder, off the device."""
    texts = config.samples.texts
    if len(texts) == 1:
        return None
    words = tokenize(base.tokenizer, texts)
    context = _context(base.text_encoder, words.ids.to(device), config.network.text_encoder)
    row_of = words.row_of.to(device)

    def predict(noisy: Tensor, times: Tensor, rows: Tensor) -> Tensor:
        return base.unet(noisy, times, encoder_hidden_states=context(row_of[rows])).sample

    return Preview(
        config=config.samples,
        size=config.samples.size or config.data.size,
        objective=objective,
        latent=base.checkpoint.family.latent,
        predict=predict,
        vae=base.vae.cpu(),
        device=device,
        compute=base.unet.dtype,
    )


def _leave_if_asked(watcher: Watcher) -> None:
    while asked := watcher.asked():
        if asked == "save":
            watcher.answer("There is nothing to save yet.")
            continue
        watcher.answer("Left before the first step.")
        raise Left("paused" if asked == "pause" else "stopped")


def _tell(latents: Latents, captions: Captions, watcher: Watcher) -> None:
    """Say what will be trained on, and name what is not as it seems."""
    with_caption = sum(bool(picture.caption) for picture in latents.pictures)
    watcher.note(f"{len(latents.pictures)} pictures, {with_caption} of them with a caption.")
    for problem in latents.problems[:NAMED_PROBLEMS]:
        watcher.note(f"Left out: {problem}.")
    if len(latents.problems) > NAMED_PROBLEMS:
        watcher.note(f"Left out besides: {len(latents.problems) - NAMED_PROBLEMS} more files.")
    for text in captions.cut[:NAMED_PROBLEMS]:
        watcher.note(f"Longer than 75 tokens, its end is not trained: {text[:60]!r}...")


def _metadata(
    config: TrainConfig,
    checkpoint: Checkpoint,
    pictures: Iterable[Picture],
    created: datetime | None,
) -> Callable[[int], dict[str, str]]:
    """Return what the file tells of itself after so many steps; the base model's hashes are taken once."""
    base, pictures = base_facts(checkpoint.path), tuple(pictures)

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
        parts = {part.strip() for part in picture.caption.split(",")} - {""}
        counts[picture.file.parent.name].update(parts)
    return {folder: dict(found) for folder, found in counts.items()}


def _settings(config: TrainConfig) -> dict[str, str | int | float | bool]:
    """Name the settings in kohya's words."""
    optimizer, schedule = config.optimizer, config.schedule
    return {
        "unet_lr": optimizer.unet_rate if config.network.unet else "None",
        "text_encoder_lr": optimizer.text_encoder_rate if config.network.text_encoder else "None",
        "optimizer": f"torch.optim.AdamW(weight_decay={optimizer.weight_decay:g})",
        "lr_scheduler": schedule.decay,
        "lr_warmup_steps": schedule.warmup,
        "max_train_steps": schedule.steps,
        "total_batch_size": schedule.batch,
        "gradient_accumulation_steps": schedule.accumulate,
        "max_grad_norm": optimizer.clip,
        "min_snr_gamma": config.loss.min_snr_gamma or "None",
        "caption_dropout_rate": config.data.caption_dropout,
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
