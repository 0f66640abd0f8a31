import json
import math
from dataclasses import replace

import pytest
from PIL import Image

from lib_lora.demo.report import (
    Concept,
    Difference,
    Likeness,
    Report,
    ValidationLoss,
    difference,
    shortfalls,
)


def concept(without_hits, having_hits):
    def values(hits):
        return [0.3] * hits + [0.0] * (16 - hits)

    return Concept(
        measure="hole share",
        threshold=0.08,
        prompts=["a donut"] * 16,
        seeds=list(range(16)),
        without=values(without_hits),
        having=values(having_hits),
    )


GOOD = Report(
    data="bundled",
    seed=0,
    seconds={"total": 200.0},
    peak_memory_bytes=10**9,
    validation_loss={"donut": ValidationLoss(0.4, 0.38)},
    concept=concept(1, 13),
    likeness=None,
    merged_versus_live=Difference(2.0, 9),
    sha256={},
)


def test_figures_at_the_very_limits_are_accepted():
    """Issue 2: a fall of 5 %, 80 % of 16 (13 is the least count above 12.8), 10 % of 16 (1 below 1.6), 2/255."""
    assert shortfalls(GOOD) == []


@pytest.mark.parametrize(
    ("changed", "figure"),
    [
        ({"validation_loss": {"donut": ValidationLoss(0.4, 0.381)}}, "validation loss of donut"),
        ({"validation_loss": {"donut": ValidationLoss(0.4, math.nan)}}, "validation loss of donut"),
        ({"concept": concept(1, 12)}, "12 of 16 pictures with the LoRA"),
        ({"concept": concept(2, 13)}, "2 of 16 pictures of the base"),
        ({"merged_versus_live": Difference(2.01, 9)}, "2.01 of 255"),
        ({"concept": None, "likeness": Likeness(0.5, 0.5)}, "0.500 from the training pictures"),
    ],
)
def test_each_figure_that_falls_short_is_named_and_no_other(changed, figure):
    (sentence,) = shortfalls(replace(GOOD, **changed))
    assert figure in sentence


def test_a_nearer_likeness_is_no_shortfall():
    assert shortfalls(replace(GOOD, concept=None, likeness=Likeness(0.5, 0.49))) == []


def test_difference_is_taken_over_all_pixels_channels_and_pictures():
    black = Image.new("RGB", (2, 2))
    other = Image.new("RGB", (2, 2))
    other.putpixel((0, 0), (3, 0, 9))
    # 12 steps over two pictures of 4 pixels of 3 channels; unsigned bytes must not wrap round.
    assert difference([black, black], [black, other]) == Difference(12 / 24, 9)
    assert difference([other], [black]) == Difference(12 / 12, 9)


def test_the_json_tells_hits_falls_and_shortfalls():
    told = json.loads(replace(GOOD, concept=concept(2, 14)).to_json())
    assert (told["concept"]["hits_without"], told["concept"]["hits_having"]) == (2, 14)
    assert told["validation_loss"]["donut"]["fall"] == pytest.approx(0.05)
    assert len(told["shortfalls"]) == 1
