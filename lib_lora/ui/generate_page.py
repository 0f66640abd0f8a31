"""The page that draws pictures with scheduled LoRA."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from functools import partial

import gradio as gr
from PIL.Image import Image

from lib_lora.errors import LoraError
from lib_lora.host import GenerateRequest
from lib_lora.ui.strength_plot import strength_plot
from lib_lora.ui.studio import Studio

log = logging.getLogger(__name__)

PROMPT = "txt2img_prompt"  # as in the WebUI, so that "try it" finds it
USUAL_SIZE = 512
# Checked here and not by the fields, whose own words for a number outside do not tell which field it stands in.
LIMITS: Mapping[str, tuple[int, int]] = {
    "Steps": (1, 1000),
    "Guidance": (1, 100),
    "Width": (8, 2048),
    "Height": (8, 2048),
    "Seed": (0, 2**53 - 1),  # up to here a browser's whole numbers have no gaps
}
RAMP = "<lora:{}:0@0,1@1>"
HINT = (
    "A LoRA tag takes a number or keyframes: `<lora:NAME:0.8>`, `<lora:NAME:0@0,1@1>` (from 0 to 1),"
    " `<lora:NAME:1@0,1@0.5|step,0@0.5>` (on for half the pass), `<lora:NAME:1:stop=15>`."
)

# The fonts of the system: nothing is fetched from anywhere. Small pictures are shown pixel by pixel.
THEME = gr.themes.Soft(
    primary_hue="violet",
    neutral_hue="slate",
    font=["system-ui", "sans-serif"],
    font_mono=["ui-monospace", "monospace"],
)
CSS = """
.gradio-container { max-width: 1320px !important; margin: 0 auto !important; }
#picture img { image-rendering: pixelated; width: 100%; object-fit: contain; }
svg.strengths { width: 100%; height: auto; font-size: 12px; }
svg.strengths text { fill: currentColor; opacity: 0.85; }
"""

Shown = tuple[Image | None, str, str]
"""The picture, the plot and the notes."""


def build_generate_page(studio: Studio) -> None:
    """Put the page where Gradio is building; nothing is loaded before the first picture is asked for."""
    with gr.Row():
        with gr.Column(scale=5):
            inputs, button = _form(studio)
        with gr.Column(scale=4):
            picture = gr.Image(
                label="Picture",
                elem_id="picture",
                height=420,
                format="png",
                interactive=False,
                buttons=["download", "fullscreen"],
            )
            plot = gr.HTML()
            notes = gr.Markdown(HINT)
    gr.on(
        [button.click, inputs[0].submit],
        fn=partial(draw_picture, studio),
        inputs=inputs,
        outputs=[picture, plot, notes],
        show_progress_on=picture,
        concurrency_limit=1,
        api_name="generate",
    )


def _form(studio: Studio) -> tuple[list[gr.components.Component], gr.Button]:
    """Return the inputs in the order of `draw_picture`'s arguments, and the button."""
    start = studio.defaults
    prompt = gr.Textbox(
        label="Prompt", lines=3, value="a red circle on a white background", elem_id=PROMPT
    )
    negative = gr.Textbox(label="Negative prompt", lines=1)
    button = gr.Button("Generate", variant="primary")
    with gr.Row():
        sampler = gr.Dropdown(list(start.samplers), value=start.samplers[0], label="Sampler")
        steps = gr.Number(20, label="Steps", precision=0)
        guidance = gr.Number(5, label="Guidance", step=0.5)
    with gr.Row():
        width, height = (_size(label, start.size or USUAL_SIZE) for label in ("Width", "Height"))
        seed = gr.Number(0, label="Seed", precision=0)
    with gr.Accordion("Model and LoRA", open=True):
        base = gr.Textbox(
            str(start.base), label="Checkpoint file", interactive=not start.fixed_files
        )
        folder = gr.Textbox(
            str(start.lora_dir), label="Folder of LoRA files", interactive=not start.fixed_files
        )
        names = gr.Dropdown(
            studio.network_names(""),
            label="Add a LoRA to the prompt",
            value=None,
            interactive=True,
        )
    folder.blur(lambda where: gr.Dropdown(_names(studio, where)), folder, names, api_name=False)
    names.input(_with_tag, [prompt, names], [prompt, names], api_name=False)
    return [prompt, negative, sampler, steps, guidance, width, height, seed, base, folder], button


def _size(label: str, pixels: int) -> gr.Number:
    return gr.Number(pixels, label=label, precision=0, step=8)


def _names(studio: Studio, folder: str) -> list[str]:
    try:
        return studio.network_names(folder)
    except (LoraError, OSError):
        return []


def _with_tag(prompt: str, name: str) -> tuple[str, None]:
    return f"{prompt.rstrip()} {RAMP.format(name)}".lstrip(), None


def draw_picture(
    studio: Studio,
    prompt: str,
    negative: str,
    sampler: str,
    steps: float | None,
    guidance: float | None,
    width: float | None,
    height: float | None,
    seed: float | None,
    base: str,
    folder: str,
) -> Shown:
    """Draw what the form asks for; whatever goes wrong becomes a sentence in the place of the notes."""
    if steps is None or guidance is None or width is None or height is None or seed is None:
        return None, "", "Steps, guidance, width, height and seed each need a number."
    outside = _outside((steps, guidance, width, height, seed))
    if outside:
        return None, "", _plain(outside)
    try:
        request = GenerateRequest(
            prompt=prompt,
            negative=negative,
            sampler=sampler,
            steps=int(steps),
            guidance=float(guidance),
            width=int(width),
            height=int(height),
            seed=int(seed),
        )
        drawn = studio.draw(base, folder, request)
    except LoraError as error:
        return None, "", _plain(str(error))
    except Exception:
        log.exception("A picture could not be drawn.")
        return None, "", "Something unforeseen went wrong; the server's log has the details."
    return drawn.image, strength_plot(drawn.trace), _notes(request, drawn.notes)


def _outside(numbers: Sequence[float]) -> str:
    """Return what is told of the numbers, in the order of LIMITS, that lie outside of them; nothing when none does."""
    return " ".join(
        f"{label} accepts {low} to {high}; found {number:.15g}."
        for (label, (low, high)), number in zip(LIMITS.items(), numbers, strict=True)
        if not low <= number <= high
    )


def _notes(request: GenerateRequest, notes: Sequence[str]) -> str:
    told = f"Seed {request.seed}, {request.steps} steps, {request.sampler}."
    return "\n".join([*(f"- ⚠ {_plain(note)}" for note in notes), "", _plain(told)])


def _plain(text: str) -> str:
    """Return a text as Markdown that shows it as it is: names and tags in it are no markup."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", " ".join(text.split()))
