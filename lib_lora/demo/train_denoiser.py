"""Train the text encoder and the UNet of the embedded base model on the latents of drawn scenes.

The text encoder first learns to name the parts of a caption from its last token, so that the UNet meets words that already mean
something; both are then trained together on the epsilon objective (Ho et al., 2020) with min-SNR weights (Hang et al., 2023),
one caption in ten left empty for classifier-free guidance. What is kept is the exponential moving average of the weights.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from PIL import Image
from torch.nn import functional
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from lib_lora.demo import scenes, train_vae
from lib_lora.demo.measure import measured_colour, measured_shape
from lib_lora.demo.train_vae import CONFIG_DIR, SCALING_FACTOR, to_tensor

log = logging.getLogger(__name__)

POOL = 16_000
TEXT_STEPS = 600
BATCH = 32
# Cycles of (steps, peak rate of the UNet, share of the steps over which the rate falls to zero at the end).
CYCLES = ((2950, 1e-3, 0.3), (2800, 6e-4, 0.6))
TEXT_SHARE = 0.2
WARM_UP = 50
EMA_DECAY = 0.999
MIN_SNR_GAMMA = 5.0
EMPTY_CAPTION_SHARE = 0.1
STATE_EVERY, LOOK_EVERY = 250, 500

# The parts of a scene that the text encoder learns to name, with their words.
PARTS: dict[str, list[str | None]] = {
    "shape": list(scenes.SHAPES),
    "colour": list(scenes.COLOURS),
    "background": list(scenes.BACKGROUNDS),
    "size": list(scenes.SIZES),
    "position": list(scenes.POSITIONS),
}


@dataclass(frozen=True, slots=True)
class Pool:
    """The training pictures: scaled latents (n, 4, 8, 8) and token ids of each template (n, templates, 77)."""

    latents: torch.Tensor
    tokens: torch.Tensor


def tokenizer() -> CLIPTokenizer:
    """Load the bundled CLIP tokenizer."""
    return CLIPTokenizer.from_pretrained(str(CONFIG_DIR / "tokenizer"), local_files_only=True)


def tokenize(texts: list[str], clip: CLIPTokenizer) -> torch.Tensor:
    """Return token ids (n, 77), padded and cut."""
    encoded = clip(texts, padding="max_length", truncation=True, max_length=77, return_tensors="pt")
    return encoded["input_ids"]


@torch.no_grad()
def make_pool(vae: AutoencoderKL, folder: Path, seed: int = 1) -> Pool:
    """Draw the training scenes and encode them once; a finished pool is only loaded."""
    finished = folder / "pool.pt"
    if finished.exists():
        return Pool(**torch.load(finished, weights_only=True))
    rng = random.Random(seed)
    clip = tokenizer()
    latents, tokens = [], []
    for start in range(0, POOL, 100):
        drawn = [scenes.random_training_scene(rng) for _ in range(100)]
        pictures = to_tensor([scenes.draw(scene, rng) for scene in drawn])
        latents.append(vae.encode(pictures).latent_dist.mean * SCALING_FACTOR)
        texts = [text for scene in drawn for text in scenes.captions(scene)]
        tokens.append(tokenize(texts, clip).view(100, len(scenes.TEMPLATES), 77).int())
        if start % 5000 == 0:
            log.info("pool %d of %d", start, POOL)
    pool = Pool(torch.cat(latents), torch.cat(tokens))
    torch.save({"latents": pool.latents, "tokens": pool.tokens}, finished)
    return pool


def pretrain_text_encoder(folder: Path, seed: int = 2) -> CLIPTextModel:
    """Teach a fresh text encoder to name the parts of captions; a finished one is only loaded."""
    torch.manual_seed(seed)
    encoder = CLIPTextModel(CLIPTextConfig.from_pretrained(str(CONFIG_DIR / "text_encoder")))
    finished = folder / "text.pt"
    if finished.exists():
        encoder.load_state_dict(torch.load(finished, weights_only=True))
        return encoder
    rng = random.Random(seed)
    clip = tokenizer()
    width = encoder.config.hidden_size
    heads = torch.nn.ModuleDict({p: torch.nn.Linear(width, len(w)) for p, w in PARTS.items()})
    optimizer = torch.optim.AdamW([*encoder.parameters(), *heads.parameters()], lr=1e-3)
    for step in range(TEXT_STEPS):
        drawn = [scenes.random_training_scene(rng) for _ in range(64)]
        # The encoder is causal: nothing after the end token can change what the end token says.
        ids = tokenize([scenes.caption(scene, rng) for scene in drawn], clip)[:, :24]
        pooled = encoder(ids).pooler_output
        loss = torch.zeros(())
        for part, words in PARTS.items():
            wanted = torch.tensor([words.index(getattr(scene, part)) for scene in drawn])
            loss = loss + functional.cross_entropy(heads[part](pooled), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 100 == 0:
            log.info("text step %d of %d, loss %.4f", step + 1, TEXT_STEPS, loss.item())
    torch.save(encoder.state_dict(), finished)
    return encoder


def noise_levels() -> torch.Tensor:
    """Return the cumulative products of alpha for SD1's 1,000 timesteps."""
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    return (1 - betas).cumprod(0).float()


