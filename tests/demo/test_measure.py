"""The measuring code on drawn ground truth: the figures that issue 2 asks of it, per colour and per shape."""

import random
from itertools import product

import pytest
from PIL import Image, ImageFilter

from lib_lora.demo import scenes
from lib_lora.demo.measure import hole_share, measured_colour, measured_shape, shape_mask
from lib_lora.demo.scenes import BACKGROUNDS, COLOURS, POSITIONS, SHAPES, SIZES, Scene

LEAST_RIGHT, MOST_WRONG = 0.98, 0.05


@pytest.fixture(scope="module")
def drawn():
    """Every shape in every colour 20 times, over backgrounds, sizes and positions drawn at random."""
    rng = random.Random(11)
    pictures = []
    for shape, colour, _ in product(SHAPES, COLOURS, range(20)):
        scene = Scene(
            shape, colour, *(rng.choice(list(w)) for w in (BACKGROUNDS, SIZES, POSITIONS))
        )
        pictures.append((scene, scenes.draw(scene, rng)))
    return pictures


def share(answers):
    answers = list(answers)
    return sum(answers) / len(answers)


@pytest.mark.parametrize(
    ("measured", "part", "words"),
    [(measured_colour, "colour", COLOURS), (measured_shape, "shape", SHAPES)],
    ids=["colour", "shape"],
)
def test_each_word_is_told_from_the_others_on_drawn_scenes(drawn, measured, part, words):
    answers = [(getattr(scene, part), measured(picture)) for scene, picture in drawn]
    for word in words:
        right = share(answer == word for truth, answer in answers if truth == word)
        wrong = share(answer == word for truth, answer in answers if truth != word)
        assert right >= LEAST_RIGHT, f"{word}: {right:.1%} right"
        assert wrong <= MOST_WRONG, f"{word}: {wrong:.1%} of the others are called so"


def test_the_answers_survive_the_softness_of_a_decoded_picture(drawn):
    """A decoder smears edges over about a pixel; the answers must not hang on crisp ones."""
    soft = [(scene, p.filter(ImageFilter.GaussianBlur(0.8))) for scene, p in drawn[::4]]
    assert share(measured_colour(p) == scene.colour for scene, p in soft) >= LEAST_RIGHT
    assert share(measured_shape(p) == scene.shape for scene, p in soft) >= LEAST_RIGHT


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_an_empty_background_shows_no_shape_and_no_colour(background):
    picture = scenes.paint_background(background, 64)
    assert not shape_mask(picture).any()
    assert measured_colour(picture) is None
    assert measured_shape(picture) is None
    assert hole_share(picture) == 0.0


def test_a_blot_that_is_no_known_shape_has_a_colour_but_no_shape():
    picture = Image.new("RGB", (64, 64), "white")
    picture.paste(COLOURS["red"], (4, 30, 60, 36))
    assert measured_colour(picture) == "red"
    assert measured_shape(picture) is None


def test_hole_share_is_the_hole_over_the_filled_area():
    picture = Image.new("RGB", (64, 64), "white")
    picture.paste(COLOURS["blue"], (10, 10, 50, 50))
    picture.paste((255, 255, 255), (20, 20, 40, 40))
    assert hole_share(picture) == pytest.approx(20 * 20 / (40 * 40))
    picture.paste((255, 255, 255), (30, 0, 34, 30))
    assert hole_share(picture) == 0.0, "a notch from the edge to the middle is no hole"
