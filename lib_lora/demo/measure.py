"""Plain image processing that tells which colour and which shape a picture shows.

The shapes are the only strongly coloured thing in a scene, so the mask is a threshold on chroma; the colour is the nearest hue;
the shape is the outline whose drawn template overlaps the mask most. Nothing here is learned and nothing is tuned on generated
pictures: the thresholds follow from the palette in `scenes`.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw
from skimage.measure import label, regionprops

from lib_lora.demo.scenes import COLOURS, SHAPES, place_outline

# Half way between the most colourful background (beige and sky, about 50) and the least colourful shape (about 128).
CHROMA_THRESHOLD = 88
SMALLEST_AREA = 0.01
CANVAS = 64
TURNS = np.linspace(-0.2, 0.2, 5)


def shape_mask(picture: Image.Image) -> np.ndarray:
    """Return the largest strongly coloured region as a boolean (height, width) array, empty when there is none."""
    rgb = np.asarray(picture.convert("RGB"), dtype=np.int16)
    strong = rgb.max(axis=2) - rgb.min(axis=2) > CHROMA_THRESHOLD
    regions = label(strong, connectivity=1)
    if regions.max() == 0:
        return strong
    sizes = np.bincount(regions.ravel())
    sizes[0] = 0
    mask = regions == sizes.argmax()
    return mask if mask.mean() >= SMALLEST_AREA else np.zeros_like(mask)


def measured_colour(picture: Image.Image) -> str | None:
    """Name the colour of the shape in a picture, `None` when the picture shows no shape."""
    mask = shape_mask(picture)
    if not mask.any():
        return None
    rgb = np.asarray(picture.convert("RGB"), dtype=np.float64)[mask]
    angles = np.array([_hue(*pixel) for pixel in rgb])
    mean = math.atan2(np.sin(angles).mean(), np.cos(angles).mean())
    distance = {name: _turn_between(mean, _hue(*value)) for name, value in COLOURS.items()}
    return min(distance, key=lambda name: distance[name])


def measured_shape(picture: Image.Image) -> str | None:
    """Name the outline that fits the shape in a picture best, `None` when none fits well."""
    mask = shape_mask(picture)
    if not mask.any():
        return None
    seen = _normalised(mask)
    overlap = {
        name: max(_intersection_over_union(seen, template) for template in templates)
        for name, templates in _TEMPLATES.items()
    }
    best = max(overlap, key=lambda name: overlap[name])
    return best if overlap[best] >= 0.7 else None


def hole_share(picture: Image.Image) -> float:
    """Return the enclosed area of the shape's holes as a share of its filled area, 0 when it has none."""
    mask = shape_mask(picture)
    if not mask.any():
        return 0.0
    region = regionprops(mask.astype(np.uint8))[0]
    return float(1.0 - region.area / region.area_filled)


def _hue(r: float, g: float, b: float) -> float:
    """Return the hue angle in radians of the colour plane spanned by the opponent axes."""
    return math.atan2(math.sqrt(3) * (g - b), 2 * r - g - b)


def _turn_between(a: float, b: float) -> float:
    return abs((a - b + math.pi) % math.tau - math.pi)


def _normalised(mask: np.ndarray) -> np.ndarray:
    """Move a mask's centroid to the middle of the canvas and scale its area to one fifth of the canvas."""
    ys, xs = np.nonzero(mask)
    zoom = math.sqrt(0.2 * CANVAS * CANVAS / len(ys))
    corner_x = xs.mean() + 0.5 - CANVAS / 2 / zoom
    corner_y = ys.mean() + 0.5 - CANVAS / 2 / zoom
    source = Image.fromarray(mask.astype(np.uint8) * 255)
    moved = source.transform(
        (CANVAS, CANVAS),
        Image.Transform.AFFINE,
        (1 / zoom, 0, corner_x, 0, 1 / zoom, corner_y),
        Image.Resampling.BILINEAR,
    )
    return np.asarray(moved) > 127


def _template(name: str, turn: float) -> np.ndarray:
    large = 4 * CANVAS
    picture = Image.new("L", (large, large))
    outline = place_outline(SHAPES[name], (large / 2, large / 2), large / 5, turn)
    ImageDraw.Draw(picture).polygon(outline, fill=255)
    return _normalised(np.asarray(picture) > 127)


def _intersection_over_union(a: np.ndarray, b: np.ndarray) -> float:
    return float((a & b).sum() / max((a | b).sum(), 1))


_TEMPLATES = {name: [_template(name, float(turn)) for turn in TURNS] for name in SHAPES}
