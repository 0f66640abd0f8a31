"""What a network type is: a frozen record of pure functions over `{suffix: tensor}`.

`delta` is the one formula of a type. Training differentiates it, live application and merging call it. `output` is an optional
cheaper path through the same formula and must equal it. Suffixes are kohya's and LyCORIS' (`lora_down.weight`, `hada_w1_a`, `alpha`,
...); `formats` translates every other dialect into them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

ALPHA = "alpha"

Tensors = Mapping[str, Tensor]
Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
"""The shapes of the tensors of one layer by suffix, as a file's header tells them."""
LayerKind = Literal["linear", "conv", "norm"]
KIND_OF: Mapping[int, LayerKind] = {1: "norm", 2: "linear", 4: "conv"}  # by dimensions


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of one logical weight: (out, in) of a linear layer, (out, in, kh, kw) of a convolution, (width,) of a norm."""

    weight: tuple[int, ...]

    @property
    def kind(self) -> LayerKind:
        """Name the kind of layer that the number of dimensions implies; raises KeyError where no kind has so many."""
        return KIND_OF[len(self.weight)]

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
    """The choices of a new network on one layer; a type reads those that concern it.

    rank_stabilized: scale = alpha / sqrt(rank) instead of alpha / rank.
    tucker: give a convolution's kernel a core of its own, in the types that can.
    factor: the largest size of a LoKr's smaller factor, -1 for the most even split.
    base: the layer's weight, from which a DoRA takes its first magnitudes. per_input: one magnitude per input column, not per
        output row.
    """

    rank: int = 16
    alpha: float = 16.0
    dtype: torch.dtype = torch.float32
    rank_stabilized: bool = False
    tucker: bool = False
    factor: int = -1
    base: Tensor | None = None
    per_input: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkType:
    """One network type.

    signatures: sets of suffixes, one of which every file of the type holds on a layer.
    optional: suffixes it may hold besides.
    kinds: the kinds of layers it can change.
    trainable: the suffixes that training changes, where a network holds them.
    delta(tensors, base, shape): the formula; base is the unmodified weight, which weight-free types ignore. Differentiable.
    misfit(shapes, layer): why tensors of these shapes are no network of this type, or not one for a layer of this shape (`None` where
        no base is known); a piece of a sentence, `None` when they fit. From the shapes alone, whatever a file claims.
    rank(shapes): what alpha is divided by; `None` in types, and for tensors, without a rank.
    create(shape, options, generator): fresh tensors whose delta is 0; `None` when the type cannot be trained.
    output(tensors, x, module, y): what the delta adds to the module's output y for input x, without building the delta; `None`
        when there is no cheaper path. Differentiable. Takes what `prepare` returns as well.
    prepare(tensors, base, shape): the tensors with everything computed that stays the same while tensors and base do, in float32 at
        least; live use calls it once, training at every step. Differentiable; `None` when nothing can be saved.
    low_rank(tensors, shape): the delta as a product; returns `None` for tensors whose product costs more than `output`.
    extract(delta, rank): the tensors whose delta is nearest to `delta`; `None` where undefined.
    reads_base: whether the delta depends on the base.
    bias: the suffix whose presence tells that the delta has a part for the layer's bias, so that a plan knows it without computing;
        `None` in types that leave the bias alone.
    """

    id: str
    label: str
    signatures: tuple[frozenset[str], ...]
    optional: frozenset[str]
    kinds: frozenset[LayerKind]
    trainable: frozenset[str]
    delta: Callable[[Tensors, Tensor, LayerShape], Delta]
    misfit: Callable[[Shapes, Shape | None], str | None]
    rank: Callable[[Shapes], int | None] | None = None
    create: Callable[[LayerShape, CreateOptions, torch.Generator], dict[str, Tensor]] | None = None
    output: Callable[[Tensors, Tensor, nn.Module, Tensor], Tensor] | None = None
    prepare: Callable[[Tensors, Tensor, LayerShape], dict[str, Tensor]] | None = None
    low_rank: Callable[[Tensors, LayerShape], LowRank | None] | None = None
    extract: Callable[[Tensor, int], dict[str, Tensor]] | None = None
    reads_base: bool = False
    bias: str | None = None


@dataclass(frozen=True, slots=True)
class LayerNetwork:
    """The tensors of one network on one layer, with the type that reads them."""

    type: NetworkType
    tensors: Tensors


def misfit(kind: NetworkType, shapes: Shapes, layer: Shape | None) -> str | None:
    """Return why tensors of these shapes cannot be a network of this type on a layer of this shape, `None` when they can."""
    beyond = shapes.keys() - frozenset().union(*kind.signatures) - kind.optional
    if beyond:
        return f"{', '.join(sorted(beyond))} on a {kind.label} layer is not supported yet"
    if math.prod(shapes.get(ALPHA, ())) != 1:
        return f"{ALPHA} {shapes[ALPHA]} is not one number"
    if layer is not None and KIND_OF.get(len(layer)) not in kind.kinds:
        return f"{kind.label} does not apply to a layer of shape {layer}"
    return kind.misfit(shapes, layer)


def claim_misfit(claimed: Shape, layer: Shape | None) -> str | None:
    """Return the reason when a delta of the claimed shape is none of a layer's: a 1x1 kernel more or less is no difference.

    A matrix may hold the kernel of a convolution in its columns.
    """
    if layer is None or _without_point(claimed) == _without_point(layer):
        return None
    if len(claimed) == 2 and claimed[0] == layer[0] and claimed[1] == math.prod(layer[1:]):
        return None
    return f"its delta has the shape {claimed}, the layer {layer}"


def _without_point(shape: Shape) -> Shape:
    return shape[:2] if math.prod(shape[2:]) == 1 else shape


def product_claim(a: Shape, b: Shape, core: Shape | None = None) -> Shape | None:
    """Return the shape of what factors make, `None` when they make nothing.

    Without a core a is (out, rank) and b (rank, columns). With a core (r1, r2, kh, kw) LyCORIS stores a as (r1, out), b is (r2, in).
    """
    if len(a) != 2 or len(b) != 2:
        return None
    if core is None:
        return (a[0], b[1]) if a[1] == b[0] > 0 else None
    fits = len(core) == 4 and core[:2] == (a[0], b[0]) and 0 not in core
    return (a[1], b[1], *core[2:]) if fits else None


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return a tensor to compute with: smaller numbers are for storage, and torch has neither arithmetic nor promotion for fp8."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def shapes_of(tensors: Tensors) -> dict[str, Shape]:
    """Return the shapes of tensors in memory."""
    return {suffix: tuple(tensor.shape) for suffix, tensor in tensors.items()}


def scale_of(tensors: Tensors, rank: int | None) -> float:
    """Return alpha / rank; 1 when there is no rank, or no alpha, as every loader reads it."""
    alpha = tensors.get(ALPHA)
    return 1.0 if alpha is None or rank is None else float(alpha) / rank


def alpha_for(options: CreateOptions) -> Tensor:
    """Return the alpha to store, so that every reader's alpha / rank is the scale that the options ask for.

    The rank-stabilized scale is alpha / sqrt(rank): Kalajdzievski, 2023, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA".
    """
    return torch.tensor(
        options.alpha * (math.sqrt(options.rank) if options.rank_stabilized else 1.0)
    )


def without_bias(module: nn.Module, y: Tensor) -> Tensor:
    """Return the output y of a linear layer or a convolution without its bias: the product of weight and input."""
    bias = module.get_parameter("bias") if getattr(module, "bias", None) is not None else None
    if bias is None:
        return y
    return y - (bias[:, None, None] if isinstance(module, nn.Conv2d) else bias).to(y)


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


def apply_low_rank(module: nn.Module, x: Tensor, factors: LowRank) -> Tensor:
    """Run a live layer with a product instead of its weight: `down` as the layer runs its own, then `up` on the channels."""
    hidden = apply_weight(module, x, factors.down)
    if isinstance(module, nn.Conv2d):
        return functional.conv2d(hidden, factors.up[:, :, None, None])
    return functional.linear(hidden, factors.up)


def fold_core(core: Tensor, columns: Tensor) -> Tensor:
    """Return a Tucker core (r1, r2, kh, kw) times the factor of the input side (r2, in): (r1, in, kh, kw).

    The CP or Tucker form of a convolution (Kim et al., 2016; LyCORIS' use_tucker) is thereby a product of two factors again.
    """
    return torch.einsum("nmkl,mj->njkl", core, columns)
