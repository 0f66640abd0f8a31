"""Tells whether a picture shows a donut: the strongly coloured ring of icing must enclose a hole.

The threshold follows from how donuts are drawn and was fixed before any picture had been generated: a hole at least half as wide
as the drawn one counts. Scenes of the base model have no holes at all.
"""

from __future__ import annotations

from PIL.Image import Image

from lib_lora.demo.concepts import ICING_INNER, ICING_OUTER
from lib_lora.demo.measure import hole_share

DRAWN_HOLE_SHARE = (ICING_INNER / ICING_OUTER) ** 2
HOLE_SHARE_THRESHOLD = DRAWN_HOLE_SHARE / 4


def shows_donut(picture: Image) -> bool:
    """Tell whether the shape in a picture has a hole of at least a quarter of a drawn donut's area."""
    return hole_share(picture) >= HOLE_SHARE_THRESHOLD
