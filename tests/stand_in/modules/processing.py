"""Making a picture: prompts, networks, conditionings, the passes."""

import torch

from modules import extra_networks, shared
from modules.prompt_parser import SdConditioning
from modules.sd_hijack import model_hijack
from modules.sd_samplers import create_sampler


class StableDiffusionProcessing:
    """A picture to make. `draw` returns its latents, (batch, 4, 6, 6), one for each of `n_iter` batches.

    refiner, hr_model: called to load another model, in mid-pass and before the hires pass; init_images: start from a picture.
    """

    cached_c = [None, None]  # noqa: RUF012
    cached_uc = [None, None]  # noqa: RUF012
    cached_hr_c = [None, None]  # noqa: RUF012
    cached_hr_uc = [None, None]  # noqa: RUF012
    is_hr_pass = False
    prompts = negative_prompts = None
    cfg_scale = 3.0
    denoising_strength = 0.5
    hr_second_pass_steps = 0
    hr_sampler_name = None
    refiner_switch_at = 0.5
    hr_c = hr_uc = sampler = None

    def __init__(
        self,
        *prompts,
        steps=4,
        sampler="Euler",
        n_iter=1,
        enable_hr=False,
        hr_prompt="",
        negative_prompt="",
        refiner=None,
        hr_model=None,
        init_images=None,
    ):
        self.all_prompts, self.steps, self.sampler_name = list(prompts), steps, sampler
        self.n_iter, self.enable_hr, self.hr_prompt = n_iter, enable_hr, hr_prompt
        self.refiner, self.hr_model, self.init_images = refiner, hr_model, init_images
        self.negative_prompts = [negative_prompt] * len(prompts)
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
        if self.is_hr_pass:  # the refiner asks
            self.hr_c = None
            self.calculate_hr_conds()
            return
        data = self.extra_network_data
        self.uc = self._conds(self._negative(), [self.cached_uc], data)
        self.c = self._conds(SdConditioning(self.prompts), [self.cached_c], data)
        self.hr_c = self.hr_uc = None
        # processing.py:1525: the text encoder may be gone when the hires pass begins
        if not self.enable_hr or self.hr_model is not None:
            return
        if shared.opts.hires_fix_use_firstpass_conds:
            self.calculate_hr_conds()
        elif getattr(shared.sd_model, "lowvram", False):
            extra_networks.activate(self, self.hr_extra_network_data)
            self.calculate_hr_conds()
            extra_networks.activate(self, self.extra_network_data)

    def calculate_hr_conds(self):
        if self.hr_c is not None:
            return
        data, steps = self.hr_extra_network_data, self.hr_second_pass_steps or self.steps
        negative, positive = [self.cached_hr_uc, self.cached_uc], [self.cached_hr_c, self.cached_c]
        self.hr_uc = self._conds(self._negative(), negative, data, steps)
        self.hr_c = self._conds(SdConditioning(self.hr_prompts), positive, data, steps)

    def get_conds(self):
        return (self.hr_c, self.hr_uc) if self.is_hr_pass else (self.c, self.uc)

    def draw(self):
        self._chosen = shared.sd_model
        model_hijack.comments.clear()  # processing.py:896
        return [self._draw_batch() for _ in range(self.n_iter)]

    def _draw_batch(self):
        shared.sd_model = self._chosen  # a refiner may have left its own (processing.py:941)
        self.prompts = list(self.all_prompts)
        self.prompts, self.extra_network_data = extra_networks.parse_prompts(self.prompts)
        hires = [self.hr_prompt or prompt for prompt in self.all_prompts]
        self.hr_prompts, self.hr_extra_network_data = extra_networks.parse_prompts(hires)
        extra_networks.activate(self, self.extra_network_data)
        self.setup_conds()
        for comment in model_hijack.comments:
            self.comment(comment)
        self.sampler = create_sampler(self.sampler_name, shared.sd_model)
        noise = torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(0)).double()
        x = noise.repeat(len(self.prompts), 1, 1, 1)
        if self.init_images:
            return self.sampler.sample_img2img(self, x)
        x = self.sampler.sample(self, x)
        return self._hires(x) if self.enable_hr else x

    def _hires(self, x):
        if self.hr_model is not None:
            self.hr_model()  # processing.py:1360
        self.is_hr_pass = True
        name = self.hr_sampler_name or self.sampler_name
        self.sampler = create_sampler(name, shared.sd_model)
        extra_networks.activate(self, self.hr_extra_network_data)
        self.calculate_hr_conds()
        x = self.sampler.sample_img2img(self, x, self.hr_second_pass_steps or self.steps)
        self.is_hr_pass = False
        return x

    def _negative(self):
        return SdConditioning(self.negative_prompts, is_negative_prompt=True)

    def _conds(self, prompts, caches, data, hires_steps=None):
        return self.get_conds_with_caching(_encode, prompts, self.steps, caches, data, hires_steps)


def _encode(sd_model, prompts, steps, hires_steps, use_old_scheduling):
    return sd_model.cond_stage_model(prompts)


def get_empty_cond(sd_model):
    """The host does this whenever it has loaded a model, even in the middle of a picture."""
    extra_networks.activate(StableDiffusionProcessing(), {})
    return sd_model.cond_stage_model([""])
