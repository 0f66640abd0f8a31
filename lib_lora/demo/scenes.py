"""The captioned pictures that the embedded base model was taught: one shape on a background.

A scene is shape x colour x background x size x position; `caption` words it and `draw` paints it. One pair in ten of shape and
colour is held out of training, so that the model's answer to it shows whether it learned words or pictures by heart.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

RGB = tuple[int, int, int]
Point = tuple[float, float]

COLOURS: dict[str, RGB] = {
    "red": (220, 38, 38),
    "orange": (245, 130, 24),
    "yellow": (244, 212, 30),
    "green": (40, 168, 64),
    "cyan": (24, 196, 212),
    "blue": (36, 84, 226),
    "purple": (142, 50, 210),
    "pink": (242, 70, 160),
}

# Top and bottom colour of a vertical gradient. All are pale or dull: the colour of the shape is the only strong one.
BACKGROUNDS: dict[str, tuple[RGB, RGB]] = {
    "white": ((250, 250, 250), (250, 250, 250)),
    "black": ((12, 12, 14), (12, 12, 14)),
    "gray": ((128, 128, 130), (128, 128, 130)),
    "beige": ((228, 212, 184), (228, 212, 184)),
    "sky": ((176, 206, 226), (238, 244, 248)),
    "dusk": ((44, 42, 70), (122, 102, 116)),
}

# Radius as a share of the picture's side. A scene that names no size is of middle size.
SIZES: dict[str | None, tuple[float, float]] = {
    None: (0.235, 0.26),
    "small": (0.19, 0.21),
    "large": (0.285, 0.31),
}

# Direction from the middle. A scene that names no position has its shape in the middle.
POSITIONS: dict[str | None, Point] = {
    None: (0.0, 0.0),
    "on the left": (-1.0, 0.0),
    "on the right": (1.0, 0.0),
    "at the top": (0.0, -1.0),
    "at the bottom": (0.0, 1.0),
}

TEMPLATES = (
    "a {thing}{place} on a {background} background",
    "{thing}{place}, {background} background",
    "a picture of a {thing}{place} on {background}",
)

SUPERSAMPLING = 4


def _regular(corners: int, radius: float, inner: float | None = None) -> list[Point]:
    """Return a regular polygon, or a star when `inner` gives the radius of the notches, one corner up."""
    radii = [radius] if inner is None else [radius, inner]
    count = corners * len(radii)
    angles = [math.tau * k / count - math.pi / 2 for k in range(count)]
    return [
        (radii[k % len(radii)] * math.cos(a), radii[k % len(radii)] * math.sin(a))
        for k, a in enumerate(angles)
    ]


def _heart() -> list[Point]:
    """Return the classic parametric heart, scaled to about the area of the other shapes."""
    points = []
    for k in range(48):
        a = math.tau * k / 48
        x = 16 * math.sin(a) ** 3
        y = -(13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a))
        points.append((x / 15.0, (y - 2.5) / 15.0))
    return points


SHAPES: dict[str, list[Point]] = {
    "circle": _regular(64, 0.98),
    "square": [(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)],
    "triangle": _regular(3, 1.25),
    "star": _regular(5, 1.28, 0.50),
    "heart": _heart(),
}

PAIRS = tuple((shape, colour) for shape in SHAPES for colour in COLOURS)
HELD_OUT = frozenset(PAIRS[7::10])


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture in words; `None` is the unnamed middle size or middle position."""

    shape: str
    colour: str
    background: str
    size: str | None = None
    position: str | None = None

    @property
    def held_out(self) -> bool:
        """Tell whether the base model never saw this shape in this colour."""
        return (self.shape, self.colour) in HELD_OUT


def random_scene(rng: random.Random) -> Scene:
    """Draw a scene with every part chosen independently and uniformly."""
    return Scene(
        shape=rng.choice(list(SHAPES)),
        colour=rng.choice(list(COLOURS)),
        background=rng.choice(list(BACKGROUNDS)),
        size=rng.choice(list(SIZES)),
        position=rng.choice(list(POSITIONS)),
    )


def random_training_scene(rng: random.Random) -> Scene:
    """Draw a scene whose pair of shape and colour is not held out."""
    while (scene := random_scene(rng)).held_out:
        pass
    return scene


def captions(scene: Scene) -> list[str]:
    """Word a scene by each of the templates."""
    thing = " ".join(word for word in (scene.size, scene.colour, scene.shape) if word)
    place = f" {scene.position}" if scene.position else ""
    return [
        template.format(thing=thing, place=place, background=scene.background)
        for template in TEMPLATES
    ]


def caption(scene: Scene, rng: random.Random) -> str:
    """Word a scene by one of the templates, chosen by `rng`."""
    return rng.choice(captions(scene))


def paint_background(name: str, side: int) -> Image.Image:
    """Paint a background of `side` x `side` pixels, RGB."""
    top, bottom = BACKGROUNDS[name]
    column = Image.new("RGB", (1, side))
    for y in range(side):
        t = y / max(side - 1, 1)
        mixed = [round(a + (b - a) * t) for a, b in zip(top, bottom, strict=True)]
        column.putpixel((0, y), (mixed[0], mixed[1], mixed[2]))
    return column.resize((side, side))


def place_outline(
    outline: list[Point], centre: Point, radius: float, turn: float = 0.0
) -> list[Point]:
    """Turn a unit outline by `turn` radians, scale it to `radius` and move it to `centre`."""
    cos, sin = math.cos(turn), math.sin(turn)
    return [
        (centre[0] + radius * (x * cos - y * sin), centre[1] + radius * (x * sin + y * cos))
        for x, y in outline
    ]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the shape of a scene lies, in pixels and radians, and the RGB colour that fills it."""

    centre: Point
    radius: float
    turn: float
    fill: RGB


def choose_place(scene: Scene, rng: random.Random, side: int) -> Place:
    """Choose the small variations that a scene leaves open, for a picture of `side` x `side` pixels."""
    radius = rng.uniform(*SIZES[scene.size]) * side
    reach = 0.46 * side - 1.15 * radius
    dx, dy = POSITIONS[scene.position]
    jitter = 0.02 * side
    centre = (
        side / 2 + dx * reach + rng.uniform(-jitter, jitter),
        side / 2 + dy * reach + rng.uniform(-jitter, jitter),
    )
    turn = rng.uniform(-0.10, 0.10)
    shade = rng.uniform(0.93, 1.05)
    r, g, b = COLOURS[scene.colour]
    fill = (min(255, round(r * shade)), min(255, round(g * shade)), min(255, round(b * shade)))
    return Place(centre, radius, turn, fill)


def draw(scene: Scene, rng: random.Random, side: int = 64) -> Image.Image:
    """Paint a scene of `side` x `side` pixels, RGB, with the small variations that `rng` chooses."""
    large = side * SUPERSAMPLING
    picture = paint_background(scene.background, large)
    place = choose_place(scene, rng, large)
    outline = place_outline(SHAPES[scene.shape], place.centre, place.radius, place.turn)
    ImageDraw.Draw(picture).polygon(outline, fill=place.fill)
    return picture.resize((side, side), Image.Resampling.BOX)
