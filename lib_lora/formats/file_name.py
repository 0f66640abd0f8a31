"""Names of files that every system can hold, so that what is written here can be taken anywhere."""

from __future__ import annotations

import os
import re

# Windows' characters and devices, hidden files, ends that Windows drops.
FORBIDDEN = re.compile(
    r"^\.|[\x00-\x1f<>:\"|?*]|[ .]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE
)
MAX_BYTES = 200


def fits_every_system(name: str) -> bool:
    """Tell whether a file name, without its folder, can be had on every system, with room for what is put around it."""
    return FORBIDDEN.search(name) is None and len(os.fsencode(name)) <= MAX_BYTES
