"""Fresh networks on the live layers of a base model: side branches by forward hooks, nothing written into a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lib_lora.errors import UnmatchedError, UsageError
from lib_lora.families.table import Family, Layer
from lib_lora.networks.compose import NETWORK_TYPES
from lib_lora.networks.contract import CreateOptions, LayerShape, NetworkType
from lib_lora.networks.dora import with_dora
from lib_lora.train.config_learning import NetworkConfig
from lib_lora.train.objective import stream

RESNET_ENDINGS = (
    *(".conv1", ".conv2", ".conv_shortcut", ".time_emb_proj"),
    *("downsamplers.0.conv", "upsamplers.0.conv"),
)


@dataclass(frozen=True, slots=True)
class Attached:
    """A network in training: its tensors by layer id and suffix, and the hooks that add its output."""

    type: NetworkType
    tensors: Mapping[str, Mapping[str, Tensor]]
    handles: tuple[RemovableHandle, ...]

    def trainable(self, component: str) -> list[Tensor]:
        """List the tensors of one component that training changes, in the order of the layers."""
        return [
            tensors[suffix]
            for id_, tensors in self.tensors.items()
            if id_.startswith(f"{component}.")
            for suffix in sorted(self.type.trainable & tensors.keys())
        ]

    def detach(self) -> None:
        """Take the hooks off; the modules compute what they computed before."""
        for handle in self.handles:
            handle.remove()


def trained_components(config: NetworkConfig, family: Family) -> tuple[str, ...]:
    """Name the components of a family that a configuration trains: the denoiser, and its CLIP text encoders."""
    denoiser = (family.denoiser.component,) if family.denoiser else ()
    encoders = tuple(each.component for each in family.text_encoders if each.kind == "clip")
    return denoiser * config.unet + encoders * config.text_encoder


def selected_layers(
    family: Family, layers: Mapping[str, Layer], config: NetworkConfig
) -> dict[str, Layer]:
    """Return the layers to train: the family's default set, and the resnets' layers when convolutions are asked for.

    A type that changes nothing but normalisations is put on all of them.
    """
    endings = family.trained_by_default + (RESNET_ENDINGS if config.conv_rank else ())
    components = trained_components(config, family)
    norms = _kind(config).kinds == {"norm"}
    return {
        id_: layer
        for id_, layer in layers.items()
        if layer.component in components
        and (LayerShape(layer.shape).kind == "norm" if norms else layer.path.endswith(endings))
    }


def _kind(config: NetworkConfig) -> NetworkType:
    kind = next(kind for kind in NETWORK_TYPES if kind.id == config.type)
    return with_dora(kind) if config.dora else kind


def attach(
    config: NetworkConfig,
    layers: Mapping[str, Layer],
    modules: Mapping[str, nn.Module],
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> Attached:
    """Put a fresh network on each layer's live module. Its tensors lie on the module's device and are leaves that ask for gradients.

    dtype: of the tensors; the base model's own may be smaller. Every layer draws from its own stream, so that its start does not
    depend on which others are trained. Raises UnmatchedError when there is no layer to train.
    """
    if not layers:
        raise UnmatchedError("The base model has no layer that this configuration would train.")
    kind = _kind(config)
    if kind.create is None:
        raise UsageError(f"{kind.label} cannot be trained.")
    tensors, handles = {}, []
    for id_, layer in layers.items():
        module = modules[id_]
        weight = module.get_parameter("weight")
        options = replace(_options(config, LayerShape(layer.shape)), dtype=dtype, base=weight)
        fresh = kind.create(LayerShape(tuple(weight.shape)), options, stream(seed, id_))
        for suffix in kind.trainable & fresh.keys():
            fresh[suffix] = fresh[suffix].to(weight.device).requires_grad_(True)
        tensors[id_] = fresh
        handles.append(module.register_forward_hook(_branch(kind, fresh)))
    return Attached(kind, tensors, tuple(handles))


def count_trained(config: NetworkConfig, shape: tuple[int, ...]) -> int:
    """Return how many numbers a fresh network trains on a layer whose weight has this shape."""
    kind = _kind(config)
    if kind.create is None:
        raise UsageError(f"{kind.label} cannot be trained.")
    base = torch.empty(shape, device="meta")
    options = replace(_options(config, LayerShape(shape)), base=base)
    fresh = kind.create(LayerShape(shape), options, stream(0, "size"))
    return sum(fresh[suffix].numel() for suffix in kind.trainable & fresh.keys())


def _options(config: NetworkConfig, shape: LayerShape) -> CreateOptions:
    """Return what a configuration chooses for a layer; a 3x3 convolution has its own rank and the same scale."""
    own = any(size > 1 for size in shape.kernel)
    return CreateOptions(
        rank=config.conv_rank if own else config.rank,
        alpha=config.conv_alpha if own else config.alpha,
        rank_stabilized=config.rank_stabilized,
        tucker=config.tucker,
        factor=config.factor,
    )


def _branch(kind: NetworkType, tensors: Mapping[str, Tensor]) -> Callable[..., Tensor]:
    branch = kind.output
    if branch is None:
        raise UsageError(f"{kind.label} cannot be trained.")

    def add_output(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        (x,) = args
        ready = tensors
        if kind.prepare is not None:
            weight = module.get_parameter("weight")
            ready = kind.prepare(tensors, weight, LayerShape(tuple(weight.shape)))
        # Single numbers do not take the base's dtype: a rounded alpha would change the scale.
        cast = {suffix: t.to(x.dtype) if t.dim() else t for suffix, t in ready.items()}
        return output + branch(cast, x, module, output)

    return add_output
