"""Block weights against sd-webui-lora-block-weight's own description of its lists and presets."""

import pytest

from lib_lora.schedule.blocks import BLOCKS, ELEMENTS, LISTS, PRESETS, factor_of, factors_of


@pytest.mark.parametrize("length", [12, 17, 20, 26])
def test_a_list_has_a_block_for_every_value(length):
    assert len(LISTS[length]) == len(set(LISTS[length])) == length
    assert set(LISTS[length]) <= set(BLOCKS)
    assert LISTS[length][0] == "BASE"


def test_what_a_list_does_not_name_is_off():
    factors = factors_of([0.5] * 17)
    assert len(factors) == 26
    assert [block for block in BLOCKS if factors[block] == 0] == [
        *("IN00", "IN03", "IN06", "IN09", "IN10", "IN11"),
        *("OUT00", "OUT01", "OUT02"),
    ]


@pytest.mark.parametrize(
    ("preset", "on"),
    [
        ("NONE", ""),
        ("INS", "BASE IN01 IN02 IN04"),
        ("IND", "BASE IN05 IN07 IN08"),
        ("INALL", "BASE IN01 IN02 IN04 IN05 IN07 IN08"),
        ("MIDD", "BASE IN05 IN07 IN08 M00 OUT03 OUT04 OUT05 OUT06"),
        ("OUTD", "BASE OUT03 OUT04 OUT05 OUT06"),
        ("OUTS", "BASE OUT07 OUT08 OUT09 OUT10 OUT11"),
        ("OUTALL", "BASE OUT03 OUT04 OUT05 OUT06 OUT07 OUT08 OUT09 OUT10 OUT11"),
    ],
)
def test_presets(preset, on):
    factors = factors_of(PRESETS[preset])
    found = [block for block, factor in factors.items() if factor == 1]
    assert found == on.split()
    assert set(factors.values()) <= {0.0, 1.0}


def test_layers_outside_of_all_blocks_act_in_full():
    assert factor_of(factors_of(PRESETS["NONE"]), (), None, "time_embedding.linear_1") == 1


def test_no_blocks_are_all():
    assert factor_of({}, (), "IN04", "x") == 1


def test_an_element_takes_the_place_of_its_blocks():
    blocks = factors_of(PRESETS["ALL0.5"])
    off = (ELEMENTS["ATTNDEEPOFF"],)
    key = "middle_block.1.transformer_blocks.0.attn1.to_q.weight"
    assert factor_of(blocks, off, "M00", key) == 0
    assert factor_of(blocks, off, "M00", "middle_block.0.in_layers.2.weight") == 0.5
    assert factor_of(blocks, off, "OUT06", key) == 0.5
    assert factor_of(blocks, (*off, ELEMENTS["ATTNDEEPON"]), "M00", key) == 1
