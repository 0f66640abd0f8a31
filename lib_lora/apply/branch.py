"""The side branch: what the networks of one layer add to its output, without a change to its weight.

The networks that have a low-rank form are stacked by rank: y += ((x A^T) * s) B^T with A (sum of ranks, in), B (out, sum of ranks) and
s a view into one flat buffer of strengths. A convolution does the same with its kernel in A, s on the channels and a 1x1 B.
The others add strength * output. By linearity both equal the layer with W + sum of strength * delta.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from lib_lora.errors import UsageError
from lib_lora.networks.contract import LayerNetwork, LayerShape, LowRank, Tensors, apply_weight


class Strengths:
    """The strength of every slot, and its copies as the branches need them: one flat buffer per device and dtype.

    A slot is one network on one group of components. Strengths are 0 until they are set.
    """

    def __init__(self, slots: int) -> None:
        self.values = (0.0,) * slots
        self._owners = torch.empty(0, dtype=torch.long)  # (flat,) the slot of each element
        self._buffers: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def reserve(self, slots: Sequence[int]) -> slice:
        """Return the place of new elements that follow these slots; all are reserved before the first `view`."""
        start = len(self._owners)
        self._owners = torch.cat([self._owners, torch.tensor(slots, dtype=torch.long)])
        return slice(start, len(self._owners))

    def set(self, values: Sequence[float]) -> None:
        """Take the strength of every slot, with one write to each buffer."""
        self.values = tuple(values)
        for buffer in self._buffers.values():
            self._write(buffer)

    def clear(self) -> None:
        """Switch every branch off; buffers are not written, for no branch reads them now."""
        self.values = (0.0,) * len(self.values)

    def view(self, place: slice, like: Tensor) -> Tensor:
        """Return the elements at a place, on the device and in the dtype of `like`."""
        key = (like.device, like.dtype)
        if key not in self._buffers:
            self._buffers[key] = torch.empty(len(self._owners), device=key[0], dtype=key[1])
            self._write(self._buffers[key])
        return self._buffers[key][place]

    def _write(self, buffer: Tensor) -> None:
        buffer.copy_(torch.tensor(self.values, dtype=buffer.dtype)[self._owners])


class Branch:
    """The networks of one live layer, each with its slot.

    Tensors are held here and not by the module; they follow the device and the dtype of the input. Raises UsageError for a network
    type that has no form without the layer's whole weight.
    """

    def __init__(
        self, layer: nn.Module, networks: Sequence[tuple[int, LayerNetwork]], strengths: Strengths
    ) -> None:
        self._strengths = strengths
        self._slots = [slot for slot, _ in networks]
        base = layer.get_parameter("weight").detach()
        shape = LayerShape(tuple(base.shape))
        factors = [(slot, network, _low_rank(network, shape)) for slot, network in networks]
        self._stack = _Stack(
            [(slot, low_rank) for slot, _, low_rank in factors if low_rank is not None], strengths
        )
        self._others = [
            _Other(slot, network, base, strengths)
            for slot, network, low_rank in factors
            if low_rank is None
        ]

    @property
    def active(self) -> bool:
        """Tell whether any strength is not 0 at this evaluation."""
        return any(self._strengths.values[slot] for slot in self._slots)

    def added(self, layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return what the networks add to the layer's own output y for input x."""
        parts = [other.output(layer, x, y) for other in self._others]
        if self._stack.ranks:
            parts.append(self._stack.output(layer, x))
        return sum(parts[1:], parts[0])


def _low_rank(network: LayerNetwork, shape: LayerShape) -> LowRank | None:
    form = network.type.low_rank
    return None if form is None else form(network.tensors, shape)


class _Moving:
    """Tensors with a copy on the device and in the dtype of the latest input.

    Single numbers stay as they are: rounded, an alpha would change the scale, and reading it from a GPU would stop the step.
    """

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._copies: Tensors = {}
        self._like: tuple[torch.device, torch.dtype] | None = None

    def to(self, x: Tensor) -> Tensors:
        if self._like != (x.device, x.dtype):
            self._like = (x.device, x.dtype)
            self._copies = {
                suffix: tensor.to(x) if tensor.dim() else tensor
                for suffix, tensor in self._tensors.items()
            }
        return self._copies


class _Stack:
    """The low-rank networks of a layer as one product."""

    def __init__(self, factors: Sequence[tuple[int, LowRank]], strengths: Strengths) -> None:
        self.ranks = [len(low_rank.down) for _, low_rank in factors]
        slots = [slot for slot, low_rank in factors for _ in low_rank.down]
        self._strengths, self._place = strengths, strengths.reserve(slots)
        if factors:
            down = torch.cat([low_rank.down for _, low_rank in factors])  # (sum R, in[, kh, kw])
            up = torch.cat([low_rank.up for _, low_rank in factors], dim=1)  # (out, sum R)
            self._tensors = _Moving({"down": down, "up": up})

    def output(self, layer: nn.Module, x: Tensor) -> Tensor:
        tensors = self._tensors.to(x)
        strengths = self._strengths.view(self._place, x)  # (sum R,)
        hidden = apply_weight(layer, x, tensors["down"])
        if isinstance(layer, nn.Conv2d):
            return functional.conv2d(
                hidden * strengths[:, None, None], tensors["up"][:, :, None, None]
            )
        return functional.linear(hidden * strengths, tensors["up"])


class _Other:
    """A network without a low-rank form on its layer.

    What it computes once depends on the layer's weight as it is now: whoever changes that weight builds the branch anew.
    """

    def __init__(
        self, slot: int, network: LayerNetwork, base: Tensor, strengths: Strengths
    ) -> None:
        kind, tensors = network.type, network.tensors
        if kind.output is None:
            raise UsageError(f"Networks of the type {kind.label} cannot be applied live.")
        self._output = kind.output
        if kind.prepare is not None:
            tensors = kind.prepare(tensors, base, LayerShape(tuple(base.shape)))
        self._tensors = _Moving(tensors)
        self._strengths, self._place = strengths, strengths.reserve([slot])

    def output(self, layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        added = self._output(self._tensors.to(x), x, layer, y)
        return added * self._strengths.view(self._place, x)
