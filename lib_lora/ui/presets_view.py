"""The presets as the page offers them."""

from __future__ import annotations

from typing import Any

from lib_lora.families.sizes import NATIVE_SIZE
from lib_lora.train.presets import PRESETS, preset_settings
from lib_lora.ui.form import form_texts

USUAL = "The defaults, at the size that the base model was made for."


def describe_presets() -> list[dict[str, Any]]:
    """Return the presets, the defaults first: for each family of base models the fields in which it differs from them."""
    usual = {family: {"data.size": str(size)} for family, size in NATIVE_SIZE.items()}
    return [
        {"id": "", "label": "Defaults", "help": USUAL, "settings": usual},
        *(
            {
                "id": name,
                "label": preset.label,
                "help": preset.sentence,
                "settings": {f: form_texts(preset_settings(name, f)) for f in NATIVE_SIZE},
            }
            for name, preset in PRESETS.items()
        ),
    ]
