"""The form of a model family: a table of layers and where each one lies in an original checkpoint.

A layer is one logical weight, named by its unfused diffusers path. A family is expanded from a few rows against the keys of a
checkpoint, so that tiny models and real ones take the same path and no branch on a family's name exists anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Shapes = Mapping[str, tuple[int, ...]]
"""Checkpoint key -> shape, as a header tells it."""

Objective = Literal["epsilon", "v", "flow"]


@dataclass(frozen=True, slots=True)
class Part:
    """How a layer's tensor lies in a checkpoint tensor.

    index, of: the layer is the index-th of `of` equal blocks of rows (fused q, k, v). transpose: the two dimensions are
    exchanged. swap_halves: the halves of dimension 0 are exchanged.
    """

    index: int = 0
    of: int = 1
    transpose: bool = False
    swap_halves: bool = False


WHOLE = Part()


@dataclass(frozen=True, slots=True)
class Placement:
    """The checkpoint key that holds a layer's tensor, and which part of it."""

    key: str
    part: Part = WHOLE


@dataclass(frozen=True, slots=True)
class Layer:
    """One logical layer.

    component: "unet", "te1", ...; path: the diffusers path without a tensor name, such as
    "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"; weight, bias: where its tensors lie, `None` when absent;
    shape: the weight's own shape; block: the block that block weights address, such as "IN01".
    """

    component: str
    path: str
    weight: Placement
    bias: Placement | None
    shape: tuple[int, ...]
    block: str | None = None

    @property
    def id(self) -> str:
        """Return "component.path", unique within a base model."""
        return f"{self.component}.{self.path}"


@dataclass(frozen=True, slots=True)
class Component:
    """One network of a family.

    name: our word ("unet", "te1"); kohya: the prefix of kohya's flattened names ("lora_unet"); diffusers: the dotted prefix in
    diffusers files ("unet"); checkpoint: the key prefix in an original checkpoint; expand: the layers found in a checkpoint.
    """

    name: str
    kohya: str
    diffusers: str
    checkpoint: str
    expand: Callable[[Shapes], tuple[Layer, ...]]


@dataclass(frozen=True, slots=True)
class Latent:
    """The latent space: z = (encoded - shift) * scale."""

    channels: int
    scale: float
    shift: float = 0.0
    factor: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One model family.

    detect: tells from keys and shapes alone whether a checkpoint belongs here; structure decides, widths only break ties.
    trained_by_default: path endings of the layers a new network is put on (kohya's target set).
    """

    id: str
    label: str
    detect: Callable[[Shapes], bool]
    components: tuple[Component, ...]
    latent: Latent
    objective: Objective
    trained_by_default: tuple[str, ...]

    def layers(self, shapes: Shapes) -> dict[str, Layer]:
        """Return every layer of a checkpoint by its id."""
        return {
            layer.id: layer for component in self.components for layer in component.expand(shapes)
        }
