import numpy as np
import pytest
from PIL import Image, ImageColor

from lib_lora.demo.drawing import FIRST, SECOND, wrap
from lib_lora.demo.sheet import INNER, Pair, Panel, Sheet, draw_sheet

RED, GREEN = (200, 30, 30), (30, 160, 30)


def plain(colour):
    return Image.new("RGB", (64, 64), colour)


def sheet(panels, found=None):
    pairs = [Pair("a prompt", plain(RED), plain(GREEN), found)] * 16
    return Sheet(
        headline="A headline",
        figures=["one", "two", "three"],
        taught={"donut": [plain(RED)] * 12, "striped": [plain(GREEN)] * 4},
        prompt="the prompt",
        panels=panels,
        pairs=pairs,
    )


def area(picture, colour):
    rgb = colour if isinstance(colour, tuple) else ImageColor.getrgb(colour)
    return int((np.abs(np.asarray(picture, dtype=int) - rgb).max(axis=2) <= 2).sum())


def test_every_picture_is_on_the_sheet_in_its_full_size():
    """Eight panels in four columns, sixteen pairs in eight; rounded corners take less than one percent."""
    blue = (30, 60, 220)
    panels = [Panel("a title", [], plain(blue), {})] * 8
    drawn = draw_sheet(sheet(panels))
    side = (INNER - 3 * 24) // 4
    assert area(drawn, blue) == pytest.approx(8 * side * side, rel=0.01)
    small, thumb = (INNER - 7 * 24) // 8, (INNER - 15 * 12) // 16
    assert area(drawn, RED) == pytest.approx(16 * small**2 + 12 * thumb**2, rel=0.01)
    assert area(drawn, GREEN) == pytest.approx(16 * small**2 + 4 * thumb**2, rel=0.01)


def test_a_curve_is_drawn_in_the_colour_of_its_network():
    empty = draw_sheet(sheet([Panel("a", [], plain(RED), {})]))
    first = draw_sheet(sheet([Panel("a", [], plain(RED), {"donut": [1.0] * 20})]))
    second = draw_sheet(sheet([Panel("a", [], plain(RED), {"striped": [1.0] * 20})]))
    # A flat line is as wide as the picture and 3 pixels high, of which the outer ones may be mixed with the paper.
    width = (INNER - 3 * 24) // 4
    assert area(first, FIRST) - area(empty, FIRST) >= width
    assert area(second, SECOND) - area(empty, SECOND) >= width


def test_the_detectors_answer_shows_as_a_full_dot():
    panels = [Panel("a", [], plain(RED), {})]
    none, one, both = (
        area(draw_sheet(sheet(panels, found)), FIRST)
        for found in ((False, False), (False, True), (True, True))
    )
    assert both - one == one - none > 16 * 100


def test_long_text_is_wrapped_and_what_does_not_fit_says_so():
    words = "a picture of a large orange donut at the bottom on a beige background"
    lines = wrap(words, 14, 160, 9)
    assert " ".join(lines) == words
    assert len(lines) > 2
    assert wrap(words, 14, 160, 2) == [lines[0], f"{lines[1]} …"]