class Training:
    """The joint training of UNet and text encoder, its moving average and its state on disk."""

    def __init__(self, pool: Pool, encoder: CLIPTextModel) -> None:
        torch.manual_seed(3)
        config = UNet2DConditionModel.load_config(str(CONFIG_DIR / "unet"))
        self.unet = UNet2DConditionModel.from_config(config)
        self.encoder = encoder
        self.pool, self.step = pool, 0
        self.steps = sum(steps for steps, _, _ in CYCLES)
        self.empty = tokenize([""], tokenizer())[0]
        self.alphas = noise_levels()
        self.optimizer = torch.optim.AdamW(
            [
                {"params": list(self.unet.parameters()), "share": 1.0},
                {"params": list(self.encoder.parameters()), "share": TEXT_SHARE},
            ],
            betas=(0.9, 0.99),
            weight_decay=0.0,
            fused=True,
        )
        self.trained = [*self.unet.parameters(), *self.encoder.parameters()]
        self.average = [p.detach().clone() for p in self.trained]

    def run(self, state_file: Path) -> None:
        """Train to the last step, continuing from `state_file` when it exists and saving to it on the way."""
        if state_file.exists():
            self._load(state_file)
        smoothed = None
        while self.step < self.steps:
            loss = self._train_step()
            smoothed = loss if smoothed is None else 0.99 * smoothed + 0.01 * loss
            self.step += 1
            if self.step % 50 == 0:
                log.info("unet step %d of %d, loss %.4f", self.step, self.steps, smoothed)
            if self.step % STATE_EVERY == 0 or self.step == self.steps:
                self._save(state_file)
            if self.step % LOOK_EVERY == 0 or self.step == self.steps:
                self._look(state_file.parent)

    def _rate(self) -> float:
        """Return the UNet's rate: in each cycle it rises over the warm-up, stays, and falls to zero at the end."""
        place = self.step
        for steps, peak, falling in CYCLES:
            if place < steps:
                left = (steps - place) / (falling * steps)
                return peak * min(1.0, (place + 1) / WARM_UP, left)
            place -= steps
        return 0.0

    def _train_step(self) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = group["share"] * self._rate()
        draw = torch.Generator().manual_seed(1_000_003 + self.step)
        rows = torch.randint(len(self.pool.latents), (BATCH,), generator=draw)
        template = torch.randint(self.pool.tokens.shape[1], (BATCH,), generator=draw)
        latents, ids = self.pool.latents[rows], self.pool.tokens[rows, template].long()
        empty = torch.rand(BATCH, generator=draw) < EMPTY_CAPTION_SHARE
        ids = torch.where(empty[:, None], self.empty, ids)
        # Every second sample comes from the noisier part, where colour, shape and place are decided.
        times = torch.randint(1000, (BATCH,), generator=draw)
        times[::2] = torch.randint(300, 1000, (BATCH // 2,), generator=draw)
        noise = torch.randn(latents.shape, generator=draw)
        alpha = self.alphas[times][:, None, None, None]
        noisy = alpha.sqrt() * latents + (1 - alpha).sqrt() * noise
        context = self.encoder(ids).last_hidden_state
        error = (self.unet(noisy, times, context).sample - noise).square().mean(dim=(1, 2, 3))
        snr = (self.alphas / (1 - self.alphas))[times]
        loss = (error * snr.clamp(max=MIN_SNR_GAMMA) / snr).mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.trained, 1 - decay)
        return loss.item()

    def averaged(self) -> tuple[UNet2DConditionModel, CLIPTextModel]:
        """Return copies of both models that hold the averaged weights."""
        unet = UNet2DConditionModel.from_config(self.unet.config).eval()
        encoder = CLIPTextModel(self.encoder.config).eval()
        copies = [*unet.parameters(), *encoder.parameters()]
        with torch.no_grad():
            for copy, value in zip(copies, self.average, strict=True):
                copy.copy_(value)
        return unet, encoder

    def _save(self, state_file: Path) -> None:
        part = state_file.with_suffix(".part")
        state = {
            "step": self.step,
            "unet": self.unet.state_dict(),
            "encoder": self.encoder.state_dict(),
            "average": self.average,
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, part)
        part.replace(state_file)

    def _load(self, state_file: Path) -> None:
        state = torch.load(state_file, weights_only=True)
        self.step = state["step"]
        self.unet.load_state_dict(state["unet"])
        self.encoder.load_state_dict(state["encoder"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.average = state["average"]

    def _look(self, folder: Path) -> None:
        """Log how many of 48 validation prompts show the asked colour and shape, and keep the pictures."""
        rng = random.Random(self.step)
        asked = [scenes.random_scene(rng) for _ in range(48)]
        vae = train_vae.train(folder)
        unet, encoder = self.averaged()
        pictures = generate(unet, encoder, vae, [scenes.caption(s, rng) for s in asked])
        colours = sum(measured_colour(p) == s.colour for p, s in zip(pictures, asked, strict=True))
        shapes = sum(measured_shape(p) == s.shape for p, s in zip(pictures, asked, strict=True))
        log.info("look at step %d: colour %d, shape %d of 48", self.step, colours, shapes)
        sheet = Image.new("RGB", (12 * 64, 4 * 64))
        for k, picture in enumerate(pictures):
            sheet.paste(picture, (k % 12 * 64, k // 12 * 64))
        sheet.save(folder / f"look-{self.step:06d}.png")


@torch.no_grad()
def generate(
    unet: UNet2DConditionModel,
    encoder: CLIPTextModel,
    vae: AutoencoderKL,
    prompts: list[str],
    guidance: float = 4.0,
    steps: int = 20,
    seed: int = 0,
) -> list[Image.Image]:
    """Draw one 64 x 64 picture per prompt with DDIM (Song et al., 2021) and classifier-free guidance."""
    scheduler = DDIMScheduler.from_pretrained(str(CONFIG_DIR / "scheduler"))
    scheduler.set_timesteps(steps)
    clip = tokenizer()
    context = encoder(tokenize([*prompts, ""], clip)).last_hidden_state
    count = len(prompts)
    context = torch.cat([context[-1:].expand(count, -1, -1), context[:-1]])
    latents = torch.randn((count, 4, 8, 8), generator=torch.Generator().manual_seed(seed))
    for time in scheduler.timesteps:
        without, with_prompt = unet(torch.cat([latents, latents]), time, context).sample.chunk(2)
        guided = without + guidance * (with_prompt - without)
        latents = scheduler.step(guided, time, latents).prev_sample
    pixels = vae.decode(latents / SCALING_FACTOR).sample.clamp(-1, 1)
    bytes_ = ((pixels + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
    return [Image.fromarray(picture) for picture in bytes_]
