"""What a training computes with: the base model loaded, the pictures and captions encoded once, and the material of the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lib_lora.errors import UsageError
from lib_lora.families.table import Latent
from lib_lora.formats.checkpoint import Checkpoint
from lib_lora.train.attach import trained_components
from lib_lora.train.base_model import BaseModel, load_base_model
from lib_lora.train.buckets import Buckets, Fit, Size
from lib_lora.train.cache import Latents, encode_pictures
from lib_lora.train.caption_orders import in_orders
from lib_lora.train.config import TrainConfig
from lib_lora.train.config_inputs import DataConfig
from lib_lora.train.dataset import Picture, find_pictures
from lib_lora.train.denoise import CALLS, context_width, settled, size_numbers
from lib_lora.train.loop import Ending, Material, Watcher
from lib_lora.train.objective import objective_of
from lib_lora.train.precision import DTYPES
from lib_lora.train.preview import Preview
from lib_lora.train.savings import compute_blocks_again, prepare_denoiser, prepare_vae
from lib_lora.train.text import (
    WORDS,
    Captions,
    Encoded,
    encode,
    encode_all,
    put_together,
    tokenize,
)

NAMED_PROBLEMS = 10


Predict = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(noisy latents, times, caption rows on the CPU, sizes) -> prediction."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the steps compute with, the checkpoint as it turned out to be, the modules that are trained, the readable pictures.

    preview: what draws samples, where they are asked for.
    """

    material: Material
    checkpoint: Checkpoint
    modules: Mapping[str, nn.Module]
    pictures: tuple[Picture, ...]
    preview: Preview | None


class LeftError(Exception):
    """Someone asked to stop or to pause before the first step; `ending` says which."""

    def __init__(self, ending: Ending) -> None:
        self.ending = ending


def prepare(
    config: TrainConfig, checkpoint: Checkpoint, device: torch.device, watcher: Watcher
) -> Prepared:
    """Load the base model and encode the data; what the steps do not need is let go of on the way out.

    Raises LoraError and its kinds, and LeftError when someone does not want to wait for the end of it.
    """
    buckets = _buckets(config.data, checkpoint.family.latent)
    dataset = find_pictures(config.data.folder, config.data.caption)
    watcher.stage("base model")
    model, dtype = config.model, DTYPES[config.run.precision]
    base = load_base_model(checkpoint, model.config, dtype, model.vae, model.prediction)

    def progress(done: int) -> None:
        watcher.stage("pictures", done, len(dataset.pictures))
        _leave_if_asked(watcher)

    progress(0)
    latent, vae = base.checkpoint.family.latent, prepare_vae(base.vae, config.run).to(device)
    latents = encode_pictures(vae, latent, dataset, buckets, progress)
    vae.cpu()
    watcher.stage("captions")
    data = config.data
    heard = [
        in_orders(picture.caption, data.caption_orders, data.keep_tags, config.run.seed)
        for picture in latents.pictures
    ]
    captions = tokenize(base, [text for texts in heard for text in texts], data.caption_parts)
    _tell(latents, captions, data.caption_parts, watcher)
    components = trained_components(config.network, base.checkpoint.family)
    text = read_captions(config, base, captions, components, device)
    # Encoded apart: in one batch with the captions, prompts could move the last bits of these.
    prompts = tokenize(base, config.samples.texts, data.caption_parts)
    prompt_text = read_captions(config, base, prompts, components, device)
    prepare_denoiser(base.denoiser, config.run, device)
    base.denoiser.to(device)
    base = settled(base)
    _tell_model(config, base, watcher)
    predict = _predictor(base, text)
    zero_terminal = base.zero_terminal or config.loss.zero_terminal_snr
    material = Material(
        denoise=_denoise(predict, latents, device),
        latents=[value.float() for value in latents.values],
        captions=captions.rows.view(len(heard), -1),
        buckets=latents.buckets(),
        objective=objective_of(base.checkpoint.family.objective, zero_terminal),
        gamma=config.loss.min_snr_gamma,
        device=device,
        compute=dtype,
    )
    modules = {name: module for name, module in base.modules().items() if name in components}
    if config.run.checkpointing:
        stepped = {n: m for n, m in base.modules().items() if n in components or m is base.denoiser}
        compute_blocks_again(stepped)
    preview = _preview(config, base, _predictor(base, prompt_text), prompts.rows, material)
    return Prepared(material, base.checkpoint, modules, latents.pictures, preview)


def _buckets(data: DataConfig, latent: Latent) -> Buckets:
    """Return the sizes to train at; raises UsageError for what the model cannot divide."""
    granule = latent.factor * latent.patch
    for name, value in (("size", data.size), ("bucket_step", data.bucket_step)):
        if value % granule:
            raise UsageError(
                f"data.{name} must be divisible by {granule} for this model; found {value}."
            )
    return Buckets(data.size, data.bucket_step, data.upscale)


