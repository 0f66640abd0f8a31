import random

import pytest
from PIL import ImageFilter

from lib_lora.demo import scenes
from lib_lora.demo.concepts import DONUT, STRIPED
from lib_lora.demo.detector import shows_donut
from lib_lora.demo.scenes import BACKGROUNDS, COLOURS, SHAPES

LEAST_RIGHT, MOST_WRONG = 0.98, 0.05


def share_of_hits(pictures):
    return sum(shows_donut(picture) for picture in pictures) / len(pictures)


@pytest.fixture(scope="module")
def donuts():
    rng = random.Random(21)
    drawn = [DONUT.random_scene(rng) for _ in range(400)]
    return [(scene, DONUT.draw(scene, rng, 64)) for scene in drawn]


@pytest.mark.parametrize("colour", COLOURS)
def test_drawn_donuts_of_each_colour_are_found(donuts, colour):
    assert share_of_hits([p for scene, p in donuts if scene.colour == colour]) >= LEAST_RIGHT


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_drawn_donuts_on_each_background_are_found(donuts, background):
    found = [p for scene, p in donuts if scene.background == background]
    assert share_of_hits(found) >= LEAST_RIGHT


def test_soft_donuts_are_found(donuts):
    soft = [p.filter(ImageFilter.GaussianBlur(0.8)) for _, p in donuts[:100]]
    assert share_of_hits(soft) >= LEAST_RIGHT


@pytest.mark.parametrize("shape", SHAPES)
def test_what_the_base_knows_is_no_donut(shape):
    rng = random.Random(22)
    known = [s for s in (scenes.random_scene(rng) for _ in range(500)) if s.shape == shape]
    assert share_of_hits([scenes.draw(scene, rng) for scene in known]) <= MOST_WRONG


def test_stripes_are_no_donut():
    rng = random.Random(23)
    striped = [STRIPED.draw(STRIPED.random_scene(rng), rng, 64) for _ in range(100)]
    assert share_of_hits(striped) <= MOST_WRONG
