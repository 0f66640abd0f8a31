"""The metadata of a merged checkpoint: how it came to be, so that it can be made again.

`sd_merge_recipe` and `sd_merge_models` are the WebUI's own keys (its checkpoint merger writes them, its checkpoint cards show
them); `modelspec.merged_from` is ModelSpec 1.0.1's.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from lib_lora.formats.hashes import file_sha256
from lib_lora.formats.metadata import base_facts
from lib_lora.formats.peft_folder import pieces_of
from lib_lora.merge.plan import MergePlan

# They tell of the base's own bytes, not of the merged file's.
STALE = ("modelspec.hash_sha256", "modelspec.date", "modelspec.thumbnail", "sshs_model_hash")


def merged_metadata(plan: MergePlan, title: str) -> dict[str, str]:
    """Return the base's metadata without what no longer holds, with the recipe; every file is read once for its sha256."""
    kept = {key: text for key, text in plan.base.header.metadata.items() if key not in STALE}
    base = base_facts(plan.base.path)
    files = [(choice, _sha256(choice.file, plan)) for choice in plan.choices]
    recipe = {
        "type": "lora-loom",
        "version": 1,
        "primary_model_hash": base.sha256,
        "interp_method": "add LoRA",
        "networks": [
            {
                "name": choice.file.stem,
                "sha256": sha256,
                "unet": choice.strength,
                "te": choice.text_encoders,
            }
            for choice, sha256 in files
        ],
        "save_dtype": plan.dtype,
        "mode": plan.mode,
    }
    models: dict[str, object] = {
        base.sha256: {
            "name": base.name,
            "legacy_hash": base.autov1,
            "sd_merge_recipe": kept.get("sd_merge_recipe"),
        }
    }
    models |= {sha256: {"name": choice.file.name, "type": "lora"} for choice, sha256 in files}
    titles = (plan.base.path.stem, *(choice.file.stem for choice in plan.choices))
    return kept | {
        "format": "pt",
        "modelspec.title": title,
        "modelspec.merged_from": ",".join(titles),
        "sd_merge_recipe": json.dumps(recipe, sort_keys=True),
        "sd_merge_models": json.dumps(models, sort_keys=True),
    }


def _sha256(network: Path, plan: MergePlan) -> str:
    """Return the sha256 of a network's file, or of the hashes of its files in a folder of several."""
    pieces = pieces_of(network, plan.base.family.components)
    hashes = [file_sha256(piece.file) for piece in pieces]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
