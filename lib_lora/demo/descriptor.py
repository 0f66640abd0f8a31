"""A fixed description of a picture: 8 x 8 mean colours and, in the same cells, gradient orientations weighted by magnitude.

Orientation histograms follow Dalal and Triggs (2005) in their simplest form: unsigned, one normalisation for the whole picture.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

SIDE, CELLS, ORIENTATIONS = 64, 8, 6
# A picture without edges has gradients of rounding errors only; they must not be blown up to a full histogram.
FLAT = 1e-2


def describe(picture: Image.Image) -> np.ndarray:
    """Return the descriptor of a picture of any size, (576,) float64: half its weight is colour and half orientation."""
    small = picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
    rgb = np.asarray(small, dtype=np.float64) / 255
    colours = _cells(rgb).mean(axis=(1, 3)).ravel()
    dy, dx = np.gradient(rgb.mean(axis=2))
    magnitude = np.hypot(dx, dy)
    bins = (np.arctan2(dy, dx) % np.pi / np.pi * ORIENTATIONS).astype(int) % ORIENTATIONS
    layers = np.stack([magnitude * (bins == k) for k in range(ORIENTATIONS)], axis=2)
    histogram = _cells(layers).mean(axis=(1, 3)).ravel()
    histogram /= max(float(np.linalg.norm(histogram)), FLAT)
    return np.concatenate([colours / np.sqrt(len(colours)), histogram / 2])


def distance_to(references: Sequence[Image.Image], pictures: Sequence[Image.Image]) -> float:
    """Return the mean distance of each picture to its nearest reference picture."""
    known = np.stack([describe(picture) for picture in references])
    nearest = [
        float(np.linalg.norm(known - describe(picture), axis=1).min()) for picture in pictures
    ]
    return sum(nearest) / len(nearest)


def _cells(values: np.ndarray) -> np.ndarray:
    """View (SIDE, SIDE, n) as (CELLS, SIDE // CELLS, CELLS, SIDE // CELLS, n)."""
    step = SIDE // CELLS
    return values.reshape(CELLS, step, CELLS, step, -1)
