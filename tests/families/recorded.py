"""The recorded checkpoints of every family but SD1.5, and small variants of them.

Each mapped tensor is recorded as [diffusers key, original key, original shape, operation]; the shape is told where a key first
appears, the operation where there is one, the original key is null where the converter reads none.
"""

import re
from functools import cache

from tests.golden_data import golden

RECORDED = golden("other_families")
NAMES = tuple(RECORDED)
LAST_BLOCK = {"sd3-medium": 23, "sd35-medium": 23, "sd35-large": 37}


@cache
def shapes(name):
    """Return the shapes of a recorded checkpoint, as a header tells them."""
    mapped = {
        row[1]: tuple(row[2])
        for rows in RECORDED[name]["components"].values()
        for row in rows
        if row[2] is not None
    }
    return mapped | {key: tuple(shape) for key, shape in RECORDED[name]["unmapped"].items()}


def places(name):
    """Return "component.diffusers key" -> (original key, operation) as the recorded converter reads them."""
    return {
        f"{component}.{row[0]}": (row[1], row[3] if len(row) > 3 else {})
        for component, rows in RECORDED[name]["components"].items()
        for row in rows
    }


def small(name):
    """Return a checkpoint of the same structure: an eighth of the widths, one or two blocks of each kind."""
    thin = {}
    for key, shape in shapes(name).items():
        kept = _shallow(key, LAST_BLOCK.get(name))
        if kept is not None:
            thin[kept] = tuple(size // 8 if size > 16 else size for size in shape)
    return thin


def _shallow(key, last):
    """Return the key in a model of fewer blocks, `None` for those of a block that is left out; the last joint block stays last."""
    joint = re.search(r"joint_blocks\.(\d+)\.", key)
    if joint:
        number = int(joint[1])
        return (
            key.replace(joint[0], f"joint_blocks.{number and 1}.") if number in (0, last) else None
        )
    deep = re.search(r"(?:transformer_blocks|resblocks|layers|encoder\.block)\.(\d+)\.", key)
    return None if deep and int(deep[1]) > 1 else key
