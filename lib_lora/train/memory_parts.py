"""What the parts of a training take in memory, in bytes, from the shapes of its layers and the tables of `families/costs.py`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from lib_lora.errors import UsageError, did_you_mean
from lib_lora.families.costs import COSTS, INNER
from lib_lora.families.sizes import PUBLISHED
from lib_lora.families.table import Family, Layer
from lib_lora.formats.checkpoint import Checkpoint
from lib_lora.train.attach import count_trained, selected_layers
from lib_lora.train.config import TrainConfig
from lib_lora.train.config_learning import NetworkConfig

VALUE_BYTES: Mapping[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2}

BESIDE: Mapping[str, tuple[float, float]] = {
    "lora": (0.0, 0.0),
    "loha": (0.5, 0.0),
    "lokr": (0.0, 1.1),
    "ia3": (0.0, 0.6),
    "oft": (0.0, 0.6),
    "boft": (0.7, 6.5),
    "glora": (0.1, 0.1),
    "full": (0.0, 0.0),
    "norm": (0.0, 0.0),
}
"""How often a network of a type keeps a layer's weight and its input besides its factors, by type; counted on small models."""
BESIDE_DORA = (1.1, 2.4)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a plan has to know of a base model: its layers by id, and how many numbers of a component are no layer's."""

    family: Family
    layers: Mapping[str, Layer]
    buffers: Mapping[str, int]

    @property
    def denoiser(self) -> str:
        """Return the name of the component that predicts."""
        return self.family.components[0].name

    @property
    def encoders(self) -> tuple[str, ...]:
        """Name the text encoders that are there."""
        there = {layer.component for layer in self.layers.values()}
        names = (component.name for component in self.family.components)
        return tuple(name for name in names if name in there and name.startswith("te"))

    def of(self, component: str) -> list[Layer]:
        """List the layers of a component in the order of its rows."""
        return [layer for layer in self.layers.values() if layer.component == component]

    def numbers(self, component: str) -> int:
        """Return how many numbers a component has."""
        return self.buffers.get(component, 0) + sum(map(_numbers, self.of(component)))


def facts_of(checkpoint: Checkpoint) -> ModelFacts:
    """Return the facts of a base model file."""
    shapes = checkpoint.header.shapes
    buffers = {
        component.name: sum(
            math.prod(shapes[component.checkpoint + key])
            for _, key in component.buffers
            if component.checkpoint + key in shapes
        )
        for component in checkpoint.family.components
    }
    return ModelFacts(checkpoint.family, checkpoint.layers, buffers)


@cache
def published_facts(name: str) -> ModelFacts:
    """Return the facts of a family's published model, such as "sdxl"; raises UsageError with the nearest name."""
    if name not in PUBLISHED:
        raise UsageError(f"There is no family {name!r}. {did_you_mean(name, PUBLISHED)}")
    published = PUBLISHED[name]
    return ModelFacts(published.family, published.layers(), published.buffers)


def trained_numbers(config: NetworkConfig, facts: ModelFacts) -> dict[str, int]:
    """Return how many numbers a network has on each component that it is put on."""
    counted: defaultdict[str, int] = defaultdict(int)
    by_shape = cache(lambda shape: count_trained(config, shape))
    for layer in selected_layers(facts.family, facts.layers, config).values():
        counted[layer.component] += by_shape(layer.shape)
    return dict(counted)


def component_bytes(facts: ModelFacts, names: Sequence[str], precision: str) -> int:
    """Return what whole components take in "fp32", "fp16" or "bf16"."""
    return VALUE_BYTES[precision] * sum(facts.numbers(name) for name in names)


def denoiser_bytes(config: TrainConfig, facts: ModelFacts) -> int:
    """Return what the weights of the denoiser take as they are stored during the steps."""
    whole = component_bytes(facts, (facts.denoiser,), config.run.precision)
    if config.run.storage != "fp8":
        return whole
    # One byte for each number, and a scale in fp32 for each row.
    saved = sum(
        (VALUE_BYTES[config.run.precision] - 1) * math.prod(layer.shape) - 4 * layer.shape[0]
        for layer in facts.of(facts.denoiser)
        if stored_small(layer.path, layer.shape)
    )
    return whole - saved


