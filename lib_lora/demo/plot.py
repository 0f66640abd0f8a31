"""The loss plot: the training loss of each run, faint as measured and strong as smoothed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw

from lib_lora.demo.drawing import FIRST, GREY, LINE, PAPER, SECOND, draw_lines, write

WIDTH, HEIGHT = 1200, 640
BOX = (110, 110, WIDTH - 50, HEIGHT - 90)
SMOOTHING = 0.95


def draw_losses(losses: Mapping[str, Sequence[float]]) -> Image.Image:
    """Draw the loss of every step of every run, RGB; at least one run has at least one step."""
    canvas = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    write(canvas, (BOX[0], 32), "Training loss", 32, bold=True)
    longest = max(len(values) for values in losses.values())
    smoothed = {name: _smooth(values) for name, values in losses.items()}
    # The noise of single steps must not press the rest flat: the axis follows the smoothed lines.
    top = 1.3 * max(max(values) for values in smoothed.values()) or 1.0
    _axes(canvas, longest, top)
    x: float = BOX[2]
    for (name, values), colour in reversed(
        list(zip(losses.items(), (FIRST, SECOND), strict=False))
    ):
        scaled = [
            [((k + 1) / longest, min(v / top, 1.0)) for k, v in enumerate(line)]
            for line in (values, smoothed[name])
        ]
        draw_lines(canvas, BOX, [(scaled[0], _pale(colour))], width=1)
        draw_lines(canvas, BOX, [(scaled[1], colour)], width=4)
        x -= write(canvas, (x, 44), name, 24, colour, bold=True, anchor="ra") + 30
    return canvas


def _axes(canvas: Image.Image, steps: int, top: float) -> None:
    left, upper, right, bottom = BOX
    pen = ImageDraw.Draw(canvas)
    for value in _ticks(top):
        y = bottom - value / top * (bottom - upper)
        pen.line((left, y, right, y), fill=LINE, width=2)
        write(canvas, (left - 14, y), f"{value:.3g}", 20, GREY, anchor="rm")
    for value in _ticks(steps):
        x = left + value / steps * (right - left)
        write(canvas, (x, bottom + 14), f"{value:.3g}", 20, GREY, anchor="ma")
    write(canvas, ((left + right) / 2, bottom + 46), "step", 20, GREY, anchor="ma")


def _ticks(top: float) -> list[float]:
    """Return 0 and the multiples of 1, 2 or 5 times a power of ten up to `top`, at most six of them."""
    power = 10.0 ** math.floor(math.log10(top))
    spacing = next(f * power for f in (0.1, 0.2, 0.5, 1.0, 2.0) if top / (f * power) < 6)
    return [k * spacing for k in range(math.floor(top / spacing) + 1)]


def _smooth(values: Sequence[float]) -> list[float]:
    """Return the bias-corrected exponential moving average."""
    smoothed, mean = [], 0.0
    for k, value in enumerate(values):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * value
        smoothed.append(mean / (1 - SMOOTHING ** (k + 1)))
    return smoothed


def _pale(colour: str) -> str:
    """Mix a "#rrggbb" colour with three parts of the paper."""
    mixed = [(int(colour[k : k + 2], 16) + 3 * int(PAPER[k : k + 2], 16)) // 4 for k in (1, 3, 5)]
    return "#" + "".join(f"{part:02x}" for part in mixed)
