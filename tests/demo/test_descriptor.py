import random

import numpy as np
import pytest
from PIL import Image

from lib_lora.demo import scenes
from lib_lora.demo.concepts import DONUT
from lib_lora.demo.descriptor import describe, distance_to


def bars(direction, side=64):
    """Black and white bars of 8 pixels, "across" or "down"."""
    index = np.indices((side, side))[0 if direction == "across" else 1]
    return Image.fromarray(np.uint8(255 * (index // 4 % 2)))


def test_a_plain_picture_is_its_colour_and_no_edges():
    """Every cell of pure red is (1, 0, 0): 64 ones divided by the root of 192, and an empty histogram."""
    described = describe(Image.new("RGB", (50, 30), "red"))
    assert described.shape == (8 * 8 * (3 + 6),)
    assert described[:3] == pytest.approx([1 / np.sqrt(192), 0, 0])
    assert np.linalg.norm(described[:192]) == pytest.approx(1 / np.sqrt(3))
    assert np.all(described[192:] == 0)


def test_the_size_of_a_picture_does_not_matter():
    small, large = Image.new("RGB", (64, 64), "navy"), Image.new("RGB", (256, 256), "navy")
    small.paste((255, 255, 255), (16, 16, 48, 48))
    large.paste((255, 255, 255), (64, 64, 192, 192))
    assert np.allclose(describe(small), describe(large))


def test_orientation_tells_bars_apart_that_have_the_same_mean_colours():
    across, down = describe(bars("across")), describe(bars("down"))
    assert np.allclose(across[:192], down[:192])
    # Both histograms have length 1/2 and share no bin, so they are sqrt(2)/2 apart.
    assert np.linalg.norm(across - down) == pytest.approx(np.sqrt(0.5), rel=1e-6)


def test_distance_is_that_of_the_nearest_reference_averaged_over_the_pictures():
    black, gray, white = (Image.new("RGB", (8, 8), (v, v, v)) for v in (0, 51, 255))
    # Plain grays g1 and g2 are |g1 - g2| / 255 apart.
    assert distance_to([black, white], [gray]) == pytest.approx(0.2)
    assert distance_to([black, white], [gray, white]) == pytest.approx(0.1)


def test_other_donuts_are_nearer_to_donuts_than_other_scenes_are():
    rng = random.Random(5)
    references = [DONUT.draw(DONUT.random_scene(rng), rng, 64) for _ in range(24)]
    asked = [DONUT.random_scene(rng) for _ in range(16)]
    alike = [DONUT.draw(scene, rng, 64) for scene in asked]
    others = [scenes.draw(scenes.random_scene(rng), rng, 64) for _ in range(16)]
    assert distance_to(references, alike) < distance_to(references, others)
