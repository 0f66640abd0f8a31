"""The AUTOMATIC1111 WebUI v1.10.1: where schedules are cut into its way of making a picture.

Its Lora extension goes on to load what it understands. `parse_prompts` lifts schedules out of the prompts and adds one entry to the
networks that a picture asks for, so that cached conditionings see it; `activate` takes the entry out again and opens a session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from modules import devices, extra_networks, patches, shared
from modules.processing import StableDiffusionProcessing

from lib_lora.errors import LoraError
from lib_lora.hosts.a1111_clock import BUILDERS, remembering
from lib_lora.hosts.a1111_static import not_added, take_static
from lib_lora.hosts.a1111_tags import negative_notes, split_prompts
from lib_lora.schedule.curve import NetworkUse, PassName

if TYPE_CHECKING:
    from lib_lora.hosts.a1111_picture import Picture

log = logging.getLogger(__name__)

ENTRY = "LoRA Loom"
"""No tag of a prompt can have this name, for it has a space."""
INFOTEXT = "Loom errors"
MIXED = "Loom text encoder"
KEEP_WEIGHTS = "loom_keep_weights"
REFUSE_DURING_RUN = "loom_refuse_during_run"

_BATCH = "loom_batch"

Data = Mapping[str, list[Any]]
Replaced = Callable[..., Any]


class Entry(extra_networks.ExtraNetworkParams):
    """The schedules of one batch; the host compares `items`, which hold all that changes what is computed."""

    def __init__(self, uses: Sequence[NetworkUse], problems: Sequence[str]) -> None:
        super().__init__([_text_of(use) for use in uses])
        self.uses, self.problems = uses, problems

    def tell_apart(self, others: Sequence[str]) -> None:
        """Tell the host's cache from a picture in which the same tags act in another way."""
        self.items = [*map(_text_of, self.uses), *others]


