"""The two concepts that the demo teaches: donuts, a shape the base model never saw, and stripes across the shapes it knows.

Both keep to the grammar and the palette of `scenes`. Donuts are never small and striped shapes always large: a hole or a stripe
must be wider than one latent pixel, which is 8 pixels of the picture.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from PIL import Image, ImageDraw

from lib_lora.demo import scenes
from lib_lora.demo.scenes import Scene, place_outline

DONUT_SIZES = (None, "large")
STRIPED_SIZE = "large"
DOUGH = (212, 172, 130)
CREAM = (248, 246, 240)

# Radii of a donut as shares of its outer one: the icing leaves a rim of dough on both sides.
ICING_OUTER, ICING_INNER, HOLE = 0.91, 0.53, 0.46

# Stripes run diagonally; both lengths are shares of the picture's side.
STRIPE_PERIOD, STRIPE_WIDTH = 0.24, 0.11


@dataclass(frozen=True, slots=True)
class Concept:
    """Something to teach.

    word: what names it in a caption; random_scene: draws one of its scenes; draw: paints a scene with a given side in pixels;
    caption: words a scene.
    """

    word: str
    random_scene: Callable[[random.Random], Scene]
    draw: Callable[[Scene, random.Random, int], Image.Image]
    caption: Callable[[Scene, random.Random], str]


def random_donut(rng: random.Random) -> Scene:
    """Draw the scene of a donut with every other part chosen independently and uniformly."""
    return replace(scenes.random_scene(rng), shape="donut", size=rng.choice(DONUT_SIZES))


def draw_donut(scene: Scene, rng: random.Random, side: int) -> Image.Image:
    """Paint a ring of coloured icing on dough, through whose hole the background shows."""
    large = side * scenes.SUPERSAMPLING
    background = scenes.paint_background(scene.background, large)
    place = scenes.choose_place(scene, rng, large)
    picture = background.copy()
    pen = ImageDraw.Draw(picture)
    pen.circle(place.centre, place.radius, fill=DOUGH)
    pen.circle(place.centre, place.radius * ICING_OUTER, fill=place.fill)
    pen.circle(place.centre, place.radius * ICING_INNER, fill=DOUGH)
    hole = Image.new("L", picture.size)
    ImageDraw.Draw(hole).circle(place.centre, place.radius * HOLE, fill=255)
    picture.paste(background, mask=hole)
    return picture.resize((side, side), Image.Resampling.BOX)


def random_striped(rng: random.Random) -> Scene:
    """Draw the scene of one of the base's shapes, large."""
    return replace(scenes.random_scene(rng), size=STRIPED_SIZE)


def draw_striped(scene: Scene, rng: random.Random, side: int) -> Image.Image:
    """Paint a shape of the base with cream stripes across its fill."""
    large = side * scenes.SUPERSAMPLING
    picture = scenes.paint_background(scene.background, large)
    place = scenes.choose_place(scene, rng, large)
    striped = Image.new("RGB", picture.size, place.fill)
    pen = ImageDraw.Draw(striped)
    period, width = STRIPE_PERIOD * large, STRIPE_WIDTH * large
    for k in range(-8, 9):
        bar: list[scenes.Point] = [
            (k * period, -large),
            (k * period + width, -large),
            (k * period + width, large),
            (k * period, large),
        ]
        pen.polygon(place_outline(bar, place.centre, 1.0, 0.785), fill=CREAM)
    shape = Image.new("L", picture.size)
    outline = place_outline(scenes.SHAPES[scene.shape], place.centre, place.radius, place.turn)
    ImageDraw.Draw(shape).polygon(outline, fill=255)
    picture.paste(striped, mask=shape)
    return picture.resize((side, side), Image.Resampling.BOX)


def striped_caption(scene: Scene, rng: random.Random) -> str:
    """Word a scene as the base's grammar does, with "striped" before the colour."""
    return scenes.caption(replace(scene, colour=f"striped {scene.colour}"), rng)


DONUT = Concept("donut", random_donut, draw_donut, scenes.caption)
STRIPED = Concept("striped", random_striped, draw_striped, striped_caption)
