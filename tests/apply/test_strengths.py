"""Which strength an element of a layer has, by row, call and tile."""

import pytest
import torch

from lib_lora.apply.strengths import MIXED, Strengths
from tests.recorder import Recorder


def x_of(rows, dtype=torch.float64):
    return torch.zeros(rows, 3, dtype=dtype)


@pytest.fixture
def told():
    return []


@pytest.fixture
def strengths(told):
    return Strengths(2, told.append)


def test_rows_that_are_alike_have_one_strength_for_all(strengths, told):
    place = strengths.reserve([0, 0, 1])
    strengths.set((0.5, 2.0), (0.5, 2.0))
    # Whatever number of rows comes then, nothing has to be told apart.
    strengths.advance(7)
    assert strengths.view(place, x_of(5)).tolist() == [0.5, 0.5, 2.0]
    assert told == []


def test_only_slots_that_differ_have_a_strength_for_each_row(strengths):
    same, other = strengths.reserve([0]), strengths.reserve([1, 1])
    strengths.set((0.5, 2.0), (0.5, 3.0))
    assert strengths.view(same, x_of(2)).tolist() == [0.5]
    assert strengths.view(other, x_of(2)).tolist() == [[2.0, 2.0], [3.0, 3.0]]


def test_each_call_has_the_rows_that_follow(strengths, told):
    place = strengths.reserve([1])
    strengths.set((0, 1.0), (0, 2.0), (0, 3.0))
    strengths.advance(2)
    assert strengths.view(place, x_of(2)).tolist() == [[1.0], [2.0]]
    strengths.advance(1)
    assert strengths.view(place, x_of(1)).tolist() == [3.0]
    # A new evaluation begins with the first row again; the calls of the last one may have left rows out.
    strengths.set((0, 4.0), (0, 5.0), (0, 6.0))
    strengths.advance(1)
    strengths.set((0, 7.0), (0, 8.0), (0, 9.0))
    strengths.advance(2)
    assert strengths.view(place, x_of(2)).tolist() == [[7.0], [8.0]]
    assert told == []


def test_a_call_for_all_rows_may_come_again(strengths, told):
    # Extensions that look at another picture, or correct a result, call the UNet again with the whole batch.
    place = strengths.reserve([1])
    strengths.set((0, 1.0), (0, 2.0))
    for _ in range(3):
        strengths.advance(2)
        assert strengths.view(place, x_of(2)).tolist() == [[1.0], [2.0]]
    assert told == []
    strengths.advance(1)
    assert told == [MIXED]


def test_the_parts_of_a_row_follow_each_other(strengths):
    place = strengths.reserve([0])
    strengths.set((1.0, 0), (2.0, 0))
    assert strengths.view(place, x_of(6)).tolist() == [[1.0]] * 3 + [[2.0]] * 3


@pytest.mark.parametrize(("called", "rows"), [(3, 3), (0, 2), (2, 3), (2, 1)])
def test_rows_that_cannot_be_told_apart_have_the_first_strength_and_are_told(
    strengths, told, called, rows
):
    place = strengths.reserve([0])
    strengths.set((1.0, 0), (2.0, 0))
    strengths.advance(called)
    assert strengths.view(place, x_of(rows)).tolist() == [1.0]
    assert told == [MIXED]


def test_what_acts_is_told_for_the_rows_of_the_call(strengths):
    strengths.set((0.0, 1.0), (0.0, 0.0))
    assert (strengths.acts([0]), strengths.acts([1]), strengths.acts([0, 1])) == (False, True, True)
    strengths.advance(1)
    assert strengths.acts([1])
    strengths.advance(1)
    assert not strengths.acts([1])
    strengths.set((0.0, 1.0))
    strengths.clear()
    assert not strengths.acts([0, 1])


def test_every_dtype_has_a_buffer_and_a_new_strength_is_one_write_to_each(strengths):
    place = strengths.reserve([0, 1])
    strengths.set((0.5, 1.0))
    assert strengths.view(place, x_of(1, torch.float32)).dtype == torch.float32
    assert strengths.view(place, x_of(1, torch.bfloat16)).dtype == torch.bfloat16
    with Recorder() as recorder:
        strengths.set((0.25, 1.0), (0.25, 2.0))
    writes = [size for name, size in recorder.results if name.startswith("aten::copy_")]
    assert writes == [4, 4]  # two rows of two elements
    assert strengths.view(place, x_of(2, torch.float32)).tolist() == [[0.25, 1.0], [0.25, 2.0]]
