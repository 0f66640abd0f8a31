"""The standalone host: a single-file checkpoint on diffusers, with networks scheduled through a `Session`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import diffusers
import torch
from PIL import Image
from torch import Tensor, nn

from lib_lora.apply.session import Row, Session
from lib_lora.errors import FileFormatError, LoraError, UsageError
from lib_lora.families.sd1 import SD1
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.host import (
    CheckpointInfo,
    Evaluation,
    Generated,
    GenerateRequest,
    HostFlags,
    HostInfo,
)
from lib_lora.hosts.reading import Uses, read_uses
from lib_lora.hosts.samplers import Walk, find_sampler, set_up
from lib_lora.schedule.curve import Moment, NetworkUse, strengths_at
from lib_lora.schedule.grammar import Parsed, parse_prompt
from lib_lora.train.base_model import live_modules, load_base_model

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"
SIDE = 8
SEEDS = 2**64


class DiffusersHost:
    """A base model in memory and the folders whose networks prompts can name. Implements `lib_lora.host.Host`.

    config: a diffusers configuration folder, where the checkpoint alone does not tell all numbers of the model. Nothing is ever
    downloaded. Raises FileFormatError for a checkpoint that is not supported.
    """

    def __init__(
        self, checkpoint: Path, network_dirs: Sequence[Path] = (), config: Path | None = None
    ) -> None:
        self._base = load_base_model(open_checkpoint(checkpoint), config)
        family = self._base.checkpoint.family
        if family.id != SD1.id or family.objective != "epsilon":
            raise FileFormatError(
                f"{checkpoint.name} is a {family.label} checkpoint that predicts {family.objective}: pictures are drawn here with"
                f" {SD1.label} that predicts epsilon alone."
            )
        self._checkpoints = [CheckpointInfo(checkpoint.stem, checkpoint, config=config)]
        self._network_dirs = tuple(network_dirs)
        self._added: list[Path] = []
        self._busy = False
        self._home = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._move(self._home)

    def info(self) -> HostInfo:
        """Tell who the host is."""
        return HostInfo("diffusers", diffusers.__version__, self._base.checkpoint.path.parent)

    def flags(self) -> HostFlags:
        """Tell the precision and the device; both are fixed here."""
        return HostFlags(half=False, half_vae=False, device=self._home.type)

    def layers(self) -> Mapping[str, nn.Module]:
        """Return the live modules of the loaded model by layer id."""
        return live_modules(self._base.modules(), self._base.checkpoint.layers)

    def networks(self) -> Sequence[Path]:
        """List the network files that prompts can name; of two with one name the first counts."""
        found = [
            file for folder in self._network_dirs for file in sorted(folder.rglob(f"*{SUFFIX}"))
        ]
        return [*self._added, *found]

    def network_folder(self) -> Path:
        """Tell where a new network file goes so that prompts can name it: the first folder, or beside the base model."""
        return self._network_dirs[0] if self._network_dirs else self._base.checkpoint.path.parent

    def checkpoints(self) -> Sequence[CheckpointInfo]:
        """List the base models, the loaded one first."""
        return tuple(self._checkpoints)

    def differing_layers(self) -> Sequence[str]:
        """Name no layer: nothing is ever merged into the loaded model."""
        return ()

    def busy(self) -> bool:
        """Tell whether a picture is being made."""
        return self._busy

    @property
    def native_size(self) -> int:
        """Return the side in pixels of the pictures that the model was trained on."""
        return self._base.denoiser.config.sample_size * self._base.checkpoint.family.latent.factor

    def generate(self, request: GenerateRequest) -> Generated:
        """Draw one picture."""
        return self.generate_batch([request])[0]

    @torch.no_grad()
    def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[Generated]:
        """Draw pictures that differ in words and seed alone, all at once; each has the noise of its own seed.

        Raises UsageError when the requests differ in anything else, LoRA tags included. A tag that is wrong or names no usable
        file is left out with a note.
        """
        parsed = [parse_prompt(request.prompt) for request in requests]
        first = _common(requests, parsed)
        walk = set_up(find_sampler(first.sampler), first.steps)
        uses, notes = self._load(parsed[0].uses)
        with self._drawing(), Session(uses) as session:
            session.open(self.layers())
            session.begin_pass(walk.clock)
            texts = [request.negative for request in requests] + [words.text for words in parsed]
            contexts = self._contexts(session, uses, walk, texts)
            latents, trace = self._denoise(session, uses, walk, contexts, requests)
            images = self._decode(latents)
        return [
            Generated(
                image, trace, (*map(str, words.errors), *notes, *self._cut_notes(request, words))
            )
            for image, request, words in zip(images, requests, parsed, strict=True)
        ]

    def release_gpu(self) -> None:
        """Take the loaded model off the device and keep it off until `restore_gpu`."""
        self._move(torch.device("cpu"))
        if self._home.type == "cuda":
            torch.cuda.empty_cache()

    def restore_gpu(self) -> None:
        """Give the device back; harmless when nothing was released."""
        self._move(self._home)

    def add_network(self, file: Path) -> None:
        """Make a new network file known to prompts; it goes before others of its name."""
        self._added.insert(0, file)

    def add_checkpoint(self, file: Path) -> None:
        """Make a new base model known."""
        self._checkpoints.append(CheckpointInfo(file.stem, file))

    def tell(self, sentence: str) -> None:
        """Show a sentence to the person."""
        log.warning(sentence)

    def _move(self, device: torch.device) -> None:
        self._device = device
        for module in self._base.modules().values():
            module.to(device)

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _load(self, wanted: Sequence[NetworkUse]) -> tuple[Uses, list[str]]:
        """Return the networks of a prompt with their uses, and a note for whatever is left out."""
        files = {file.stem: file for file in reversed(self.networks())}
        return read_uses(wanted, files, self._base.checkpoint)

    def _contexts(
        self, session: Session, uses: Uses, walk: Walk, texts: Sequence[str]
    ) -> dict[tuple[float, ...], Tensor]:
        """Return the context of the texts under every combination of text encoder strengths that the pass comes by."""
        contexts = {}
        for level in walk.levels:
            strengths = _te_strengths(uses, walk.clock.moment(level))
            if strengths not in contexts:
                session.encode(dict(enumerate(strengths)))
                contexts[strengths] = self._encode(texts)
        return contexts

    def _encode(self, texts: Sequence[str]) -> Tensor:
        """Return the context of each text, (texts, tokens, width)."""
        ids = self._base.tokenizer(
            list(texts), padding="max_length", truncation=True, return_tensors="pt"
        ).input_ids
        return self._base.text_encoders["te1"](ids.to(self._device)).last_hidden_state

    def _denoise(
        self,
        session: Session,
        uses: Uses,
        walk: Walk,
        contexts: Mapping[tuple[float, ...], Tensor],
        requests: Sequence[GenerateRequest],
    ) -> tuple[Tensor, list[Evaluation]]:
        """Walk from noise to latents, (pictures, channels, height, width); the strengths are set before every evaluation."""
        generators = [torch.Generator().manual_seed(request.seed) for request in requests]
        latents = self._noise(requests[0], generators) * walk.scheduler.init_noise_sigma
        options = {"generator": generators} if walk.sampler.noisy else {}
        rows, trace = _rows(uses, len(requests)), []
        for level, time in zip(walk.levels, walk.scheduler.timesteps, strict=True):
            moment = session.step(level, rows)
            strengths = strengths_at((use for use, _ in uses), moment)
            trace.append(Evaluation(moment.sigma, moment.step, strengths))
            scaled = walk.scheduler.scale_model_input(latents, time)
            context = contexts[_te_strengths(uses, moment)]
            noise = self._predict(scaled, time, context, requests[0].guidance)
            latents = walk.scheduler.step(noise, time, latents, **options).prev_sample
        return latents, trace

    def _noise(self, request: GenerateRequest, generators: Sequence[torch.Generator]) -> Tensor:
        """Return standard noise, drawn on the CPU so that every device gives the same."""
        latent = self._base.checkpoint.family.latent
        shape = (
            1,
            latent.channels,
            request.height // latent.factor,
            request.width // latent.factor,
        )
        drawn = [torch.randn(shape, generator=generator) for generator in generators]
        return torch.cat(drawn).to(self._device)

    def _predict(self, latents: Tensor, time: Tensor, context: Tensor, guidance: float) -> Tensor:
        """Return the noise that the UNet sees, moved from the negative towards the prompt (Ho and Salimans, 2022)."""
        noise = self._base.denoiser(torch.cat([latents, latents]), time, context).sample
        negative, positive = noise.chunk(2)
        return negative + guidance * (positive - negative)

    def _decode(self, latents: Tensor) -> list[Image.Image]:
        latent = self._base.checkpoint.family.latent
        pixels = self._base.vae.decode(latents / latent.scale + latent.shift).sample
        if not pixels.isfinite().all():
            raise LoraError(
                "The picture came out as no numbers: lower the strength of its LoRAs, or the guidance."
            )
        levels = ((pixels + 1) * 127.5).round().clamp(0, 255).byte()
        return [Image.fromarray(picture) for picture in levels.permute(0, 2, 3, 1).cpu().numpy()]

    def _cut_notes(self, request: GenerateRequest, words: Parsed) -> list[str]:
        """Return a note for each text that the text encoder does not read to its end."""
        limit = self._base.tokenizer.model_max_length
        counts = {
            text: len(self._base.tokenizer(text).input_ids)
            for text in (words.text, request.negative)
        }
        return [
            f"The text encoder reads {limit} tokens; the last {count - limit} of {text!r} are left out."
            for text, count in counts.items()
            if count > limit
        ]


def _common(requests: Sequence[GenerateRequest], parsed: Sequence[Parsed]) -> GenerateRequest:
    """Return the first request, with which the others agree in all but words and seed."""
    first, *others = requests
    for request, words in zip(others, parsed[1:], strict=True):
        if _settings(request) != _settings(first) or words.uses != parsed[0].uses:
            raise UsageError("The pictures of one batch may differ in words and seed alone.")
    for seed in (request.seed for request in requests):
        if not 0 <= seed < SEEDS:
            raise UsageError(f"Seed {seed}: whole numbers from 0 to {SEEDS - 1} are accepted.")
    if min(first.width, first.height) < SIDE or first.width % SIDE or first.height % SIDE:
        raise UsageError(f"{first.width}x{first.height} pixels: sides must be multiples of {SIDE}.")
    return first


def _settings(request: GenerateRequest) -> tuple[object, ...]:
    return (request.steps, request.sampler, request.guidance, request.width, request.height)


def _rows(uses: Uses, pictures: int) -> list[Row]:
    """Return what each row of the UNet's batch computes: those of the negative prompts come first."""
    if not any("neg" in use.curves for use, _ in uses):
        return [Row()]
    return [Row(negative=True)] * pictures + [Row()] * pictures


def _te_strengths(uses: Uses, moment: Moment) -> tuple[float, ...]:
    return tuple(use.strength("te", moment) for use, _ in uses)
