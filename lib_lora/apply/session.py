"""The state of one generation: which networks act on which live modules, and how strongly at this evaluation.

A session adds side branches by forward hooks on module instances. It never writes into a module, and closing it, however often,
leaves nothing behind.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from torch import nn
from torch.utils.hooks import RemovableHandle

from lib_lora.apply.branch import Branch, Strengths
from lib_lora.apply.hooks import attach
from lib_lora.networks.contract import LayerNetwork
from lib_lora.schedule.clock import Clock
from lib_lora.schedule.curve import Moment, NetworkUse, PassName

log = logging.getLogger(__name__)

GROUPS = ("unet", "te")

Modules = Mapping[str, nn.Module]
"""Layer id -> the live module that computes it, such as "unet.mid_block.attentions.0.proj_in"."""


@dataclass(frozen=True, slots=True)
class LoadedNetwork:
    """A network file in memory: its layers by layer id ("unet.<path>", "te1.<path>")."""

    name: str
    layers: Mapping[str, LayerNetwork]


class Session:
    """A generation with scheduled networks: open, begin_pass, step, rebind, close; a context manager.

    Every method may be called again without harm; after `close` the modules compute what they computed before.
    """

    def __init__(self, uses: Sequence[tuple[NetworkUse, LoadedNetwork]]) -> None:
        self._uses = tuple(uses)
        self._clock: Clock | None = None
        self._pass: PassName = "base"
        self._strengths: Strengths | None = None
        self._handles: list[RemovableHandle] = []

    def open(self, modules: Modules) -> None:
        """Build the branches for these modules and put the hooks on them; layers that no network touches get none."""
        self._detach()
        self._strengths = Strengths(len(GROUPS) * len(self._uses))
        absent = []
        for layer_id, networks in self._by_layer().items():
            if layer_id not in modules:
                absent.append(layer_id)
                continue
            branch = Branch(modules[layer_id], networks, self._strengths)
            self._handles.append(attach(modules[layer_id], branch))
        if absent:
            log.warning("%d layers have no module in this model: %s", len(absent), absent)

    def begin_pass(self, clock: Clock, name: PassName = "base") -> None:
        """Take the clock of the pass that follows; strengths are zero until the first `step`."""
        self._clock, self._pass = clock, name
        self.disarm()

    def step(self, level: float) -> Moment:
        """Set every strength for the evaluation at this noise level, arm the branches and return the moment.

        Raises RuntimeError before `begin_pass`.
        """
        if self._clock is None:
            raise RuntimeError("begin_pass comes before step")
        moment = self._clock.moment(level)
        self._set("unet", [use.strength("unet", moment, self._pass) for use, _ in self._uses])
        return moment

    def encode(self, strengths: Mapping[int, float] | None = None) -> None:
        """Set the text encoder strengths of each use at the start of the pass, or those given by index, and arm them."""
        clock = self._clock
        start = clock.moment(clock.levels[0]) if clock else Moment(0.0, 0.0, math.inf, 1)
        given = strengths or {}
        self._set(
            "te",
            [
                given[index] if index in given else use.strength("te", start, self._pass)
                for index, (use, _) in enumerate(self._uses)
            ],
        )

    def rebind(self, modules: Modules) -> None:
        """Move the branches to other modules: the host has changed its model in mid-picture."""
        if self._strengths is not None:
            self.open(modules)

    def disarm(self) -> None:
        """Make every branch do nothing until the next `step` or `encode`."""
        if self._strengths is not None:
            self._strengths.clear()

    def close(self) -> None:
        """Remove every hook and free every tensor."""
        self._detach()
        self._strengths = None
        self._uses = ()

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _by_layer(self) -> dict[str, list[tuple[int, LayerNetwork]]]:
        """Return the networks of every layer, each with the slot of its use and the layer's group."""
        found: dict[str, list[tuple[int, LayerNetwork]]] = {}
        for index, (_, loaded) in enumerate(self._uses):
            for layer_id, network in loaded.layers.items():
                group = "te" if layer_id.startswith("te") else "unet"
                slot = len(GROUPS) * index + GROUPS.index(group)
                found.setdefault(layer_id, []).append((slot, network))
        return found

    def _set(self, group: str, values: Sequence[float]) -> None:
        """Set the strengths of one group of components and switch the other off."""
        if self._strengths is None:
            return
        slots = [0.0] * (len(GROUPS) * len(values))
        slots[GROUPS.index(group) :: len(GROUPS)] = values
        self._strengths.set(slots)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
