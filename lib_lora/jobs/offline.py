"""The environment that keeps the model libraries off the hub and quiet. Of the standard library, since `loom.py` reads it."""

from __future__ import annotations

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DIFFUSERS_VERBOSITY": "error",
    "TRANSFORMERS_VERBOSITY": "error",
}
