"""The strength of every network at this evaluation, for the whole batch or for each of its rows.

A host calls the UNet once for all rows or for one part after another. Whoever hooks that call tells it here by `advance`; a layer then
gets the strengths of the rows that it computes. Layers may split a row into several (HyperTile cuts a picture into tiles that
follow each other), so that a multiple of the rows is as good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

log = logging.getLogger(__name__)

MIXED = (
    "A layer computed rows that could not be matched with the prompts of the batch;"
    " there all rows had the strength of the first prompt."
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the strengths of some slots lie in the buffers, one element for each number given to `reserve`."""

    elements: slice
    slots: frozenset[int]


class Strengths:
    """The strength of every slot, and its copies as the branches need them: one buffer per device and dtype.

    A slot is one network on one group of components. Strengths are 0 until they are set. warn: takes the sentence for the person when
    the rows of a layer cannot be told apart.
    """

    def __init__(self, slots: int, warn: Callable[[str], None] = log.warning) -> None:
        self._none = (0.0,) * slots
        self._warn = warn
        self._owners = torch.empty(0, dtype=torch.long)  # (flat,) the slot of each element
        self._buffers: dict[tuple[torch.device, torch.dtype], Tensor] = {}  # (rows, flat)
        self._done = 0  # rows that the calls of this evaluation have computed
        self.clear()

    def reserve(self, slots: Sequence[int]) -> Place:
        """Return the place of new elements that follow these slots; all are reserved before the first `view`."""
        start = len(self._owners)
        self._owners = torch.cat([self._owners, torch.tensor(slots, dtype=torch.long)])
        return Place(slice(start, len(self._owners)), frozenset(slots))

    def set(self, *rows: Sequence[float]) -> None:
        """Take the strength of every slot, for all rows or for each row of the batch, with one write to each buffer."""
        self._take([tuple(row) for row in rows])
        for key in self._buffers:
            self._write(key)

    def clear(self) -> None:
        """Switch every branch off; buffers are not written, for no branch reads them now."""
        self._take([self._none])

    def advance(self, count: int) -> None:
        """Turn to the rows that follow, of which the UNet now computes so many; so many as there are begin with the first."""
        if len(self._rows) == 1:
            return
        start = 0 if count == len(self._rows) else self._done
        self._done = start + count
        if count and self._done <= len(self._rows):
            self._turn_to(start, count)
        else:
            self._warn(MIXED)
            self._turn_to(0, 1)

    def acts(self, slots: Collection[int]) -> bool:
        """Tell whether the strength of any of these slots is not 0 in the rows that are computed now."""
        return not self._acting.isdisjoint(slots)

    def of(self, slot: int) -> float:
        """Return the strength of a slot, for what computes all rows alike; a sentence is told where two of them differ."""
        if slot in self._varying:
            self._warn(MIXED)
        return self._rows[self._start][slot]

    def view(self, place: Place, x: Tensor) -> Tensor:
        """Return the elements at a place for a layer's input x, on its device and in its dtype.

        (elements,), or (rows of x, elements) where two rows differ.
        """
        key = (x.device, x.dtype)
        if key not in self._buffers:
            self._write(key)
        strengths = self._buffers[key][:, place.elements]
        if place.slots.isdisjoint(self._varying):
            return strengths[self._start]
        if len(x) % self._count:
            self._warn(MIXED)
            return strengths[0]
        strengths = strengths[self._start : self._start + self._count]
        parts = len(x) // self._count
        return strengths if parts == 1 else strengths.repeat_interleave(parts, 0)

    def _take(self, rows: list[tuple[float, ...]]) -> None:
        self._rows = rows[:1] if len({*rows}) == 1 else rows
        self._done = 0
        self._turn_to(0, len(self._rows))

    def _turn_to(self, start: int, count: int) -> None:
        """Take these rows for those that are computed now."""
        self._start, self._count = start, count
        columns = [{*column} for column in zip(*self._rows[start : start + count], strict=True)]
        self._acting = frozenset(slot for slot, found in enumerate(columns) if any(found))
        self._varying = frozenset(slot for slot, found in enumerate(columns) if len(found) > 1)

    def _write(self, key: tuple[torch.device, torch.dtype]) -> None:
        """Bring the strengths of every row into the buffer of a device and dtype."""
        device, dtype = key
        values = torch.tensor(self._rows, dtype=dtype)[:, self._owners]
        if key not in self._buffers or self._buffers[key].shape != values.shape:
            self._buffers[key] = torch.empty(values.shape, device=device, dtype=dtype)
        self._buffers[key].copy_(values)
