"""The schedules of one picture in the WebUI: their session on the model that is loaded, through every pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from modules import sd_unet, shared
from torch import nn
from torch.utils.hooks import RemovableHandle

from lib_lora.apply.forecast import memory_note
from lib_lora.apply.fused import Share
from lib_lora.apply.session import Row, Session
from lib_lora.errors import UsageError
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.matching import EMBEDDING
from lib_lora.hosts.a1111 import MIXED
from lib_lora.hosts.a1111_clock import Built, built_by, clock_of
from lib_lora.hosts.a1111_embeddings import Embeddings
from lib_lora.hosts.a1111_encoders import (
    KNOTS,
    Encoded,
    Plan,
    Strengths,
    choose,
    deviation,
    is_negative,
    keep,
    kept,
    plan_of,
    reader,
)
from lib_lora.hosts.a1111_model import (
    absent_note,
    add_hashes,
    bring_up_to_date,
    live_layers,
    network_files,
    say_not_found,
)
from lib_lora.hosts.reading import Uses, read_uses
from lib_lora.schedule.curve import NetworkUse, PassName


class Picture:
    """One `p` of the host and what its prompt asks for. Neither the `p` nor the model is kept alive by it."""

    def __init__(self, p: Any, wanted: Sequence[NetworkUse]) -> None:
        self._p = weakref.ref(p)
        self._wanted = tuple(wanted)
        self._read: tuple[Uses, list[str]] | None = None
        self._uses: Uses = ()
        self._session = Session(())
        self._guard: RemovableHandle | None = None
        self._embeddings: Embeddings | None = None
        self._bound: tuple[object, ...] = ()
        self._built: Built | None = None

    def is_for(self, p: Any) -> bool:
        """Tell whether this is the picture of a `p`."""
        return self._p() is p

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the networks that are asked for."""
        return frozenset(use.name for use in self._wanted)

    def reads_weights(self) -> bool:
        """Tell whether some network is computed from the weights, so that the host had better write nothing into them.

        Raises as `bind` does.
        """
        self._read = self._read or self._read_networks()
        return any(
            network.type.reads_base
            for _, loaded in self._read[0]
            for network in loaded.layers.values()
        )

    def add(self, uses: Sequence[NetworkUse]) -> None:
        """Take more networks, before `bind`."""
        if uses:
            self._wanted, self._read = (*self._wanted, *uses), None

    def stamps(self) -> list[str]:
        """Return what tells these networks from others of their names: when their files were written."""
        return [f"{name} {file.stat().st_mtime_ns}" for name, file in self._files().items()]

    def bind(self) -> list[str]:
        """Read the networks for the model that the host has loaded and put their hooks on it, unless it is the one they are on.

        Returns a note for whatever is left out. Raises FileFormatError for a checkpoint that is not supported and UsageError where
        another program computes the UNet.
        """
        model = shared.sd_model
        bound = (weakref.ref(model), model.sd_checkpoint_info.filename)
        if bound == self._bound:
            return []
        self.close()
        self._uses, notes = self._read or self._read_networks()
        self._read = None  # the session takes what was read
        checkpoint = open_checkpoint(model.sd_checkpoint_info.filename)
        modules = live_layers(model, checkpoint.layers)
        for module in _of_dependent_networks(self._uses, modules):
            bring_up_to_date(module)
        loaded = {network.name: network for _, network in self._uses}
        self._tell(memory_note([network.layers for network in loaded.values()], modules))
        self._session = Session(self._uses)
        unet = model.model.diffusion_model
        self._session.open(modules, unet)
        self._guard = unet.register_forward_hook(self._after_unet, always_call=True)
        self._embeddings = Embeddings(self._files())
        self._bound = bound
        absent = (absent_note(network, modules) for network in loaded.values())
        return [*notes, *filter(None, absent)]

    def add_hashes(self) -> None:
        """Add the networks that act to the infotext's `Lora hashes`."""
        add_hashes(self._p(), [use.name for use, _ in self._uses])

    def arm_encoders(self, pass_name: PassName) -> Strengths:
        """Arm the text encoders with the strengths that a pass starts with, and return these."""
        start = self._plan(pass_name).start
        self._arm(start)
        return start

    def encode_curves(
        self, pass_name: PassName, prompts: Any, first: Any, encode: Callable[[], Any]
    ) -> None:
        """Encode prompts under the other strengths that a pass will have; `first` is what they are under those of its start."""
        p, plan = self._p(), self._plan(pass_name)
        before = kept(p, pass_name, prompts)
        if before is not None and before.plan == plan and before.conds[plan.start] is first:
            return
        conds = {plan.start: first}
        for _, strengths in plan.knots:
            if strengths not in conds:
                conds[strengths] = self._encoded(strengths, encode)
        encoded = Encoded(plan, conds)
        conds |= self._compared(encoded, is_negative(prompts), encode)
        keep(p, pass_name, prompts, encoded)

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
        choose(params, moment, pass_name)
        return self._session.warnings

    def disarm(self) -> None:
        """Switch every network off until the next `step` or `encode`."""
        self._session.disarm()

    def close(self) -> None:
        """Take every hook off; harmless when there is none."""
        self._session.close()
        if self._guard is not None:
            self._guard.remove()
        if self._embeddings is not None:
            self._embeddings.remove()
        self._uses, self._guard, self._embeddings = (), None, None
        self._bound, self._built = (), None

    def _read_networks(self) -> tuple[Uses, list[str]]:
        if sd_unet.current_unet is not None:
            raise UsageError("A compiled UNet is active, which has no layers for a LoRA to act on.")
        checkpoint = open_checkpoint(shared.sd_model.sd_checkpoint_info.filename)
        names = list(dict.fromkeys(use.name for use in self._wanted))
        files = network_files(names)
        say_not_found([name for name in names if name not in files])
        return read_uses(self._wanted, files, checkpoint, apart=(EMBEDDING,))

    def _files(self) -> dict[str, Path]:
        names = dict.fromkeys(use.name for use, _ in self._uses)
        files = network_files(names)
        return {name: files[name] for name in names}

    def _plan(self, pass_name: PassName) -> Plan:
        return plan_of(self._uses, self._p(), pass_name)

    def _encoded(self, strengths: Strengths, encode: Callable[[], Any]) -> Any:
        self._arm(strengths)
        return encode()

    def _compared(
        self, encoded: Encoded, negative: bool, encode: Callable[[], Any]
    ) -> dict[Strengths, Any]:
        """Encode where mixtures are worst, tell how far off they are, and return what was encoded."""
        p: Any = self._p()
        found: dict[Strengths, Any] = {}
        largest = 0.0
        for index in encoded.plan.gaps():
            place, strengths = encoded.plan.places[index]
            found[strengths] = self._encoded(strengths, encode)
            read = reader(negative, index * getattr(p, "step_multiplier", 1))
            off = deviation(encoded.mixed(place, read), read(found[strengths]))
            largest = max(largest, off)
        if found:
            p.loom_largest = max(largest, getattr(p, "loom_largest", 0.0))
            told = f"{KNOTS} strengths are encoded and the others mixed, at most {p.loom_largest:.2%} off"
            p.extra_generation_params[MIXED] = told
        return found

    def _rows(self, params: Any) -> list[Row]:
        """Return what each row of the batch computes: the host puts those of the negative prompt last."""
        if not any("neg" in {**use.curves, **use.hires} for use, _ in self._uses):
            return [Row()]
        positive = params.text_cond.shape[0]
        return [Row()] * positive + [Row(negative=True)] * (len(params.x) - positive)

    def _arm(self, strengths: Strengths) -> None:
        self._session.encode(dict(enumerate(strengths)))

    def _tell(self, sentence: str | None) -> None:
        """Show a sentence below the picture that is no problem, so that its infotext has nothing of it."""
        p = self._p()
        if sentence and p is not None:
            p.comment(sentence)

    def _after_unet(self, unet: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        if output is None:  # it raised, and the host's callback after an evaluation will not come
            self.disarm()


def _of_dependent_networks(uses: Uses, modules: Mapping[str, nn.Module | Share]) -> list[nn.Module]:
    """Return the modules with a network that is computed from the weight as it is now, once for all evaluations."""
    ids = {
        layer_id
        for _, loaded in uses
        for layer_id, network in loaded.layers.items()
        if network.type.prepare is not None or network.type.reads_base
    }
    found = [modules.get(layer_id) for layer_id in sorted(ids)]
    return [module for module in found if isinstance(module, nn.Module)]
