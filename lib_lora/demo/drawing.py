"""The palette, the letters and the few shapes that the contact sheet and the loss plot are drawn with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

PAPER, INK, GREY, LINE = "#faf7f2", "#2b2a33", "#77747f", "#dcd6cc"
FIRST, SECOND = "#e0457f", "#2f6fdb"
BOLD = 0.6
SUPERSAMPLING = 3

Point = tuple[float, float]


@lru_cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's own scalable font at a size in pixels."""
    return ImageFont.load_default(size)


def write(
    canvas: Image.Image,
    at: Point,
    text: str,
    size: int,
    colour: str = INK,
    bold: bool = False,
    anchor: str = "la",
) -> float:
    """Write one line of text and return its width in pixels."""
    pen = ImageDraw.Draw(canvas)
    stroke = BOLD if bold else 0
    pen.text(at, text, fill=colour, font=font(size), anchor=anchor, stroke_width=stroke)
    return pen.textlength(text, font=font(size))


def wrap(text: str, size: int, width: float, lines: int) -> list[str]:
    """Break a text between words into lines of at most `width` pixels; what does not fit ends in an ellipsis."""
    wrapped = [""]
    for word in text.split():
        longer = f"{wrapped[-1]} {word}".strip()
        if wrapped[-1] and font(size).getlength(longer) > width:
            wrapped.append(word)
        else:
            wrapped[-1] = longer
    if len(wrapped) > lines:
        wrapped[lines - 1] += " …"
    return wrapped[:lines]


def place(canvas: Image.Image, picture: Image.Image, at: tuple[int, int], side: int) -> None:
    """Paste a picture scaled smoothly into a square with rounded corners; other proportions are cut in the middle."""
    edge = min(picture.size)
    left, top = (picture.width - edge) / 2, (picture.height - edge) / 2
    box = (left, top, left + edge, top + edge)
    scaled = picture.convert("RGB").resize((side, side), Image.Resampling.LANCZOS, box=box)
    large = Image.new("L", (side * SUPERSAMPLING, side * SUPERSAMPLING))
    corners = (0, 0, large.width - 1, large.height - 1)
    ImageDraw.Draw(large).rounded_rectangle(corners, large.width // 28, fill=255)
    frame = (at[0] - 1, at[1] - 1, at[0] + side, at[1] + side)
    ImageDraw.Draw(canvas).rounded_rectangle(frame, side // 28, fill=LINE)
    canvas.paste(scaled, at, large.resize((side, side), Image.Resampling.BOX))


def draw_lines(
    canvas: Image.Image,
    box: tuple[int, int, int, int],
    lines: Sequence[tuple[Sequence[Point], str]],
    width: int = 3,
    shade: bool = False,
) -> None:
    """Draw smooth-edged lines into a box; points are shares of it, (0, 0) bottom left; `shade` tints the area below."""
    left, top, right, bottom = box
    s = SUPERSAMPLING
    size = (s * (right - left), s * (bottom - top))
    layer = canvas.crop(box).resize(size, Image.Resampling.NEAREST)
    inset = s * width / 2
    for points, colour in lines:
        path = [
            (
                inset + x * (size[0] - 2 * inset),
                size[1] - inset - y * (size[1] - 2 * inset),
            )
            for x, y in points
        ]
        if shade:
            area = [(path[0][0], size[1]), *path, (path[-1][0], size[1])]
            tint = Image.new("L", size)
            ImageDraw.Draw(tint).polygon(area, fill=36)
            layer.paste(colour, mask=tint)
        ImageDraw.Draw(layer).line(path, fill=colour, width=s * width, joint="curve")
    canvas.paste(layer.resize((right - left, bottom - top), Image.Resampling.BOX), (left, top))
