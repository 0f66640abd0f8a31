"""What a network type is: a frozen record of pure functions over `{suffix: tensor}`.

`delta` is the one formula of a type. Training differentiates it, live application and merging call it. `output` is an optional
cheaper path through the same formula and must equal it. Suffixes are kohya's (`lora_down.weight`, `alpha`, ...); `formats`
translates every other dialect into them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Tensors = Mapping[str, Tensor]
LayerKind = Literal["linear", "conv", "norm"]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of one logical weight: (out, in) of a linear layer, (out, in, kh, kw) of a convolution, (width,) of a norm."""

    weight: tuple[int, ...]

    @property
    def kind(self) -> LayerKind:
        """Name the kind of layer that the number of dimensions implies."""
        return {1: "norm", 2: "linear", 4: "conv"}[len(self.weight)]  # type: ignore[return-value]

    @property
    def kernel(self) -> tuple[int, ...]:
        """Return (kh, kw) of a convolution and () of anything else."""
        return self.weight[2:]


@dataclass(frozen=True, slots=True)
class Delta:
    """What a network adds to a layer at strength 1; `None` is an untouched tensor."""

    weight: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LowRank:
    """A delta as a product, with the scale folded into `up`.

    down: (rank, in) or (rank, in, kh, kw); up: (out, rank). The live branch stacks these of all networks of a layer.
    """

    down: Tensor
    up: Tensor


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """The choices of a new network on one layer."""

    rank: int = 16
    alpha: float = 16.0
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkType:
    """One network type.

    signature: the suffixes that every file of the type holds on a layer.
    optional: suffixes it may hold besides.
    kinds: the kinds of layers it can change.
    delta(tensors, base, shape): the formula; base is the unmodified weight, which weight-free types ignore. Differentiable.
    create(shape, options, generator): fresh tensors whose delta is 0; `None` when the type cannot be trained.
    trainable: the suffixes that training changes.
    output(tensors, x, module): what the delta adds to the module's output for input x, without building the delta; `None` when
        there is no cheaper path.
    low_rank(tensors, shape): the delta as a product, `None` when it has none.
    extract(delta, rank): the tensors whose delta is nearest to `delta`; `None` where undefined.
    """

    id: str
    label: str
    signature: frozenset[str]
    optional: frozenset[str]
    kinds: frozenset[LayerKind]
    trainable: frozenset[str]
    delta: Callable[[Tensors, Tensor, LayerShape], Delta]
    create: Callable[[LayerShape, CreateOptions, torch.Generator], dict[str, Tensor]] | None = None
    output: Callable[[Tensors, Tensor, nn.Module], Tensor] | None = None
    low_rank: Callable[[Tensors, LayerShape], LowRank] | None = None
    extract: Callable[[Tensor, int], dict[str, Tensor]] | None = None


@dataclass(frozen=True, slots=True)
class LayerNetwork:
    """The tensors of one network on one layer, with the type that reads them."""

    type: NetworkType
    tensors: Tensors


def apply_weight(module: nn.Module, x: Tensor, weight: Tensor) -> Tensor:
    """Run the operation of a live linear or convolution layer with another weight and no bias.

    A convolution keeps the module's stride, padding, padding mode, dilation and groups as they are at this moment (the host's
    Tiling switch changes the padding mode between pictures). Raises TypeError for any other module.
    """
    if isinstance(module, nn.Conv2d):
        return module._conv_forward(x, weight, None)
    if isinstance(module, nn.Linear):
        return functional.linear(x, weight)
    raise TypeError(f"{type(module).__name__} is neither a linear layer nor a convolution")
