"""Steps of a pass that starts from a picture."""


def setup_img2img_steps(p, steps=None):
    return p.steps, int(min(p.denoising_strength, 0.999) * p.steps)
