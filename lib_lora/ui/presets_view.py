"""The presets as the page offers them."""

from __future__ import annotations

from typing import Any

DEFAULTS = {"id": "", "label": "Defaults", "help": "", "settings": {}}


def presets() -> list[dict[str, Any]]:
    """Return the presets, each with the fields in which it differs from the defaults."""
    return [DEFAULTS]
