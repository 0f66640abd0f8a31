import numpy as np
import pytest
from PIL import ImageColor

from lib_lora.demo.drawing import FIRST, SECOND
from lib_lora.demo.plot import BOX, draw_losses


def rows_of(picture, colour, column):
    """Return the rows in which a column of the plot shows a colour."""
    pixels = np.asarray(picture, dtype=int)[BOX[1] : BOX[3], column]
    return np.nonzero(np.abs(pixels - ImageColor.getrgb(colour)).max(axis=1) <= 2)[0] + BOX[1]


def test_a_loss_that_halves_is_drawn_half_as_high():
    """A constant loss of 0.4 and one of 0.2 over the same axis: heights above the bottom are as 2 to 1."""
    drawn = draw_losses({"a": [0.4] * 50, "b": [0.2] * 50})
    column = (BOX[0] + BOX[2]) // 2
    high, low = (BOX[3] - rows_of(drawn, c, column).mean() for c in (FIRST, SECOND))
    assert high == pytest.approx(2 * low, rel=0.02)


def test_a_shorter_run_ends_where_its_steps_end():
    drawn = draw_losses({"a": [0.4] * 100, "b": [0.2] * 25})
    quarter = BOX[0] + (BOX[2] - BOX[0]) // 4
    assert len(rows_of(drawn, SECOND, quarter - 20)) > 0
    assert len(rows_of(drawn, SECOND, quarter + 20)) == 0


def test_a_run_of_one_step_is_drawn():
    assert draw_losses({"a": [0.3]}).size == (1200, 640)
