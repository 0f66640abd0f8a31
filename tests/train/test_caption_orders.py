"""The orders of a caption's tags: drawn from the seed, with the first ones kept, and nothing added or lost."""

import pytest

from lib_lora.train.caption_orders import in_orders

CAPTION = "trigger, fox,red ,  snow, tree, night"
TAGS = ["trigger", "fox", "red", "snow", "tree", "night"]


@pytest.mark.parametrize("keep", [0, 2])
def test_orders_hold_the_same_tags_and_begin_with_those_that_are_kept(keep):
    found = [text.split(", ") for text in in_orders(CAPTION, 8, keep, seed=0)]
    assert len(found) == 8
    assert all(sorted(tags) == sorted(TAGS) for tags in found)
    assert all(tags[:keep] == TAGS[:keep] for tags in found)
    assert len({tuple(tags) for tags in found}) > 4
    assert len({tags[keep] for tags in found}) > 1


def test_the_seed_and_the_caption_draw_alone():
    assert in_orders(CAPTION, 4, 1, seed=3) == in_orders(CAPTION, 8, 1, seed=3)[:4]
    assert in_orders(CAPTION, 4, 1, seed=3) != in_orders(CAPTION, 4, 1, seed=4)


def test_a_caption_stays_as_it_is_where_there_is_nothing_to_order():
    assert in_orders(CAPTION, 0, 0, seed=0) == (CAPTION,)
    assert in_orders("a red fox", 3, 0, seed=0) == ("a red fox",) * 3
    assert in_orders("a, b", 3, 5, seed=0) == ("a, b",) * 3
