"""Reading the recorded facts in `tests/golden/`; where they come from is told in its README."""

import gzip
import json
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def golden(name):
    """Return the content of one gzipped JSON file."""
    return json.loads(gzip.decompress((GOLDEN / f"{name}.json.gz").read_bytes()))


def shapes_of(keys):
    """Return shapes as a header tells them."""
    return {key: tuple(shape) for key, shape in keys.items()}
