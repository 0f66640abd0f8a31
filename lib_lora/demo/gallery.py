"""Draws the demo's pictures on a host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lib_lora.demo.sheet import Panel
from lib_lora.demo.shots import Shot, request
from lib_lora.host import Generated
from lib_lora.hosts.diffusers import DiffusersHost

Progress = Callable[[int, int], None]
"""Called with how many pictures are done, and of how many."""


def draw_panels(
    host: DiffusersHost, shots: Sequence[Shot], prompt: str, seed: int, progress: Progress
) -> list[Panel]:
    """Draw one prompt and seed under each shot's tags."""
    panels = []
    for done, shot in enumerate(shots):
        progress(done, len(shots))
        panels.append(as_panel(shot, host.generate(request(prompt, shot.tags, seed))))
    return panels


def as_panel(shot: Shot, generated: Generated) -> Panel:
    """Return what the contact sheet shows of a picture; the strengths are those that the host really set."""
    names = generated.trace[0].strengths
    strengths = {name: [each.strengths[name] for each in generated.trace] for name in names}
    return Panel(shot.title, shot.tags, generated.image, strengths)


def draw_many(
    host: DiffusersHost, prompts: Sequence[str], seeds: Sequence[int], tags: Sequence[str] = ()
) -> list[Generated]:
    """Draw each prompt with its seed under the same tags."""
    pairs = zip(prompts, seeds, strict=True)
    return host.generate_batch([request(prompt, tags, seed) for prompt, seed in pairs])
