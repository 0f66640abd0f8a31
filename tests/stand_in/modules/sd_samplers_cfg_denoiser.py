"""One evaluation: both conditionings go through the UNet as rows of one batch."""

import torch

from modules import script_callbacks, shared
from modules.sd_samplers_common import apply_refiner


class CFGDenoiser:
    def __init__(self, sampler):
        self.sampler, self.p, self.steps, self.init_latent, self.step = sampler, None, None, None, 0

    def __call__(self, x, level):
        apply_refiner(self)
        cond, uncond = self.p.get_conds()
        rows = torch.full((2 * len(x),), level, dtype=x.dtype)
        params = script_callbacks.cfg_denoiser_callback(self, torch.cat([x, x]), rows, cond, uncond)
        contexts = torch.cat([params.text_cond, params.text_uncond])
        out = shared.sd_model.apply_model(params.x, params.sigma, contexts)
        positive, negative = out.chunk(2)
        denoised = negative + self.p.cfg_scale * (positive - negative)
        script_callbacks.cfg_after_cfg_callback(denoised)
        self.step += 1
        return denoised
