"""The precisions of computation, the scaled loss of fp16, and frozen weights in eight bits.

fp16 holds no number below 6e-8, which gradients are: the loss is multiplied before the backward pass, and the gradients divided
after it (Micikevicius et al., 2018, "Mixed Precision Training"). Eight bits are E4M3 (Micikevicius et al., 2022, "FP8 Formats for
Deep Learning"): each row of a weight is divided by what brings its largest value to the largest of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input

DTYPES: Mapping[str, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
SMALL = torch.float8_e4m3fn
LEAST_SCALE = 1e-30  # for rows of zeros


def make_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler | None:
    """Return what scales the loss of a computation in fp16, `None` for the other precisions."""
    if precision != "fp16":
        return None
    # Before torch 2.3 there is one for CUDA alone.
    kind = getattr(torch.amp, "GradScaler", None)
    return kind(device.type) if kind else torch.cuda.amp.GradScaler()


def _brought_back(layer: SmallLinear | SmallConv2d) -> nn.Parameter:
    """Return a layer's weight in the dtype of computation."""
    return nn.Parameter(_whole(layer.small, layer.scale, layer.computes), requires_grad=False)


class SmallLinear(nn.Linear):
    """A frozen linear layer whose weight lies in eight bits; `weight` brings it back each time."""

    small: Tensor
    scale: Tensor
    computes: torch.dtype

    weight: Any = property(_brought_back)

    def forward(self, x: Tensor) -> Tensor:
        """Compute as a linear layer does."""
        return _Linear.apply(x, self.small, self.scale, self.bias)


class SmallConv2d(nn.Conv2d):
    """A frozen convolution whose weight lies in eight bits; `weight` brings it back each time."""

    small: Tensor
    scale: Tensor
    computes: torch.dtype

    weight: Any = property(_brought_back)

    def forward(self, x: Tensor) -> Tensor:
        """Compute as a convolution that pads with zeros does."""
        how = (self.stride, self.padding, self.dilation, self.groups)
        return _Conv2d.apply(x, self.small, self.scale, self.bias, how)


SMALL_KINDS: Mapping[type, type] = {nn.Linear: SmallLinear, nn.Conv2d: SmallConv2d}


def store_small(module: nn.Module, wanted: Callable[[str, tuple[int, ...]], bool]) -> None:
    """Store the frozen weights of linear layers and convolutions in eight bits; the module computes in the dtype it has now.

    wanted: (path, shape of the weight) -> whether this layer's. Diffusers' subclasses of both are left as they are.
    """
    for path, inner in module.named_modules():
        kind = SMALL_KINDS.get(type(inner))
        if kind is None or not wanted(path, tuple(inner.get_parameter("weight").shape)):
            continue
        weight = inner.get_parameter("weight").detach()
        rows = weight.float().abs().amax(tuple(range(1, weight.dim())), keepdim=True)
        scale = rows.clamp(min=LEAST_SCALE) / torch.finfo(SMALL).max
        del inner.weight
        inner.register_buffer("small", (weight.float() / scale).to(SMALL))
        inner.register_buffer("scale", scale)
        inner.__class__ = kind
        inner.computes = weight.dtype


def _whole(small: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return (small.float() * scale).to(dtype)


class _Linear(torch.autograd.Function):
    """The product with a weight in eight bits. The backward pass brings it back once more, so that no copy of it is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, small: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(small, scale)
        return functional.linear(x, _whole(small, scale, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        small, scale = ctx.saved_tensors
        return gradient @ _whole(small, scale, gradient.dtype), None, None, None


class _Conv2d(torch.autograd.Function):
    """The same for a convolution. how: stride, padding, dilation and groups."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, small: Tensor, scale: Tensor, bias: Tensor | None, how: tuple[Any, ...]
    ) -> Tensor:
        ctx.save_for_backward(small, scale)
        ctx.shape, ctx.how = x.shape, how
        return functional.conv2d(x, _whole(small, scale, x.dtype), bias, *how)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        small, scale = ctx.saved_tensors
        weight = _whole(small, scale, gradient.dtype)
        return conv2d_input(ctx.shape, weight, gradient, *ctx.how), None, None, None, None
