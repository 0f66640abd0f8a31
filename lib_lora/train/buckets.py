"""Aspect-ratio buckets: the sizes that pictures are brought to, so that little is cut off and every batch has one size.

The sizes are those of kohya's `make_bucket_resolutions`: sides are multiples of a step, the area stays at or below that of the square,
and neither side is less than half of the square's or more than twice it. A picture goes to the bucket whose logarithm of width over
height is nearest, which treats wide and tall alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple


class Size(NamedTuple):
    """A width and a height in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


@dataclass(frozen=True, slots=True)
class Fit:
    """How a picture comes to its bucket: scaled until it covers it, then cut at its centre.

    original: the upright picture; scale: the factor; left, top: the corner of the cut in the scaled picture, in whole pixels, as SDXL
    is told them.
    """

    original: Size
    bucket: Size
    scale: float

    @property
    def left(self) -> int:
        """Return the pixels that are cut off at the left."""
        return int((self.original.width * self.scale - self.bucket.width) / 2)

    @property
    def top(self) -> int:
        """Return the pixels that are cut off at the top."""
        return int((self.original.height * self.scale - self.bucket.height) / 2)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Which sizes there are.

    size: the side of the square in pixels; step: what sides are multiples of, 0 for the square alone; upscale: whether a picture with
    fewer pixels than the square is enlarged, or trained at its own size.
    """

    size: int = 512
    step: int = 64
    upscale: bool = True

    def fit(self, width: int, height: int) -> Fit:
        """Return how a picture of this upright size is brought to its bucket."""
        bucket = self._bucket(width, height)
        scale = max(bucket.width / width, bucket.height / height)
        return Fit(Size(width, height), bucket, scale)

    def _bucket(self, width: int, height: int) -> Size:
        if self.step and not self.upscale and width * height < self.size**2:
            return Size(*(max(side // self.step, 1) * self.step for side in (width, height)))
        ratio = math.log(width / height)
        return min(
            bucket_sizes(self.size, self.step),
            key=lambda b: (abs(math.log(b.width / b.height) - ratio), -b.width * b.height),
        )


@cache
def bucket_sizes(size: int, step: int) -> tuple[Size, ...]:
    """Return the sizes for a square of this side, ordered by width; the square alone when the step is 0 or longer than its side."""
    if step == 0 or step > size:
        return (Size(size, size),)
    least, most = max(step, size // 2 // step * step), size * 2
    side = size // step * step
    found = {Size(side, side)}
    for width in range(least, most + 1, step):
        height = min(most, size**2 // width) // step * step
        if height >= least:
            found |= {Size(width, height), Size(height, width)}
    return tuple(sorted(found))
