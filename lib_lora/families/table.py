"""The form of a model family: a table of layers and where each one lies in an original checkpoint.

A layer is one logical weight, named by its unfused diffusers path. The rows of a family say where each of its layers would lie;
the keys of a checkpoint say which of them are there, so that tiny models and real ones take the same path and no branch on a
family's name exists anywhere else.
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
    exchanged. swap_halves: the halves of dimension 0 are exchanged. pointwise: the checkpoint holds the layer's matrix as a 1x1
    convolution.
    """

    index: int = 0
    of: int = 1
    transpose: bool = False
    swap_halves: bool = False
    pointwise: bool = False

    def layer_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the layer's tensor for the shape of the checkpoint's."""
        if self.pointwise:
            stored = stored[:2]
        if self.transpose:
            stored = stored[::-1]
        return (stored[0] // self.of, *stored[1:])


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
class Row:
    """Where one layer would lie: its diffusers path, and the keys of its tensors without the component's checkpoint prefix."""

    path: str
    weight: str
    bias: str
    block: str | None = None
    part: Part = WHOLE


@dataclass(frozen=True, slots=True)
class Component:
    """One network of a family.

    name: our word ("unet", "te1"); kohya: the prefix of kohya's flattened names ("lora_unet"); diffusers: the dotted prefix in
    diffusers files ("unet"); checkpoint: the key prefix in an original checkpoint; rows: every layer it may have.
    """

    name: str
    kohya: str
    diffusers: str
    checkpoint: str
    rows: tuple[Row, ...]

    def expand(self, shapes: Shapes) -> tuple[Layer, ...]:
        """Return the layers whose weight is in a checkpoint, in the order of the rows."""
        return tuple(
            self._layer(row, shapes) for row in self.rows if self.checkpoint + row.weight in shapes
        )

    def _layer(self, row: Row, shapes: Shapes) -> Layer:
        weight, bias = self.checkpoint + row.weight, self.checkpoint + row.bias
        return Layer(
            component=self.name,
            path=row.path,
            weight=Placement(weight, row.part),
            bias=Placement(bias) if bias in shapes else None,
            shape=row.part.layer_shape(shapes[weight]),
            block=row.block,
        )


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
    trained_by_default: path endings of the layers a new network is put on (kohya's target set). architecture: the family's id in
    ModelSpec metadata; kohya_version: the value of kohya's `ss_base_model_version`.
    """

    id: str
    label: str
    detect: Callable[[Shapes], bool]
    components: tuple[Component, ...]
    latent: Latent
    objective: Objective
    trained_by_default: tuple[str, ...]
    architecture: str
    kohya_version: str

    def layers(self, shapes: Shapes) -> dict[str, Layer]:
        """Return every layer of a checkpoint by its id."""
        return {
            layer.id: layer for component in self.components for layer in component.expand(shapes)
        }
