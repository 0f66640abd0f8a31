"""Samplers over timesteps: DDIM, which never evaluates the smallest."""

from types import SimpleNamespace

import torch

from modules.sd_samplers_cfg_denoiser import CFGDenoiser


class CompVisSampler:
    def __init__(self, name):
        self.config = SimpleNamespace(name=name)
        self.model_wrap_cfg = CFGDenoiser(self)

    def get_timesteps(self, p, steps):
        return torch.arange(1, 1000, 1000 // steps)

    def sample(self, p, x):
        timesteps, denoise = self.get_timesteps(p, p.steps), self.model_wrap_cfg
        denoise.p, denoise.steps, denoise.step = p, p.steps, 0
        for timestep in reversed(timesteps[1:].tolist()):
            x = x + 0.1 * denoise(x, timestep)
        return x