def read_captions(
    config: TrainConfig,
    base: BaseModel,
    captions: Captions,
    trained: Sequence[str],
    device: torch.device,
) -> Callable[[Tensor], Encoded]:
    """Return what gives the text of caption rows; encoders that are not trained have spoken once and are let go of."""
    family, skip = base.checkpoint.family, config.model.clip_skip
    width = context_width(base.denoiser)
    there = [each for each in family.text_encoders if each.component in captions.ids]
    live = [each for each in there if each.component in trained]
    modules = {each.component: base.text_encoders[each.component].to(device) for each in live}
    ids = {name: captions.ids[name] for name in modules}
    place = torch.device("cpu") if config.run.text_device == "cpu" else device
    kept = {}
    for each in there:
        if each not in live:
            module = base.text_encoders[each.component].to(place)
            if place.type == "cpu" and config.run.precision == "fp16":
                module.to(torch.bfloat16)  # a CPU may not multiply in fp16, and T5 overflows it
            kept[each.component] = encode_all(module, each, captions, skip)
            module.cpu()
    zeros = family.denoiser is not None and family.denoiser.zeros_when_dropped

    def text(rows: Tensor) -> Encoded:
        parts = captions.parts_of(rows)
        count, flat = parts.shape[1], parts.flatten()
        said = {name: encoded.rows(flat).joined(count).on(device) for name, encoded in kept.items()}
        for each in live:
            name = each.component
            heard = ids[name][flat].to(device)
            said[name] = encode(modules[name], each, heard, skip).joined(count)
        told = put_together(family, said, width)
        return told.zeroed((rows == 0).to(device)) if zeros else told

    return text


def _predictor(base: BaseModel, text: Callable[[Tensor], Encoded]) -> Predict:
    """Return what asks the denoiser; it holds on to nothing else of the base model."""
    kind, module = base.checkpoint.family.denoiser, base.denoiser
    assert kind is not None  # the base model would not have been loaded
    call = CALLS[kind.kind]

    def predict(noisy: Tensor, times: Tensor, rows: Tensor, sizes: Tensor) -> Tensor:
        return call(module, noisy, times, text(rows), sizes)

    return predict


def _denoise(
    predict: Predict, latents: Latents, device: torch.device
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return what predicts for pictures of the dataset."""
    sizes = torch.tensor([size_numbers(fit) for fit in latents.fits]).float().to(device)

    def denoise(noisy: Tensor, times: Tensor, pictures: Tensor, rows: Tensor) -> Tensor:
        return predict(noisy, times, rows, sizes[pictures])

    return denoise


def _preview(
    config: TrainConfig, base: BaseModel, predict: Predict, rows: Tensor, material: Material
) -> Preview | None:
    """Return what draws samples, where there are prompts; an empty negative prompt is a dropped caption.

    rows: the caption rows of the negative prompt and the prompts.
    """
    if len(rows) < 2:
        return None
    device = material.device
    size = config.samples.size or config.data.size
    square = Fit(Size(size, size), Size(size, size), 1.0)
    sizes = torch.tensor([size_numbers(square)]).float().to(device)
    kept = rows if config.samples.negative else torch.cat([torch.zeros_like(rows[:1]), rows[1:]])

    def draw(noisy: Tensor, times: Tensor, which: Tensor) -> Tensor:
        return predict(noisy, times, kept[which], sizes.expand(len(which), -1))

    return Preview(
        config=config.samples,
        size=size,
        objective=material.objective,
        latent=base.checkpoint.family.latent,
        predict=draw,
        vae=base.vae,
        device=device,
        compute=material.compute,
    )


def _leave_if_asked(watcher: Watcher) -> None:
    while asked := watcher.asked():
        if asked == "save":
            watcher.answer("There is nothing to save yet.")
            continue
        watcher.answer("Left before the first step.")
        raise LeftError("paused" if asked == "pause" else "stopped")


def _tell_model(config: TrainConfig, base: BaseModel, watcher: Watcher) -> None:
    """Say what the base model is, and what of the configuration does not concern it."""
    family = base.checkpoint.family
    watcher.note(f"{family.label}, which predicts {IN_WORDS[family.objective]}.")
    for note in base.notes:
        watcher.note(note)
    if config.model.clip_skip > 1 and not any(each.skips for each in family.text_encoders):
        watcher.note(f"Clip skip has no effect: {family.label} reads one layer of its text alone.")


def _tell(latents: Latents, captions: Captions, parts: int, watcher: Watcher) -> None:
    """Say what will be trained on, and name what is not as it seems."""
    with_caption = sum(bool(picture.caption) for picture in latents.pictures)
    watcher.note(f"{len(latents.pictures)} pictures, {with_caption} of them with a caption.")
    for problem in latents.problems[:NAMED_PROBLEMS]:
        watcher.note(f"Left out: {problem}.")
    if len(latents.problems) > NAMED_PROBLEMS:
        watcher.note(f"Left out besides: {len(latents.problems) - NAMED_PROBLEMS} more files.")
    for text in captions.cut[:NAMED_PROBLEMS]:
        watcher.note(
            f"Longer than {WORDS * parts} tokens, its end is not trained: {text[:60]!r}..."
        )


IN_WORDS = {"epsilon": "the noise", "v": "v", "flow": "the way from the picture to the noise"}
"""What a denoiser predicts, in a person's words."""