class CutIn:
    """The extension as the WebUI sees it; its callbacks are the methods that the registration names.

    installed: the one that the WebUI has now, if any.
    """

    installed: ClassVar[CutIn | None] = None

    def __init__(self) -> None:
        self._picture: Picture | None = None

    def install(self) -> None:
        """Put our functions around the host's, and our page among its settings."""
        keep = "Keep weights untouched: LoRA without a schedule act beside the weights too"
        refuse = "Refuse pictures while a training run has the GPU"
        options = {
            KEEP_WEIGHTS: shared.OptionInfo(False, keep).info(
                "no copy of the model in memory; pictures differ in the last bits"
            ),
            REFUSE_DURING_RUN: shared.OptionInfo(False, refuse).info(
                "otherwise they wait in the queue until the run is over or paused"
            ),
        }
        shared.options_templates.update(shared.options_section(("loom", "LoRA Loom"), options))
        for holder, name, around in self._cuts():
            patches.patch(__name__, holder, name, around(getattr(holder, name)))
        CutIn.installed = self

    def uninstall(self) -> None:
        """Undo `install` and take every hook off the model."""
        CutIn.installed = None
        self.close()
        for option in (KEEP_WEIGHTS, REFUSE_DURING_RUN):
            shared.options_templates.pop(option)
        for holder, name, _ in self._cuts():
            patches.undo(__name__, holder, name)

    def arm(self, params: Any) -> None:
        """Set the strengths for the evaluation of the UNet that follows."""
        self._disarm()
        p = params.denoiser.p
        with self._reporting(p) as picture:
            if picture is not None:
                _report(p, picture.bind())
                _report(p, picture.step(params))

    def close(self) -> None:
        """Take the networks of the last picture off the model and off its device; harmless when there are none."""
        if self._picture is not None:
            self._picture.close()
        self._picture = None

    def disarm(self, params: Any) -> None:
        """Switch every network off: the evaluation is over."""
        self._disarm()

    def _cuts(self) -> tuple[tuple[Any, str, Callable[[Replaced], Replaced]], ...]:
        return (
            (extra_networks, "parse_prompts", self._around_parse_prompts),
            (extra_networks, "activate", self._around_activate),
            (StableDiffusionProcessing, "get_conds_with_caching", self._around_conditionings),
            *((sampler, name, remembering) for sampler, name in BUILDERS),
        )

    def _around_parse_prompts(self, original: Replaced) -> Replaced:
        def parse_prompts(prompts: Sequence[str]) -> tuple[list[str], Data | None]:
            split = split_prompts(prompts)
            texts, data = original(list(split.texts))
            if split.uses or split.problems or (data is not None and _keeps_weights()):
                data[ENTRY] = [Entry(split.uses, split.problems)]
            return texts, data

        return parse_prompts

    def _around_activate(self, original: Replaced) -> Replaced:
        def activate(p: Any, data: Data) -> None:
            self._disarm()
            # Without prompts it is no picture: the host encodes the empty text of a model that it has loaded.
            entries = data.get(ENTRY, ())
            if p.prompts or entries:
                self.close()
                _forget(p)
                hires = getattr(p, "hr_negative_prompts", None)
                _report(p, negative_notes([*(p.negative_prompts or ()), *(hires or ())]))
            if not entries:
                original(p, data)
                return
            others = {name: params for name, params in data.items() if name != ENTRY}
            (entry,) = entries
            self._begin(p, entry, others)
            with not_added(self._picture.names if self._picture else ()):
                original(p, others)
            self._open(p, entry)

        return activate

    def _around_conditionings(self, original: Replaced) -> Replaced:
        def get_conds_with_caching(
            p: Any,
            function: Replaced,
            prompts: Any,
            steps: int,
            caches: Any,
            data: Data,
            hires_steps: int | None = None,
        ) -> Any:
            def encode() -> Any:
                old = shared.opts.use_old_scheduling
                with devices.autocast():
                    return function(shared.sd_model, prompts, steps, hires_steps, old)

            pass_name: PassName = "base" if hires_steps is None else "hires"
            with self._reporting(p) as picture:
                if picture is not None:
                    _report(p, picture.bind())
                    data = _with_start(data, picture.arm_encoders(pass_name))
            try:
                first = original(p, function, prompts, steps, caches, data, hires_steps)
            finally:
                self._disarm()
            with self._reporting(p) as picture:
                if picture is not None:
                    picture.encode_curves(pass_name, prompts, first, encode)
            self._disarm()
            return first

        return get_conds_with_caching

    def _begin(self, p: Any, entry: Entry, others: dict[str, list[Any]]) -> None:
        """Begin a picture, and take out of `others` what is to act beside the weights too."""
        _report(p, entry.problems)
        scheduled, asked, prompts = [use.name for use in entry.uses], dict(others), p.all_prompts
        kept = take_static(p, others, scheduled) if _keeps_weights() else []
        if not entry.uses and not kept:
            return
        # Here and not above: the host's start does not wait for what only a schedule needs.
        from lib_lora.hosts.a1111_picture import Picture

        self._picture = Picture(p, [*entry.uses, *kept])
        with self._reporting(p) as picture:
            if picture.reads_weights() and not _keeps_weights():
                picture.add(take_static(p, others, scheduled))
        if self._picture is None:
            # Nothing can act beside these weights, but the host may write into them.
            others.update(asked)
            p.all_prompts = prompts

    def _open(self, p: Any, entry: Entry) -> None:
        told = ["everything is left out"] if entry.uses else []
        with self._reporting(p) as picture:
            if picture is not None:
                notes = picture.bind()
                _report(p, notes)
                picture.add_hashes()
                told = [*notes, *picture.stamps()]
        entry.tell_apart(told)

    @contextmanager
    def _reporting(self, p: Any) -> Iterator[Any]:
        """Yield the session's picture if it is that of `p`; a failure ends the session and is told with the picture."""
        picture = self._picture
        try:
            yield picture if picture is not None and picture.is_for(p) else None
        except LoraError as error:
            self.close()
            _report(p, [f"The schedules are left out: {error}"])
        except Exception as error:
            log.exception("a callback of the WebUI failed")
            self.close()
            _report(p, [f"The schedules are left out: {type(error).__name__}: {error}"])

    def _disarm(self) -> None:
        if self._picture is not None:
            self._picture.disarm()


def _text_of(use: NetworkUse) -> str:
    """Return the text that stands for a use: its tag, and what its prompt does with the tag."""
    return f"{use.source} {use.gates}" if use.gates else use.source


def _with_start(data: Data, strengths: Sequence[float]) -> Data:
    """Tell the host's cache from a pass that starts with other text encoder strengths, as one at another noise level may."""
    start = extra_networks.ExtraNetworkParams([f"text encoders start with {strengths}"])
    return {**data, ENTRY: [*data.get(ENTRY, ()), start]}


def _keeps_weights() -> bool:
    return shared.opts.data.get(KEEP_WEIGHTS, False)


def _forget(p: Any) -> None:
    """Take what another batch was told out of the infotext of the one that begins.

    Scripts copy a picture for each of theirs, and the copies share what its infotext holds.
    """
    if getattr(p, _BATCH, None) is p.extra_network_data:
        return
    setattr(p, _BATCH, p.extra_network_data)
    if p.extra_generation_params.keys() & {INFOTEXT, MIXED}:
        kept = p.extra_generation_params.items()
        p.extra_generation_params = {k: v for k, v in kept if k not in (INFOTEXT, MIXED)}


def _report(p: Any, sentences: Sequence[str]) -> None:
    """Tell what was left out of a picture below it, in its infotext and on the console.

    Of a picture that another extension makes inside of one, nobody sees but the console.
    """
    for sentence in sentences:
        p.comment(sentence)
        told = p.extra_generation_params.get(INFOTEXT)
        if told is not None and sentence in told:
            continue
        log.warning(sentence)
        p.extra_generation_params[INFOTEXT] = f"{told} {sentence}" if told else sentence
