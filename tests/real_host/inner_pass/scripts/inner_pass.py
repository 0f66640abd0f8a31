"""An extension that repaints every picture with a prompt of its own, in a picture inside of the picture, as ADetailer does."""

import gradio as gr
from modules import processing, scripts, shared


class InnerPass(scripts.Script):
    def title(self):
        return "inner pass"

    def show(self, is_img2img):
        return scripts.AlwaysVisible

    def ui(self, is_img2img):
        return [gr.Textbox(value="", label="Inner prompt")]

    def postprocess_image(self, p, pp, prompt):
        if not prompt:
            return
        inner = processing.StableDiffusionProcessingImg2Img(
            sd_model=shared.sd_model,
            init_images=[pp.image],
            prompt=prompt,
            seed=p.seed,
            steps=p.steps,
            width=p.width,
            height=p.height,
            sampler_name=p.sampler_name,
            denoising_strength=0.5,
            do_not_save_samples=True,
            do_not_save_grid=True,
        )
        pp.image = processing.process_images(inner).images[0]
