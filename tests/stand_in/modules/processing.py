"""Making a picture: prompts, networks, conditionings, the passes."""

import torch

from modules import extra_networks, shared
from modules.prompt_parser import SdConditioning
from modules.sd_samplers_kdiffusion import KDiffusionSampler
from modules.sd_samplers_timesteps import CompVisSampler


class StableDiffusionProcessing:
    """A picture to make. `draw` returns its latents, (batch, 4, 6, 6), one for each of `n_iter` batches."""

    cached_c = [None, None]  # noqa: RUF012
    cached_uc = [None, None]  # noqa: RUF012
    cached_hr_c = [None, None]  # noqa: RUF012
    is_hr_pass = False
    prompts = None
    cfg_scale = 3.0
    denoising_strength = 0.5
    hr_second_pass_steps = 0

    def __init__(self, *prompts, steps=4, sampler="Euler", n_iter=1, enable_hr=False, hr_prompt=""):
        self.all_prompts, self.steps, self.sampler_name = prompts, steps, sampler
        self.n_iter, self.enable_hr, self.hr_prompt = n_iter, enable_hr, hr_prompt
        self.comments, self.extra_generation_params = {}, {}

    def comment(self, text):
        self.comments[text] = 1

    def get_conds_with_caching(
        self, function, required_prompts, steps, caches, extra_network_data, hires_steps=None
    ):
        key = (required_prompts, steps, hires_steps, shared.sd_model, extra_network_data)
        for cache in caches:
            if cache[0] == key:
                return cache[1]
        caches[0][:] = key, function(shared.sd_model, required_prompts, steps, hires_steps, False)
        return caches[0][1]

    def setup_conds(self):
        negative = SdConditioning([""] * len(self.prompts), is_negative_prompt=True)
        self.uc = self._conds(negative, self.cached_uc, self.extra_network_data)
        self.c = self._conds(SdConditioning(self.prompts), self.cached_c, self.extra_network_data)

    def get_conds(self):
        return (self.hr_c if self.is_hr_pass else self.c), self.uc

    def draw(self):
        return [self._draw_batch() for _ in range(self.n_iter)]

    def _draw_batch(self):
        self.prompts = list(self.all_prompts)
        self.prompts, self.extra_network_data = extra_networks.parse_prompts(self.prompts)
        hires = [self.hr_prompt or prompt for prompt in self.all_prompts]
        self.hr_prompts, self.hr_extra_network_data = extra_networks.parse_prompts(hires)
        extra_networks.activate(self, self.extra_network_data)
        self.setup_conds()
        kind = CompVisSampler if self.sampler_name == "DDIM" else KDiffusionSampler
        noise = torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(0)).double()
        x = kind(self.sampler_name).sample(self, noise.repeat(len(self.prompts), 1, 1, 1))
        return self._hires(x, kind(self.sampler_name)) if self.enable_hr else x

    def _hires(self, x, sampler):
        self.is_hr_pass = True
        extra_networks.activate(self, self.hr_extra_network_data)
        data, caches = self.hr_extra_network_data, [self.cached_hr_c, self.cached_c]
        self.hr_c = self.get_conds_with_caching(
            _encode, SdConditioning(self.hr_prompts), self.steps, caches, data, self.steps
        )
        x = sampler.sample_img2img(self, x, self.steps)
        self.is_hr_pass = False
        return x

    def _conds(self, prompts, cache, data):
        return self.get_conds_with_caching(_encode, prompts, self.steps, [cache], data)


def _encode(sd_model, prompts, steps, hires_steps, use_old_scheduling):
    return sd_model.cond_stage_model(prompts)


def get_empty_cond(sd_model):
    """The host does this whenever it has loaded a model, even in the middle of a picture."""
    extra_networks.activate(StableDiffusionProcessing(), {})
    return sd_model.cond_stage_model([""])
