"""A small picture of a resolved schedule: the strength of every LoRA at every evaluation, as SVG text that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Sequence

from lib_lora.host import Evaluation

WIDTH, HEIGHT = 560, 190
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 30, 26
COLOURS = ("#7c6cf2", "#16a394", "#e08a1e", "#d6487e", "#3b82c4", "#7a9a2e")


def strength_plot(trace: Sequence[Evaluation]) -> str:
    """Return the plot of a picture's evaluations, an empty text when no network took part. Names are escaped."""
    names = sorted({name for evaluation in trace for name in evaluation.strengths})
    if not names:
        return ""
    values = [s for evaluation in trace for s in evaluation.strengths.values()]
    low, high = min(0.0, *values), max(1.0, *values)
    parts = [_axes(low, high, trace[-1].step)]
    for place, name in enumerate(names):
        colour = COLOURS[place % len(COLOURS)]
        points = [
            (_x(evaluation.step, trace[-1].step), _y(evaluation.strengths.get(name, 0), low, high))
            for evaluation in trace
        ]
        parts += [_line(points, colour), _label(place, name, colour)]
    return (
        f'<svg class="strengths" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="Strength of each LoRA over the steps">{"".join(parts)}</svg>'
    )


def _x(step: float, last: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (step / last if last else 0.5)


def _y(strength: float, low: float, high: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (high - strength) / (high - low)


def _axes(low: float, high: float, last: float) -> str:
    lines = []
    for value in sorted({low, 0.0, high}):
        y = _y(value, low, high)
        lines.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" opacity="0.2"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    bottom = HEIGHT - 8
    lines.append(
        f'<text x="{LEFT}" y="{bottom}">step 0</text>'
        f'<text x="{WIDTH - RIGHT}" y="{bottom}" text-anchor="end">step {last:g}</text>'
    )
    return "".join(lines)


def _line(points: Sequence[tuple[float, float]], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>' for x, y in points
    )
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'


def _label(place: int, name: str, colour: str) -> str:
    x = LEFT + place * 130
    return (
        f'<rect x="{x}" y="8" width="10" height="10" rx="2" fill="{colour}"/>'
        f'<text x="{x + 15}" y="17">{html.escape(name)}</text>'
    )
