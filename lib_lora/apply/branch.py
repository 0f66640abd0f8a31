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

    Tensors are held here and not by the module; they follow the device and the dtype in which the layer computes. Raises UsageError
    for a network type that has no form without the layer's whole weight.
    """

    def __init__(
        self, layer: nn.Module, networks: Sequence[tuple[int, LayerNetwork]], strengths: Strengths
    ) -> None:
        self._strengths = strengths
        self._slots = [slot for slot, _ in networks]
        base = layer.get_parameter("weight").detach()
        products = [product_shape(network, tuple(base.shape)) for _, network in networks]
        stacked = [
            (slot, network, product)
            for (slot, network), product in zip(networks, products, strict=True)
            if product is not None
        ]
        self._stack = _Stack(stacked, base, strengths) if stacked else None
        self._others = [
            _Other(slot, network, base, strengths)
            for (slot, network), product in zip(networks, products, strict=True)
            if product is None
        ]

    @property
    def active(self) -> bool:
        """Tell whether any strength is not 0 in the rows that are computed now."""
        return self._strengths.acts(self._slots)

    def add(self, layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return the layer's own output y for input x with what the networks add, in the dtype of y.

        The sum is written into y itself where no gradient is asked for.
        """
        acting = [part for part in self._others if self._strengths.acts(part.place.slots)]
        total = y
        for part in acting:  # each sees the layer's own output
            total = total + part.output(layer, x, y).to(y.dtype)
        if self._stack is None or not self._strengths.acts(self._stack.place.slots):
            return total
        return self._stack.add(layer, x, total)


def product_shape(network: LayerNetwork, weight: tuple[int, ...]) -> LowRank | None:
    """Return the product that a network is on a layer with a weight of this shape, without numbers; `None` when it is none."""
    form = network.type.low_rank
    return None if form is None else form(without_numbers(network), LayerShape(weight))


def without_numbers(network: LayerNetwork) -> dict[str, Tensor]:
    """Return the tensors of a network without memory, to learn shapes from; alpha and its like keep their value, as plain numbers."""
    found = {}
    for suffix, tensor in network.tensors.items():
        if tensor.numel() == 1 and suffix not in network.type.trainable:
            found[suffix] = tensor.reshape(())
        else:
            found[suffix] = _exact(tensor.to("meta"))
    return found


def _all_exact(tensors: Tensors) -> Tensors:
    return {suffix: _exact(tensor) for suffix, tensor in tensors.items()}


def _exact(tensor: Tensor) -> Tensor:
    """Return numbers in float32 at least, indices and flags as they are."""
    return at_least_float32(tensor) if tensor.is_floating_point() else tensor


class _Moving:
    """Tensors that go to the device and the dtype of what is computed now; there is one set of them.

    Single numbers stay where and what they are: rounded, an alpha would change the scale, and reading it from a GPU would stop the
    step. They are copied, for as pieces of a file's memory they would keep all of it.
    """

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._like: tuple[torch.device, torch.dtype] | None = None

    def to(self, x: Tensor) -> Tensors:
        if self._like != (x.device, x.dtype):
            self._like = (x.device, x.dtype)
            self._tensors = {
                suffix: tensor.to(x) if tensor.dim() else tensor.clone()
                for suffix, tensor in self._tensors.items()
            }
        return self._tensors


class _Stack:
    """The low-rank networks of a layer as one product, made in the dtype of the layer's first output.

    Until then the networks are held as they came, from then on nothing but the product.
    """

    def __init__(
        self,
        networks: Sequence[tuple[int, LayerNetwork, LowRank]],
        base: Tensor,
        strengths: Strengths,
    ) -> None:
        self._networks = [network for _, network, _ in networks]
        self._shape = LayerShape(tuple(base.shape))
        slots = [slot for slot, _, product in networks for _ in range(len(product.down))]
        self._strengths, self.place = strengths, strengths.reserve(slots)
        self._tensors: _Moving | None = None

    def add(self, layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Return y with what the product adds for input x, in y itself where no gradient is asked for."""
        tensors = self._in_dtype_of(y)
        down, up = tensors["down"], tensors["up"]
        hidden = apply_weight(layer, x.to(y.dtype), down)
        strengths = self._strengths.view(self.place, y)  # (sum R,) or (rows, sum R)
        if isinstance(layer, nn.Conv2d):
            return _add_channels(y, hidden.mul_(strengths[..., None, None]), up)
        if strengths.dim() == 2:
            strengths = strengths.unflatten(0, (-1, *[1] * (hidden.dim() - 2)))
        return _add_columns(y, hidden.mul_(strengths), up)

    def _in_dtype_of(self, y: Tensor) -> Tensors:
        if self._tensors is None:
            self._tensors = _Moving(self._stacked(y))
            self._networks.clear()
        return self._tensors.to(y)

    def _stacked(self, y: Tensor) -> Tensors:
        rank = self.place.elements.stop - self.place.elements.start
        down = y.new_empty(rank, *self._shape.weight[1:])  # (sum R, in[, kh, kw])
        up = y.new_empty(self._shape.weight[0], rank)  # (out, sum R)
        start = 0
        for network in self._networks:
            assert network.type.low_rank is not None  # what has none is not stacked
            product = network.type.low_rank(_all_exact(network.tensors), self._shape)
            assert product is not None
            stop = start + len(product.down)
            down[start:stop], up[:, start:stop] = product.down, product.up
            start = stop
        return {"down": down, "up": up}


def _add_columns(y: Tensor, hidden: Tensor, up: Tensor) -> Tensor:
    """Return y (..., out) + hidden (..., ranks) up^T with one pass over y, where it may be written."""
    if y.requires_grad or not y.is_contiguous():
        return y + functional.linear(hidden, up)
    y.view(-1, y.shape[-1]).addmm_(hidden.flatten(0, -2), up.t())
    return y


def _add_channels(y: Tensor, hidden: Tensor, up: Tensor) -> Tensor:
    """Return y (rows, out, h, w) + up hidden (rows, ranks, h, w) with one pass over y, where it may be written."""
    if y.requires_grad or not y.is_contiguous():
        return y + functional.conv2d(hidden, up[:, :, None, None])
    y.view(*y.shape[:2], -1).baddbmm_(up.expand(len(y), *up.shape), hidden.flatten(2))
    return y


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
