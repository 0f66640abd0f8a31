"""The real WebUI as `tests/host_contract.py` wants it: what `webui_host.Host` is on the stand-in."""

import traceback

from modules import processing, script_callbacks, sd_models, sd_samplers, shared

SETTINGS = {
    "width": 64,
    "height": 64,
    "cfg_scale": 3.0,
    "seed": 1,
    "hr_scale": 1.5,
    "hr_upscaler": "Latent",
    "denoising_strength": 0.5,
    "do_not_save_samples": True,
    "do_not_save_grid": True,
}


class Host:
    """Callbacks and hooks that a behaviour's test registers are gone after `forget`."""

    networks = ("one", "two")

    def __init__(self):
        self.model = shared.sd_model
        self._callbacks = {name: list(held) for name, held in script_callbacks.callback_map.items()}
        self._broken = []

    def forget(self):
        for name, held in self._callbacks.items():
            script_callbacks.callback_map[name][:] = held
        script_callbacks.ordered_callbacks_map.clear()
        for handle in self._broken:
            handle.remove()

    def picture(self, *prompts, steps=4, sampler="Euler", **settings):
        return processing.StableDiffusionProcessingTxt2Img(
            sd_model=self.model,
            prompt=list(prompts),
            negative_prompt=[""] * len(prompts),
            batch_size=len(prompts),
            steps=steps,
            sampler_name=sampler,
            **SETTINGS,
            **settings,
        )

    def make(self, picture):
        return processing.process_images(picture)

    def draw(self, *prompts, **settings):
        return self.make(self.picture(*prompts, **settings))

    def sampler(self, name):
        return sd_samplers.create_sampler(name, self.model)

    def break_unet(self):
        def hook(module, inputs):
            raise ValueError("out of memory")

        middle = self.model.model.diffusion_model.middle_block
        self._broken.append(middle.register_forward_pre_hook(hook))

    def encode_nothing(self):
        return sd_models.get_empty_cond(self.model)


def kept(test):
    """Run the test of one behaviour; returns what it raised, nothing where the WebUI keeps it."""
    host = Host()
    try:
        test(host)
    except Exception:
        return traceback.format_exc()
    finally:
        host.forget()
    return ""
