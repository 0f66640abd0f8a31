"""The form of a model family: a table of layers and where each one lies in an original checkpoint.

A layer is one logical weight, named by its unfused diffusers path. The rows of a family say where each of its layers would lie;
the keys of a checkpoint say which of them are there, so that tiny models and real ones take the same path and no branch on a
family's name exists anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

Shapes = Mapping[str, tuple[int, ...]]
"""Checkpoint key -> shape, as a header tells it."""

ObjectiveName = Literal["epsilon", "v", "flow"]


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

    @property
    def of_bias(self) -> Part:
        """Return how the layer's bias lies in its checkpoint tensor: what changes rows holds for it too."""
        return replace(self, transpose=False, pointwise=False)


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


class Row(NamedTuple):
    """Where one layer would lie: its diffusers path, and the keys of its tensors without the component's checkpoint prefix.

    lacking: a key, and the part that holds instead of `part` where the checkpoint lacks this key.
    """

    path: str
    weight: str
    bias: str
    block: str | None = None
    part: Part = WHOLE
    lacking: tuple[str, Part] | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """One network of a family.

    name: our word ("unet", "te1"); kohya: the prefix of kohya's flattened names ("lora_unet"); diffusers: the dotted prefix in
    diffusers files ("unet"); checkpoint: the key prefix in an original checkpoint; list_rows: makes the rows, when they are needed;
    buffers: what it has besides layers, as pairs of diffusers key and original key; unwritten: how the rows' keys begin where those
    of a checkpoint do not, which is no difference to a network.
    """

    name: str
    kohya: str
    diffusers: str
    checkpoint: str
    list_rows: Callable[[], tuple[Row, ...]]
    buffers: tuple[tuple[str, str], ...] = ()
    unwritten: str = field(default="", compare=False)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Return where every layer that the component may have would lie."""
        return self.list_rows()

    def expand(self, shapes: Shapes) -> tuple[Layer, ...]:
        """Return the layers whose weight is in a checkpoint, in the order of the rows."""
        return tuple(
            self._layer(row, shapes) for row in self.rows if self._key(row.weight) in shapes
        )

    def _key(self, key: str) -> str:
        return self.checkpoint + key.removeprefix(self.unwritten)

    def _layer(self, row: Row, shapes: Shapes) -> Layer:
        weight, bias = self._key(row.weight), self._key(row.bias)
        part = row.part
        if row.lacking is not None and self._key(row.lacking[0]) not in shapes:
            part = row.lacking[1]
        return Layer(
            component=self.name,
            path=row.path,
            weight=Placement(weight, part),
            bias=Placement(bias, part.of_bias) if bias in shapes else None,
            shape=part.layer_shape(shapes[weight]),
            block=row.block,
        )


@dataclass(frozen=True, slots=True)
class Signature:
    """The structure that tells a family's checkpoints from all others, whatever their widths and depths.

    present: key -> its shape, `None` where any size will do; absent: keys that other families have.
    """

    present: Mapping[str, tuple[int | None, ...]]
    absent: tuple[str, ...] = ()

    def fits(self, shapes: Shapes) -> bool:
        """Tell whether a checkpoint has this structure."""
        return not any(key in shapes for key in self.absent) and all(
            key in shapes and _like(shapes[key], pattern) for key, pattern in self.present.items()
        )


def _like(shape: tuple[int, ...], pattern: tuple[int | None, ...]) -> bool:
    return len(shape) == len(pattern) and all(
        size in (None, found) for found, size in zip(shape, pattern, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Latent:
    """The latent space: z = (encoded - shift) * scale.

    patch: sides of a latent are multiples of it; wide: the autoencoder's values overflow float16, so that it computes in float32.
    """

    channels: int
    scale: float
    shift: float = 0.0
    factor: int = 8
    patch: int = 1
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Denoiser:
    """What predicts: its component, what it is called with, and how its width is divided among heads.

    kind: "unet" (text), "sized_unet" (also a picture's sizes and pooled text) or "mmdit" (also pooled text); heads: their number,
    where it is the same at every width; head_width: their width, where that is; zeros_when_dropped: a sample without its caption is
    told zeros, else the empty text.
    """

    component: str
    kind: Literal["unet", "sized_unet", "mmdit"]
    heads: int | None = None
    head_width: int = 64
    zeros_when_dropped: bool = False

    def heads_of(self, width: int) -> int:
        """Return the number of heads at a width."""
        return self.heads or max(1, width // self.head_width)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoder:
    """How a family reads one of its text encoders; those of kind "clip" lie side by side in width, "t5" follows them as more tokens.

    activation: of its feed-forward part; padding: the token that fills a text up; layer: the output that is read, counted from the
    last; normalized: whether the final normalisation is put on it; pooled: what is read besides of the end token, after the last
    layer and the normalisation: nothing, that, or its projection; skips: whether the WebUI's clip skip moves `layer`; optional:
    whether the model goes without it, on zeros.
    """

    component: str
    kind: Literal["clip", "t5"] = "clip"
    activation: str = "quick_gelu"
    padding: int = 49407
    layer: int = 1
    normalized: bool = False
    pooled: Literal["no", "plain", "projected"] = "no"
    skips: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One model family, or a variant of one: variants share their id, and a network of one has its layers in all.

    objective: what the denoiser predicts where neither keys nor metadata of a checkpoint say otherwise. trained_by_default: path
    endings of the layers a new network is put on (kohya's target set). architecture: the family's id in ModelSpec metadata;
    kohya_version: the value of kohya's `ss_base_model_version`; known_as: how other values of either begin that mean the same
    family. buffers: keys of an original checkpoint that the noise schedule gives. denoiser: `None` for what cannot be trained.
    dialect: how networks are named that the WebUI is to read by itself.
    """

    id: str
    label: str
    signature: Signature
    components: tuple[Component, ...]
    latent: Latent
    objective: ObjectiveName
    trained_by_default: tuple[str, ...]
    architecture: str
    kohya_version: str
    known_as: tuple[str, ...]
    buffers: tuple[str, ...] = ()
    denoiser: Denoiser | None = None
    text_encoders: tuple[TextEncoder, ...] = ()
    dialect: Literal["kohya", "diffusers"] = "kohya"

    def layers(self, shapes: Shapes) -> dict[str, Layer]:
        """Return every layer of a checkpoint by its id."""
        return {
            layer.id: layer for component in self.components for layer in component.expand(shapes)
        }
