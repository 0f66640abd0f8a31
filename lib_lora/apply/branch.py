"""The side branch: what the networks of one layer add to its output, without a change to its weight.

The networks that have a low-rank form are stacked by rank: y += ((x A^T) * s) B^T with A (sum of ranks, in), B (out, sum of ranks) and
s a view into one buffer of strengths, for all rows or for each. A convolution does the same with its kernel in A, s on the channels
and a 1x1 B. The others add strength * output. By linearity both equal the layer with W + sum of strength * delta.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from lib_lora.apply.strengths import Strengths
from lib_lora.errors import UsageError
from lib_lora.networks.contract import (
    LayerNetwork,
    LayerShape,
    LowRank,
    Tensors,
    apply_weight,
    at_least_float32,
)


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
        factors = [(slot, network, _low_rank(network, base)) for slot, network in networks]
        stacked = [(slot, low_rank) for slot, _, low_rank in factors if low_rank is not None]
        self._parts: list[_Stack | _Other] = [
            _Other(slot, network, base, strengths)
            for slot, network, low_rank in factors
            if low_rank is None
        ]
        if stacked:
            self._parts.append(_Stack(stacked, strengths))

    @property
    def active(self) -> bool:
        """Tell whether any strength is not 0 in the rows that are computed now."""
        return self._strengths.acts(self._slots)

    def added(self, layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return what the networks add to the layer's own output y for input x, in the dtype of x; some network must be active."""
        acting = (part for part in self._parts if self._strengths.acts(part.place.slots))
        first, *others = (part.output(layer, x, y) for part in acting)
        return sum(others, first)


def _low_rank(network: LayerNetwork, base: Tensor) -> LowRank | None:
    form = network.type.low_rank
    if form is None:
        return None
    return form(_all_exact(network.tensors), LayerShape(tuple(base.shape)))


def _all_exact(tensors: Tensors) -> Tensors:
    return {suffix: _exact(tensor) for suffix, tensor in tensors.items()}


def _exact(tensor: Tensor) -> Tensor:
    """Return numbers in float32 at least, indices and flags as they are."""
    return at_least_float32(tensor) if tensor.is_floating_point() else tensor


class _Moving:
    """Tensors that go to the device and the dtype of the latest input; there is one set of them.

    Single numbers stay as they are: rounded, an alpha would change the scale, and reading it from a GPU would stop the step.
    """

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._like: tuple[torch.device, torch.dtype] | None = None

    def to(self, x: Tensor) -> Tensors:
        if self._like != (x.device, x.dtype):
            self._like = (x.device, x.dtype)
            self._tensors = {
                suffix: tensor.to(x) if tensor.dim() else tensor
                for suffix, tensor in self._tensors.items()
            }
        return self._tensors


class _Stack:
    """The low-rank networks of a layer as one product."""

    def __init__(self, factors: Sequence[tuple[int, LowRank]], strengths: Strengths) -> None:
        slots = [slot for slot, low_rank in factors for _ in low_rank.down]
        self._strengths, self.place = strengths, strengths.reserve(slots)
        down = torch.cat([low_rank.down for _, low_rank in factors])  # (sum R, in[, kh, kw])
        up = torch.cat([low_rank.up for _, low_rank in factors], dim=1)  # (out, sum R)
        self._tensors = _Moving({"down": down, "up": up})

    def output(self, layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        tensors = self._tensors.to(x)
        strengths = self._strengths.view(self.place, x)  # (sum R,) or (rows, sum R)
        hidden = apply_weight(layer, x, tensors["down"])
        if isinstance(layer, nn.Conv2d):
            scaled = hidden * strengths[..., None, None]
            return functional.conv2d(scaled, tensors["up"][:, :, None, None])
        if strengths.dim() == 2:
            strengths = strengths.unflatten(0, (-1, *[1] * (hidden.dim() - 2)))
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
            shape = LayerShape(tuple(base.shape))
            tensors = kind.prepare(_all_exact(tensors), _exact(base), shape)
        self._tensors = _Moving(tensors)
        self._strengths, self.place = strengths, strengths.reserve([slot])

    def output(self, layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        # A host that casts by itself hands over an output in another dtype than the input's.
        added = self._output(self._tensors.to(x), x, layer, y.to(x.dtype))
        strengths = self._strengths.view(self.place, x)  # (1,) or (rows, 1)
        return added * strengths.reshape(-1, *[1] * (added.dim() - 1))
