"""Text encoder strengths that change during a pass: conditionings for some strengths, chosen or mixed at every evaluation.

The host encodes a prompt before it samples, and may move the text encoder away then. So all that a pass needs is encoded at once: every
strength that its evaluations have, up to `KNOTS` of them, else `KNOTS` between which conditionings are mixed. Where one network alone
changes, its strengths are mixed, so that the shape of its curve costs nothing; where several do, positions in the pass are.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modules import prompt_parser

from lib_lora.hosts.a1111_clock import foreseen
from lib_lora.hosts.reading import Uses
from lib_lora.schedule.curve import Moment, NetworkUse, PassName

KNOTS = 8

Strengths = tuple[float, ...]
Place = tuple[float, Strengths]
"""Where strengths lie among others, and the text encoder strength of every use."""
Read = Callable[[Any], Any]
_NAME = "loom_encoded"
_START = Moment(0.0, 0.0, math.inf, 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """The strengths of a pass.

    alone: the index of the one use that changes, `None` where several do or none; places: those of every evaluation, in its order;
    knots: those to encode, sorted, the start of the pass among them; uses: whose strengths these are.
    """

    uses: tuple[NetworkUse, ...]
    alone: int | None
    places: Sequence[Place]
    knots: Sequence[Place]

    @property
    def start(self) -> Strengths:
        """Return the strengths that the pass starts with."""
        return self.places[0][1]

    def gaps(self) -> list[int]:
        """Return the evaluation that is farthest from the knots on both sides of it, for every pair of knots, by index."""
        encoded = {strengths for _, strengths in self.knots}
        others = [
            index for index, (_, strengths) in enumerate(self.places) if strengths not in encoded
        ]
        positions = [position for position, _ in self.knots]
        farthest: dict[int, tuple[float, int]] = {}
        for index in others:
            here = self.places[index][0]
            after = min(max(bisect_left(positions, here), 1), len(positions) - 1)
            distance = min(here - positions[after - 1], positions[after] - here)
            farthest[after] = max(farthest.get(after, (-math.inf, 0)), (distance, index))
        return [index for _, index in farthest.values()]


@dataclass(frozen=True, slots=True)
class Encoded:
    """What a pass can choose from: a conditioning for the strengths of every knot, and for some others."""

    plan: Plan
    conds: Mapping[Strengths, Any]

    def at(self, progress: float, strengths: Strengths, read: Read) -> Any:
        """Return the tensors for these strengths, which the pass has at this position; `read` takes them out of a conditioning."""
        if strengths in self.conds:
            return read(self.conds[strengths])
        return self.mixed(_place(self.plan.alone, progress, strengths), read)

    def mixed(self, place: float, read: Read) -> Any:
        """Return a mixture of the tensors of the two knots around a place."""
        knots = self.plan.knots
        after = min(max(bisect_left([at for at, _ in knots], place), 1), len(knots) - 1)
        (before, first), (later, second) = knots[after - 1], knots[after]
        share = min(max((place - before) / (later - before), 0.0), 1.0)
        return _mixed(read(self.conds[first]), read(self.conds[second]), share)


def plan_of(uses: Uses, p: Any, pass_name: PassName) -> Plan:
    """Return the strengths that a pass of the picture will have, and those to encode.

    Raises UsageError for a sampler that does not tell its levels ahead.
    """
    own = tuple(use for use, _ in uses)
    if not any(_changes(use, pass_name) for use in own):
        start = (0.0, _strengths_at(own, _START, pass_name))
        return Plan(own, None, [start], [start])
    clock = foreseen(p, pass_name)
    moments = [clock.moment(level) for level in clock.levels] or [_START]
    every = [(moment.progress, _strengths_at(own, moment, pass_name)) for moment in moments]
    columns = zip(*(strengths for _, strengths in every), strict=True)
    changing = [index for index, column in enumerate(columns) if len({*column}) > 1]
    alone = changing[0] if len(changing) == 1 else None
    places = [(_place(alone, progress, strengths), strengths) for progress, strengths in every]
    return Plan(own, alone, places, _knots(alone, places))


def kept(p: Any, pass_name: PassName, prompts: Any) -> Encoded | None:
    """Return what `keep` has left for prompts, if anything."""
    return getattr(p, _NAME, {}).get(_key(pass_name, prompts))


def keep(p: Any, pass_name: PassName, prompts: Any, encoded: Encoded) -> None:
    """Leave conditionings on the picture, where no later activation loses them, if there is anything to choose."""
    key = _key(pass_name, prompts)
    others = {name: one for name, one in getattr(p, _NAME, {}).items() if name != key}
    setattr(p, _NAME, {**others, key: encoded} if len(encoded.conds) > 1 else others)


def choose(params: Any, moment: Moment, pass_name: PassName) -> None:
    """Give the evaluation that follows the conditionings of the strengths that the encoded networks have then.

    With an option of the host's, a hires pass has conditionings of the first pass' networks and others in its UNet.
    """
    found = getattr(params.denoiser.p, _NAME, {})
    for negative, name in ((False, "text_cond"), (True, "text_uncond")):
        encoded = found.get((pass_name, negative))
        if encoded is not None:
            strengths = _strengths_at(encoded.plan.uses, moment, pass_name)
            read = reader(negative, params.denoiser.step)
            setattr(params, name, encoded.at(moment.progress, strengths, read))


def reader(negative: bool, step: int) -> Read:
    """Return what takes the tensors of a step out of a conditioning, as the host does at an evaluation."""

    def read_positive(cond: Any) -> Any:
        return prompt_parser.reconstruct_multicond_batch(cond, step)[1]

    def read_negative(cond: Any) -> Any:
        return prompt_parser.reconstruct_cond_batch(cond, step)

    return read_negative if negative else read_positive


def is_negative(prompts: Any) -> bool:
    """Tell whether prompts are the negative ones of a batch."""
    return getattr(prompts, "is_negative_prompt", False)


def deviation(mixture: Any, true: Any) -> float:
    """Return the largest difference of two conditionings, as a share of the largest element; of mappings the larger one's."""
    if isinstance(true, dict):
        return max(deviation(mixture[name], true[name]) for name in true)
    largest = float(true.abs().max())
    return float((mixture - true).abs().max()) / largest if largest else 0.0


