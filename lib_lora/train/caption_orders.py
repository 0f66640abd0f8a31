"""The orders that the tags of a caption are trained in, so that a network does not learn one order by heart."""

from __future__ import annotations

import torch

from lib_lora.train.objective import stream


def in_orders(caption: str, count: int, keep: int, seed: int) -> tuple[str, ...]:
    """Return a caption in so many drawn orders of its tags, which commas part; as it is where the count is 0.

    keep: how many tags stay in front. The same seed and caption give the same orders.
    """
    tags = [tag.strip() for tag in caption.split(",")]
    if not count or len(tags) < 2:
        return (caption,) * max(1, count)
    front, rest = tags[:keep], tags[keep:]
    found = []
    for number in range(count):
        order = torch.randperm(len(rest), generator=stream(seed, "tags", caption, number))
        found.append(", ".join([*front, *(rest[place] for place in order.tolist())]))
    return tuple(found)
