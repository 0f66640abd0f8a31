"""Steps of a pass that starts from a picture, and the switch to the refiner."""

from modules import shared


def setup_img2img_steps(p, steps=None):
    """A number that is asked for is done in full; else a part of the picture's."""
    if steps is None:
        return p.steps, int(min(p.denoising_strength, 0.999) * p.steps)
    return int(steps / min(p.denoising_strength, 0.999)), steps - 1


def apply_refiner(denoiser):
    """Load the other model and encode the prompts anew, before the callback of the evaluation (sd_samplers_common.py:196, 199)."""
    p = denoiser.p
    if p.refiner is None or denoiser.step / denoiser.steps < p.refiner_switch_at:
        return
    if getattr(shared.sd_model, "is_refiner", False):
        return
    p.refiner()
    shared.sd_model.is_refiner = True
    p.setup_conds()
