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
from typing import Protocol

from torch import nn

from lib_lora.apply.branch import Branch
from lib_lora.apply.forecast import forecast
from lib_lora.apply.fused import Fused, Share, Slots
from lib_lora.apply.hooks import attach, follow
from lib_lora.apply.strengths import Strengths
from lib_lora.networks.contract import LayerNetwork
from lib_lora.schedule.clock import Clock
from lib_lora.schedule.curve import Moment, NetworkUse, PassName

log = logging.getLogger(__name__)

GROUPS = ("unet", "te")

Modules = Mapping[str, nn.Module | Share]
"""Layer id -> the live module that computes it, or its share of one that computes others too.

Such as "unet.mid_block.attentions.0.proj_in".
"""


class Removable(Protocol):
    """Something of ours on a live module."""

    def remove(self) -> None:
        """Take it off."""


@dataclass(frozen=True, slots=True)
class LoadedNetwork:
    """A network file in memory: its layers by layer id ("unet.<path>", "te1.<path>").

    A session takes the layers that it puts on modules out of here, so that memory holds none twice.
    """

    name: str
    layers: dict[str, LayerNetwork]


Uses = Sequence[tuple[NetworkUse, LoadedNetwork]]
"""What a prompt asks for, with the networks that it names."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one row of the UNet's batch computes.

    uses: which of the session's uses act on it, by index, those of the prompt of its picture; `None` is all. negative: it is the
    negative prompt's.
    """

    uses: frozenset[int] | None = None
    negative: bool = False


class Session:
    """A generation with scheduled networks: open, begin_pass, step, rebind, close; a context manager.

    A session is opened once; every other method may be called again without harm. After `close` the modules compute what they
    computed before.
    warnings: sentences for the person about what could not be done exactly, each once.
    """

    def __init__(self, uses: Uses) -> None:
        self.warnings: list[str] = []
        self._uses = tuple(uses)
        self._clock: Clock | None = None
        self._pass: PassName = "base"
        self._strengths: Strengths | None = None
        self._handles: list[Removable] = []

    def open(self, modules: Modules, unet: nn.Module | None = None) -> None:
        """Build the branches for these modules and put the hooks on them; layers that no network touches, and embeddings, get none.

        unet: what the host calls for some rows of the batch at a time, each time with those rows first among its arguments; not
        needed where every call has all rows. Raises RuntimeError when the session is open.
        """
        if self._strengths is not None:
            raise RuntimeError("an open session is moved by rebind")
        self._strengths = Strengths(len(GROUPS) * len(self._networks()), self._warn)
        if log.isEnabledFor(logging.INFO):
            found = [loaded.layers for loaded in self._networks().values()]
            log.info("networks take %.2f MB beside the model", forecast(found, modules) / 1e6)
        if unet is not None:
            self._handles.append(follow(unet, self._strengths))
        absent, embeddings = [], []
        fused: dict[nn.Module, list[tuple[Share, Slots]]] = {}
        for layer_id in self._layer_ids():
            module = modules.get(layer_id)
            if module is None:
                absent.append(layer_id)
            elif isinstance(module, Share):
                fused.setdefault(module.module, []).append((module, self._take(layer_id)))
            elif isinstance(module, nn.Embedding):
                embeddings.append(layer_id)
            else:
                branch = Branch(module, self._take(layer_id), self._strengths)
                self._handles.append(attach(module, branch))
        self._handles += [Fused(layers, self._strengths) for layers in fused.values()]
        if embeddings:
            names = ", ".join(embeddings)
            self._warn(f"{names}: a LoRA changes no embedding live; merge it to have this part.")
        if absent:
            log.warning("%d layers have no module in this model: %s", len(absent), absent)

    def begin_pass(self, clock: Clock, name: PassName = "base") -> None:
        """Take the clock of the pass that follows; strengths are zero until the first `step`."""
        self._clock, self._pass = clock, name
        self.disarm()

    def step(self, level: float, rows: Sequence[Row] = (Row(),)) -> Moment:
        """Set every strength for the evaluation at this noise level, arm the branches and return the moment.

        rows: the whole batch in the order in which the UNet computes it, where its rows differ; the calls of one evaluation may
        leave out the last ones. Raises RuntimeError before `begin_pass`.
        """
        if self._clock is None:
            raise RuntimeError("begin_pass comes before step")
        moment = self._clock.moment(level)
        self._set("unet", [self._strengths_of(row, moment) for row in rows])
        return moment

    def encode(self, strengths: Mapping[int, float] | None = None) -> None:
        """Set the text encoder strengths of each use at the start of the pass, or those given by index, and arm them."""
        clock = self._clock
        levels = clock.levels if clock else ()
        start = clock.moment(levels[0]) if clock and levels else Moment(0.0, 0.0, math.inf, 1)
        given = strengths or {}
        each = [
            given[index] if index in given else use.strength("te", start, self._pass)
            for index, (use, _) in enumerate(self._uses)
        ]
        self._set("te", [each])

    def rebind(self, uses: Uses, modules: Modules, unet: nn.Module | None = None) -> None:
        """Move to other modules, for the host has changed its model in mid-picture; uses: the same with networks read for it."""
        if self._strengths is not None:
            self._detach()
            self._uses, self._strengths = tuple(uses), None
            self.open(modules, unet)

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

    def _warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)
            log.warning(sentence)

    def _networks(self) -> dict[int, LoadedNetwork]:
        """Return each network once, however many uses it has: strengths add up, and a layer computes it once."""
        return {id(loaded): loaded for _, loaded in self._uses}

    def _layer_ids(self) -> list[str]:
        """Name every layer that some network touches, once."""
        networks = self._networks().values()
        return list(dict.fromkeys(id_ for loaded in networks for id_ in loaded.layers))

    def _take(self, layer_id: str) -> list[tuple[int, LayerNetwork]]:
        """Return what the networks hold for a layer, each with the slot of the network and the layer's group; it is ours from now on."""
        group = GROUPS.index("te" if layer_id.startswith("te") else "unet")
        return [
            (len(GROUPS) * index + group, loaded.layers.pop(layer_id))
            for index, loaded in enumerate(self._networks().values())
            if layer_id in loaded.layers
        ]

    def _strengths_of(self, row: Row, moment: Moment) -> list[float]:
        """Return the strength of every use on the UNet in one row."""
        group = "neg" if row.negative else "unet"
        return [
            use.strength(group, moment, self._pass)
            if row.uses is None or index in row.uses
            else 0.0
            for index, (use, _) in enumerate(self._uses)
        ]

    def _set(self, group: str, rows: Sequence[Sequence[float]]) -> None:
        """Set the strengths of one group of components, of every use in every row, and switch the other off."""
        if self._strengths is None:
            return
        slots = {key: slot for slot, key in enumerate(self._networks())}
        totals = [[0.0] * (len(GROUPS) * len(slots)) for _ in rows]
        for row, total in zip(rows, totals, strict=True):
            for (_, loaded), strength in zip(self._uses, row, strict=True):
                total[len(GROUPS) * slots[id(loaded)] + GROUPS.index(group)] += strength
        self._strengths.set(*totals)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
