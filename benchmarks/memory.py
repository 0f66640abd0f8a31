"""Whether a plan's weights and kept activations are those of a real UNet of Stable Diffusion 1.5's size.

Run as `python3 -m benchmarks.memory`. One forward and backward pass at 256 pixels on the CPU with a network of rank 16, without and
with gradient checkpointing; every storage that autograd saves is counted by itself. It takes 6 GB and a minute or two, and fails
when the plan is off by more than 5 %.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter

import torch

from lib_lora.families.costs import COSTS
from lib_lora.train.attach import attach, selected_layers
from lib_lora.train.base_model import live_modules
from lib_lora.train.memory import GB
from lib_lora.train.memory_parts import Activations, activations, component_bytes
from tests.train import small_models
from tests.train.asked import asked_config
from tests.train.saved import count_saved

SIZE, RANK = 256, 16
ALLOWED = 0.05
CHANNELS, CONTEXT, HEADS = (320, 640, 1280, 1280), 768, 8


def main() -> int:
    """Count, print and return 1 when the plan is off."""
    since = time.monotonic()
    # Random numbers for 860 million weights take longer than the passes, and count for nothing here.
    with torch.device("meta"):
        unet, facts = small_models.sd1(CHANNELS, CONTEXT, HEADS)
    unet.to_empty(device="cpu").requires_grad_(False).eval()
    for tensor in unet.state_dict().values():
        tensor.fill_(1e-3)
    config = asked_config(
        "base",
        "pictures",
        "out.safetensors",
        data={"size": SIZE},
        schedule={"batch": 1},
        network={"rank": RANK},
    )
    layers = selected_layers(facts.family, facts.layers, config.network)
    attached = attach(config.network, layers, live_modules({"unet": unet}, layers), 0)
    beside = [tensor for tensors in attached.tensors.values() for tensor in tensors.values()]
    given = small_models.inputs(unet, SIZE // 8, 1)
    saved = count_saved(unet, beside, lambda: unet(**given)[0].square().mean())
    told = activations(config, facts)
    weights = sum(tensor.untyped_storage().nbytes() for tensor in unet.state_dict().values())
    print(f"UNet of Stable Diffusion 1.5 at {SIZE} px, rank {RANK}, fp32")
    off = [
        _compare("weights", component_bytes(facts, ["unet"], "fp32"), weights),
        _compare("kept activations", told.whole, saved.total()),
        _compare("largest block computed again", told.largest_block, _largest_block(saved)),
    ]
    _tell_checkpointing(told)
    print(f"  {time.monotonic() - since:.0f} s")
    return int(any(off))


def _largest_block(saved: Counter[str]) -> int:
    """Return what the block that saves most saved of its own; its entry stays with what lies outside."""
    blocks: Counter[str] = Counter()
    for path, numbers in saved.items():
        if found := re.match(COSTS["unet"].block, path):
            blocks[found[0]] += numbers
    largest = max(blocks, key=lambda block: blocks[block])
    return blocks[largest] - saved[f"{largest}.norm1"]


def _tell_checkpointing(told: Activations) -> None:
    left = told.entries + told.largest_block
    print(f"  with gradient checkpointing: {left / GB:.3f} GB, {1 - left / told.whole:.0%} less")


def _compare(what: str, planned: int, counted: int) -> bool:
    difference = planned / counted - 1
    verdict = "within" if abs(difference) <= ALLOWED else "OFF BY MORE THAN"
    print(
        f"  {what}: planned {planned / GB:.3f} GB, counted {counted / GB:.3f} GB,"
        f" {difference:+.1%}, {verdict} {ALLOWED:.0%}"
    )
    return abs(difference) > ALLOWED


if __name__ == "__main__":
    sys.exit(main())
