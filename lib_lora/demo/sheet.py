"""The contact sheet: what was taught, one prompt and seed under eight schedules, and the same prompts without and with the LoRA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from lib_lora.demo.drawing import (
    FIRST,
    GREY,
    LINE,
    PAPER,
    SECOND,
    draw_lines,
    place,
    wrap,
    write,
)

WIDTH, MARGIN, GAP = 1600, 56, 24
INNER = WIDTH - 2 * MARGIN
COLUMNS, PAIR_COLUMNS, TAUGHT = 4, 8, 16
CURVE_HEIGHT, TOP_OF_CURVE = 64, 1.1
COLOURS = (FIRST, SECOND)


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture of the main part: its title, its tags as written, and the strength of each network at each evaluation."""

    title: str
    tags: Sequence[str]
    picture: Image.Image
    strengths: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same prompt and seed without and with the LoRA; `found` tells for each whether the concept was detected."""

    prompt: str
    without: Image.Image
    having: Image.Image
    found: tuple[bool, bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Everything the contact sheet shows. `taught`: network name -> some of its training pictures, first A, then B."""

    headline: str
    figures: Sequence[str]
    taught: Mapping[str, Sequence[Image.Image]]
    prompt: str
    panels: Sequence[Panel]
    pairs: Sequence[Pair]


def draw_sheet(sheet: Sheet) -> Image.Image:
    """Draw the contact sheet, RGB, 1600 pixels wide."""
    # Drawn on a canvas that is surely tall enough and cut to the height in use.
    canvas = Image.new("RGB", (WIDTH, 6000), PAPER)
    y = _header(canvas, sheet)
    y = _taught(canvas, sheet.taught, y)
    y = _panels(canvas, sheet, y)
    y = _pairs(canvas, sheet.pairs, y)
    return canvas.crop((0, 0, WIDTH, y + MARGIN))


def _header(canvas: Image.Image, sheet: Sheet) -> int:
    write(canvas, (MARGIN, 48), "LoRA Loom", 56, bold=True)
    write(canvas, (MARGIN, 122), sheet.headline, 26, GREY)
    y = 168
    for k, line in enumerate(sheet.figures):
        write(canvas, (MARGIN + k % 2 * INNER // 2, y + k // 2 * 32), line, 21)
    return y + 32 * ((len(sheet.figures) + 1) // 2) + 20


def _section(canvas: Image.Image, y: int, title: str, remark: str) -> int:
    ImageDraw.Draw(canvas).line((MARGIN, y, WIDTH - MARGIN, y), fill=LINE, width=2)
    width = write(canvas, (MARGIN, y + 22), title, 28, bold=True)
    write(canvas, (MARGIN + width + 20, y + 28), remark, 22, GREY)
    return y + 76


def _taught(canvas: Image.Image, taught: Mapping[str, Sequence[Image.Image]], y: int) -> int:
    y = _section(canvas, y, "Taught", "from small folders of captioned pictures")
    side = (INNER - 12 * (TAUGHT - 1)) // TAUGHT
    x = MARGIN
    for (name, pictures), colour in zip(taught.items(), COLOURS, strict=False):
        write(canvas, (x, y + side + 10), name, 20, colour, bold=True)
        for picture in pictures:
            place(canvas, picture, (x, y), side)
            x += side + 12
    return y + side + 62


def _panels(canvas: Image.Image, sheet: Sheet, y: int) -> int:
    y = _section(canvas, y, "One prompt, one seed", f"“{sheet.prompt}”")
    side = (INNER - (COLUMNS - 1) * GAP) // COLUMNS
    colours = dict(zip(sheet.taught, COLOURS, strict=False))
    height = side + 108 + CURVE_HEIGHT + 36
    for k, panel in enumerate(sheet.panels):
        left, top = MARGIN + k % COLUMNS * (side + GAP), y + k // COLUMNS * height
        place(canvas, panel.picture, (left, top), side)
        write(canvas, (left, top + side + 12), panel.title, 23, bold=True)
        for line, tag in enumerate(panel.tags or ("no tag",)):
            colour = next((c for name, c in colours.items() if f":{name}:" in tag), GREY)
            write(canvas, (left, top + side + 45 + 24 * line), tag, 18, colour)
        box = (left, top + side + 102, left + side, top + side + 102 + CURVE_HEIGHT)
        _strengths(canvas, box, panel.strengths, colours)
    return y + height * -(-len(sheet.panels) // COLUMNS)


def _strengths(
    canvas: Image.Image,
    box: tuple[int, int, int, int],
    strengths: Mapping[str, Sequence[float]],
    colours: Mapping[str, str],
) -> None:
    """Draw the strengths over the evaluations of a pass as steps, because each value holds for one evaluation."""
    left, _, right, bottom = box
    lines = []
    for name, values in strengths.items():
        steps = [(k + side, value) for k, value in enumerate(values) for side in (0, 1)]
        points = [(x / len(values), min(v, TOP_OF_CURVE) / TOP_OF_CURVE) for x, v in steps]
        lines.append((points, colours[name]))
    draw_lines(canvas, box, lines, shade=True)
    ImageDraw.Draw(canvas).line((left, bottom, right, bottom), fill=LINE, width=2)


def _pairs(canvas: Image.Image, pairs: Sequence[Pair], y: int) -> int:
    y = _section(
        canvas, y, "Without and with", "above: the base, below: the LoRA at 1, same prompt and seed"
    )
    side = (INNER - (PAIR_COLUMNS - 1) * GAP) // PAIR_COLUMNS
    height = 2 * side + 100
    for k, pair in enumerate(pairs):
        left, top = MARGIN + k % PAIR_COLUMNS * (side + GAP), y + k // PAIR_COLUMNS * height
        for row, picture in enumerate((pair.without, pair.having)):
            corner = (left, top + row * (side + 8))
            place(canvas, picture, corner, side)
            if pair.found is not None:
                _mark(canvas, (corner[0] + side - 18, corner[1] + 18), pair.found[row])
        for line, text in enumerate(wrap(pair.prompt, 14, side, 3)):
            write(canvas, (left, top + 2 * side + 18 + 18 * line), text, 14, GREY)
    return y + height * -(-len(pairs) // PAIR_COLUMNS) - 20


def _mark(canvas: Image.Image, centre: tuple[int, int], found: bool) -> None:
    """Draw the detector's answer: a full dot for a hit, an empty one for none."""
    pen = ImageDraw.Draw(canvas)
    pen.circle(centre, 9, fill="white")
    pen.circle(
        centre, 7, fill=FIRST if found else "white", outline=FIRST if found else GREY, width=2
    )
