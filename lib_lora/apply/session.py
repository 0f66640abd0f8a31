"""The state of one generation: which networks act on which live modules, and how strongly at this evaluation.

A session adds side branches by forward hooks on module instances. It never writes into a module, and closing it, however often,
leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from torch import nn

from lib_lora.networks.contract import LayerNetwork
from lib_lora.schedule.clock import Clock
from lib_lora.schedule.curve import Moment, NetworkUse, PassName

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
        raise NotImplementedError

    def open(self, modules: Modules) -> None:
        """Build the branches for these modules and put the hooks on them; layers that no network touches get none."""
        raise NotImplementedError

    def begin_pass(self, clock: Clock, name: PassName = "base") -> None:
        """Take the clock of the pass that follows; strengths are zero until the first `step`."""
        raise NotImplementedError

    def step(self, level: float) -> Moment:
        """Set every strength for the evaluation at this noise level, arm the branches and return the moment."""
        raise NotImplementedError

    def encode(self, strengths: Mapping[int, float] | None = None) -> None:
        """Set the text encoder strengths of each use at the start of the pass, or those given by index, and arm them."""
        raise NotImplementedError

    def rebind(self, modules: Modules) -> None:
        """Move the branches to other modules: the host has changed its model in mid-picture."""
        raise NotImplementedError

    def disarm(self) -> None:
        """Make every branch do nothing until the next `step` or `encode`."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove every hook and free every tensor."""
        raise NotImplementedError

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
