"""The plot of a schedule."""

import xml.etree.ElementTree as ElementTree

from lib_lora.host import Evaluation
from lib_lora.ui.strength_plot import strength_plot

RAMP = [
    Evaluation(sigma, step, {"a": step / 2, "<b>": -0.5}) for step, sigma in enumerate((9, 4, 1))
]


def test_every_evaluation_of_every_network_is_a_point():
    plot = ElementTree.fromstring(strength_plot(RAMP))
    assert len(plot.findall("circle")) == 2 * 3
    lines = [line.get("points").split() for line in plot.findall("polyline")]
    # Sorted by name: first the constant -0.5, then the ramp, which rises: y falls by equal steps.
    heights = [[float(point.split(",")[1]) for point in line] for line in lines]
    assert heights[0][0] == heights[0][1] == heights[0][2]
    first, second = heights[1][0] - heights[1][1], heights[1][1] - heights[1][2]
    assert first > 1
    assert abs(first - second) < 0.2  # coordinates are written with one decimal
    assert max(heights[1]) < heights[0][0]


def test_names_are_text_and_not_markup():
    assert "<b>" not in strength_plot(RAMP)
    texts = [text.text for text in ElementTree.fromstring(strength_plot(RAMP)).findall("text")]
    assert "<b>" in texts


def test_a_picture_without_networks_or_with_one_evaluation():
    assert strength_plot([Evaluation(1.0, 0, {})]) == ""
    ElementTree.fromstring(strength_plot([Evaluation(1.0, 0, {"a": 0.0})]))
