"""The schedules of one picture in the WebUI: their session on the model that is loaded, through every pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modules import sd_unet, shared
from torch import nn
from torch.utils.hooks import RemovableHandle

from lib_lora.apply.fused import Share
from lib_lora.apply.session import Row, Session
from lib_lora.errors import UsageError
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.hosts.a1111_clock import Built, built_by, clock_of
from lib_lora.hosts.a1111_encoders import (
    Encoded,
    Strengths,
    choose,
    keep,
    knots_of,
    steps_of,
    strengths_at,
)
from lib_lora.hosts.a1111_model import (
    absent_note,
    add_hashes,
    bring_up_to_date,
    live_modules,
    network_files,
)
from lib_lora.hosts.reading import Uses, read_uses
from lib_lora.schedule.curve import NetworkUse, PassName


class Picture:
    """One `p` of the host and what its prompt asks for. Neither the `p` nor the model is kept alive by it."""

    def __init__(self, p: Any, wanted: Sequence[NetworkUse]) -> None:
        self._p = weakref.ref(p)
        self._wanted = tuple(wanted)
        self._uses: Uses = ()
        self._session = Session(())
        self._guard: RemovableHandle | None = None
        self._bound: tuple[object, ...] = ()
        self._built: Built | None = None

    def is_for(self, p: Any) -> bool:
        """Tell whether this is the picture of a `p`."""
        return self._p() is p

    def bind(self) -> list[str]:
        """Read the networks for the model that the host has loaded and put their hooks on it, unless it is the one they are on.

        Returns a note for whatever is left out. Raises FileFormatError for a checkpoint that is not supported and UsageError where
        another program computes the UNet.
        """
        model = shared.sd_model
        file = model.sd_checkpoint_info.filename
        bound = (weakref.ref(model), file)
        if bound == self._bound:
            return []
        self.close()
        if sd_unet.current_unet is not None:
            raise UsageError("A compiled UNet is active, which has no layers for a LoRA to act on.")
        checkpoint = open_checkpoint(file)
        names = [use.name for use in self._wanted]
        self._uses, notes = read_uses(self._wanted, network_files(names), checkpoint)
        modules = live_modules(model, checkpoint.layers)
        for module in _of_dependent_networks(self._uses, modules):
            bring_up_to_date(module)
        self._session = Session(self._uses)
        unet = model.model.diffusion_model
        self._session.open(modules, unet)
        self._guard = unet.register_forward_hook(self._after_unet, always_call=True)
        self._bound = bound
        loaded = {network.name: network for _, network in self._uses}
        absent = (absent_note(network, modules) for network in loaded.values())
        return [*notes, *filter(None, absent)]

    def add_hashes(self) -> None:
        """Add the networks that act to the infotext's `Lora hashes`."""
        add_hashes(self._p(), [use.name for use, _ in self._uses])

    def arm_encoders(self, pass_name: PassName) -> None:
        """Arm the text encoders with the strengths that a pass starts with."""
        self._arm(self._knots(pass_name)[0][1])

    def encode_curves(
        self, pass_name: PassName, prompts: Any, first: Any, encode: Callable[[], Any]
    ) -> None:
        """Encode prompts under the other strengths that a pass will have; `first` is what they are under those of its start."""
        knots = self._knots(pass_name)
        conds = {knots[0][1]: first}
        for _, strengths in knots:
            if strengths not in conds:
                self._arm(strengths)
                conds[strengths] = encode()
        keep(self._p(), pass_name, prompts, Encoded(knots, conds))

    def step(self, params: Any) -> list[str]:
        """Arm the UNet with the strengths of the evaluation that follows, and choose its conditionings.

        Returns a sentence for whatever has not been exact so far.
        """
        denoiser = params.denoiser
        pass_name: PassName = "hires" if getattr(denoiser.p, "is_hr_pass", False) else "base"
        built = built_by(denoiser.sampler)
        if built is not self._built:
            self._session.begin_pass(clock_of(denoiser), pass_name)
            self._built = built
        moment = self._session.step(float(params.sigma.max()), self._rows(params))
        choose(params, moment, strengths_at(self._uses, moment, pass_name), pass_name)
        return self._session.warnings

    def disarm(self) -> None:
        """Switch every network off until the next `step` or `encode`."""
        self._session.disarm()

    def close(self) -> None:
        """Take every hook off; harmless when there is none."""
        self._session.close()
        if self._guard is not None:
            self._guard.remove()
        self._uses, self._guard, self._bound, self._built = (), None, (), None

    def _knots(self, pass_name: PassName) -> list[tuple[float, Strengths]]:
        return knots_of(self._uses, pass_name, steps_of(self._p(), pass_name))

    def _rows(self, params: Any) -> list[Row]:
        """Return what each row of the batch computes: the host puts those of the negative prompt last."""
        if not any("neg" in {**use.curves, **use.hires} for use, _ in self._uses):
            return [Row()]
        positive = params.text_cond.shape[0]
        return [Row()] * positive + [Row(negative=True)] * (len(params.x) - positive)

    def _arm(self, strengths: Strengths) -> None:
        self._session.encode(dict(enumerate(strengths)))

    def _after_unet(self, unet: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        if output is None:  # it raised, and the host's callback after an evaluation will not come
            self.disarm()


def _of_dependent_networks(uses: Uses, modules: Mapping[str, nn.Module | Share]) -> list[nn.Module]:
    """Return the modules with a network that is computed from the weight as it is now, once for all evaluations."""
    ids = {
        layer_id
        for _, loaded in uses
        for layer_id, network in loaded.layers.items()
        if network.type.prepare is not None
    }
    found = [modules.get(layer_id) for layer_id in sorted(ids)]
    return [module for module in found if isinstance(module, nn.Module)]