def _strengths_at(uses: Iterable[NetworkUse], moment: Moment, pass_name: PassName) -> Strengths:
    """Return the text encoder strength of every use."""
    return tuple(use.strength("te", moment, pass_name) for use in uses)


def _key(pass_name: PassName, prompts: Any) -> tuple[PassName, bool]:
    return pass_name, is_negative(prompts)


def _changes(use: NetworkUse, pass_name: PassName) -> bool:
    own = use.hires if pass_name == "hires" else use.curves
    return bool(use.gates) or not own.get("te", use.curves["te"]).is_constant


def _place(alone: int | None, progress: float, strengths: Strengths) -> float:
    return progress if alone is None else strengths[alone]


def _knots(alone: int | None, places: Sequence[Place]) -> list[Place]:
    """Return all places when their strengths are few, else some that are evenly apart, and the start."""
    if len({strengths for _, strengths in places}) <= KNOTS:
        return sorted(dict(places).items())
    if alone is None:
        last = len(places) - 1
        return [places[round(index * last / (KNOTS - 1))] for index in range(KNOTS)]
    start = places[0][1]
    low, high = min(place for place, _ in places), max(place for place, _ in places)
    found = {place: strengths for place, strengths in places if place in (low, high, start[alone])}
    for index in range(1, KNOTS - 1):
        place = low + (high - low) * index / (KNOTS - 1)
        found[place] = (*start[:alone], place, *start[alone + 1 :])
    return sorted(found.items())


def _mixed(one: Any, other: Any, share: float) -> Any:
    """Mix two tensors, or those of two mappings, which are the caller's own."""
    if not isinstance(one, dict):
        return one.lerp(other, share)
    for name in one:
        one[name] = one[name].lerp(other[name], share)
    return one
