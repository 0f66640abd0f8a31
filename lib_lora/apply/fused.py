"""Layers that one live module computes together, such as the fused attention of OpenCLIP: no side branch fits between them.

The module runs with W + sum of strength * delta in the places of its weights, as temporaries of one call; nothing is written into it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lib_lora.apply.strengths import Strengths
from lib_lora.families.table import Part
from lib_lora.formats.original import layer_view, swapped
from lib_lora.networks.compose import compose
from lib_lora.networks.contract import Delta, LayerNetwork, at_least_float32

Slots = Sequence[tuple[int, LayerNetwork]]
"""The networks of a layer, each with its slot."""


@dataclass(frozen=True, slots=True)
class Share:
    """What of a live module's tensors is one layer's.

    weight, bias: the names of the tensors in the module; part: where the layer lies in them. up_to_date: called with the module
    before its weights are read, for a host that writes them late.
    """

    module: nn.Module
    weight: str
    bias: str | None
    part: Part
    up_to_date: Callable[[nn.Module], None]


class Fused:
    """The networks of the layers of one module, which run in it from now on; `remove` gives it back its own forward.

    All rows of a batch get the strengths of the first.
    """

    def __init__(self, layers: Sequence[tuple[Share, Slots]], strengths: Strengths) -> None:
        self._layers, self._strengths = layers, strengths
        self._slots = {slot for _, slots in layers for slot, _ in slots}
        self._module = layers[0][0].module
        self._before = self._module.__dict__.get("forward")
        self._own = _Own(self._module, self._before)
        self._forward = self._run
        self._module.forward = self._forward  # on the instance: its class is the host's

    def remove(self) -> None:
        """Give the module back the forward that it had; harmless where another one has come since."""
        if self._module.__dict__.get("forward") is not self._forward:
            return
        if self._before is None:
            del self._module.forward
        else:
            self._module.forward = self._before

    def _run(self, *arguments: Any, **options: Any) -> Any:  # the module's own, whatever they are
        if not self._strengths.acts(self._slots):
            return self._own(*arguments, **options)
        self._layers[0][0].up_to_date(self._module)
        return functional_call(self._own, self._weights(), arguments, options)

    def _weights(self) -> dict[str, Tensor]:
        """Return the module's tensors that some network changes, by their name behind `_Own`."""
        changed: dict[str, Tensor] = {}
        for share, slots in self._layers:
            delta = self._delta(share, slots)
            for name, change in ((share.weight, delta.weight), (share.bias, delta.bias)):
                if name is None or change is None:
                    continue
                exact = changed.setdefault(name, _exact_copy(self._module, name))
                part = share.part if name == share.weight else share.part.of_bias
                layer_view(exact, part).add_(swapped(change, part))
        return {
            f"module.{name}": tensor.to(self._module.get_parameter(name).dtype)
            for name, tensor in changed.items()
        }

    def _delta(self, share: Share, slots: Slots) -> Delta:
        weight = self._module.get_parameter(share.weight).detach()
        base = swapped(layer_view(at_least_float32(weight), share.part), share.part)
        acting = [
            (network, strength) for slot, network in slots if (strength := self._strengths.of(slot))
        ]
        with _exactly(base):
            return compose(base, acting)


class _Own(nn.Module):
    """What a module computes without us; it is looked up at every call, for a host may replace it in the class."""

    def __init__(self, module: nn.Module, before: Callable[..., Any] | None) -> None:
        super().__init__()
        self.module, self._before = module, before

    def forward(self, *arguments: Any, **options: Any) -> Any:
        if self._before is not None:
            return self._before(*arguments, **options)
        return type(self.module).forward(self.module, *arguments, **options)


def _exact_copy(module: nn.Module, name: str) -> Tensor:
    return at_least_float32(module.get_parameter(name).detach()).clone()


def _exactly(tensor: Tensor) -> Any:
    """Keep a host's autocast off."""
    if not torch.is_autocast_enabled():
        return nullcontext()
    return torch.autocast(tensor.device.type, enabled=False)
