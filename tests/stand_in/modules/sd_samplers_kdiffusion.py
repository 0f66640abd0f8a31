"""Samplers over sigmas: Euler, and Heun, which evaluates twice a step."""

from types import SimpleNamespace

import torch

from modules.sd_samplers_cfg_denoiser import CFGDenoiser
from modules.sd_samplers_common import setup_img2img_steps


class KDiffusionSampler:
    def __init__(self, name):
        self.config = SimpleNamespace(name=name)
        self.model_wrap_cfg = CFGDenoiser(self)

    def get_sigmas(self, p, steps):
        return torch.cat([torch.logspace(1, -1, steps, dtype=torch.float64), torch.zeros(1)])

    def sample(self, p, x):
        return self._walk(p, x, self.get_sigmas(p, p.steps), p.steps)

    def sample_img2img(self, p, x, steps=None):
        """Start from a picture: the end of a list."""
        asked, last = setup_img2img_steps(p, steps)
        sigmas = self.get_sigmas(p, asked)[asked - last - 1 :]
        self.model_wrap_cfg.init_latent = x
        return self._walk(p, x + sigmas[0], sigmas, last + 1)

    def _walk(self, p, x, sigmas, launched):
        denoise = self.model_wrap_cfg
        denoise.p, denoise.steps, denoise.step = p, launched, 0
        for here, there in zip(sigmas[:-1].tolist(), sigmas[1:].tolist(), strict=True):
            slope = (x - denoise(x, here)) / here
            if self.config.name == "Heun" and there > 0:
                ahead = x + slope * (there - here)
                slope = (slope + (ahead - denoise(ahead, there)) / there) / 2
            x = x + slope * (there - here)
        return x