def stored_small(path: str, shape: Sequence[int]) -> bool:
    """Tell whether eight-bit storage takes a layer of the denoiser: inside the blocks, and neither a norm nor an embedding."""
    return path.startswith(INNER) and len(shape) > 1


@dataclass(frozen=True, slots=True)
class Activations:
    """What autograd keeps until the backward pass, in bytes.

    whole: without gradient checkpointing; entries: what is left of it with; largest_block: the most that is computed again at once.
    """

    whole: int
    entries: int
    largest_block: int


def activations(config: TrainConfig, facts: ModelFacts) -> Activations:
    """Predict what one forward pass of the trained components keeps, with captions as long as they may be."""
    chosen = selected_layers(facts.family, facts.layers, config.network)
    if not chosen:
        return Activations(0, 0, 0)
    whole = entries = 0
    blocks: defaultdict[str, int] = defaultdict(int)
    trained = {layer.component for layer in chosen.values()}
    for component in sorted(trained | {facts.denoiser}):
        costs = COSTS[component]
        for layer, numbers, entering in _kept(config, facts, component, chosen):
            whole += numbers
            block = costs.block_of(layer.path)
            if block is None:
                entries += numbers
            else:
                entries += entering
                blocks[f"{component}.{block}"] += numbers - entering
    size = VALUE_BYTES[config.run.precision]
    return Activations(size * whole, size * entries, size * max(blocks.values(), default=0))


def _kept(
    config: TrainConfig, facts: ModelFacts, component: str, chosen: Mapping[str, Layer]
) -> Iterator[tuple[Layer, int, int]]:
    """Yield each layer with what is kept of it and how much of that enters its block, from where gradients begin."""
    costs, layers = COSTS[component], facts.of(component)
    side = config.data.size // facts.family.latent.factor
    levels = len({layer.path.split(".")[1] for layer in layers if "down_blocks" in layer.path})
    through_text = any(id_.startswith("te") for id_ in chosen)
    widths = {layer.path: layer.shape[0] for layer in layers}
    size = VALUE_BYTES[config.run.precision]
    copied = 0 if size == 4 else 4 / size
    begun = False
    for layer in layers:
        row = costs.row(layer.path)
        begun = begun or layer.id in chosen or (through_text and row is not None and row.text)
        if not begun:
            continue
        if component.startswith("te") or (row and row.text):
            tokens = costs.text * config.data.caption_parts
        else:
            tokens = costs.tokens(layer.path, side, levels)
        rows = tokens * config.schedule.batch
        outputs, inputs = layer.shape[0], layer.shape[:2][-1]
        numbers = entering = 0
        if row:
            if row.like:
                inputs = widths[f"{layer.path.rpartition('.')[0]}.{row.like}"]
            often = row.inputs + row.wide * copied
            numbers = round((often * inputs + row.outputs * outputs) * rows)
            entering = round(row.enters * inputs * rows)
        if layer.id in chosen:
            numbers += round(_beside(config, layer, rows if row else config.schedule.batch))
        yield layer, numbers, entering


def _beside(config: TrainConfig, layer: Layer, rows: int) -> float:
    """Return how many numbers the network beside a layer keeps.

    What lies between its factors, and its factors as they are used: in less than fp32 both are copies, in fp32 the one that is
    multiplied by the scale is.
    """
    network = config.network
    outputs, inputs = layer.shape[0], math.prod(layer.shape[1:])
    factors = outputs + (inputs if config.run.precision != "fp32" else 0)
    weights, activated = BESIDE[network.type]
    if network.dora:
        weights, activated = weights + BESIDE_DORA[0], activated + BESIDE_DORA[1]
    return (
        network.rank * (rows + factors)
        + weights * outputs * inputs
        + activated * layer.shape[:2][-1] * rows
    )


def _numbers(layer: Layer) -> int:
    return math.prod(layer.shape) + (layer.shape[0] if layer.bias else 0)
