"""Text encoder strengths that change during a pass: conditionings for some strengths, chosen or mixed at every evaluation.

The host encodes a prompt before it samples, and may move the text encoder away then. So all that a pass needs is encoded at once: every
strength that its steps have, up to `KNOTS` of them, else those of `KNOTS` positions, between which conditionings are mixed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from modules import prompt_parser
from modules.sd_samplers_common import setup_img2img_steps

from lib_lora.hosts.reading import Uses
from lib_lora.schedule.curve import Moment, PassName

KNOTS = 8

Strengths = tuple[float, ...]
_NAME = "loom_encoded"
_UNKNOWN = math.inf


@dataclass(frozen=True, slots=True)
class Encoded:
    """What a pass can choose from. knots: the strength of every use at some positions, in order; conds: by strengths."""

    knots: Sequence[tuple[float, Strengths]]
    conds: Mapping[Strengths, Any]

    def at(self, progress: float, strengths: Strengths, read: Callable[[Any], Any]) -> Any:
        """Return the tensors for these strengths, which the pass has at this position; `read` takes them out of a conditioning."""
        if strengths in self.conds:
            return read(self.conds[strengths])
        later = bisect_left([position for position, _ in self.knots], progress)
        (before, first), (after, second) = self.knots[later - 1], self.knots[later]
        share = (progress - before) / (after - before)
        return _mixed(read(self.conds[first]), read(self.conds[second]), share)


def strengths_at(uses: Uses, moment: Moment, pass_name: PassName) -> Strengths:
    """Return the text encoder strength of every use; a curve over sigma stays as it starts."""
    at = replace(moment, sigma=_UNKNOWN)
    return tuple(use.strength("te", at, pass_name) for use, _ in uses)


def knots_of(uses: Uses, pass_name: PassName, steps: int) -> list[tuple[float, Strengths]]:
    """Return the positions and strengths to encode for a pass of this many steps, the start first.

    The noise levels of the pass are not known yet.
    """

    def knots(count: int) -> list[tuple[float, Strengths]]:
        last = max(count - 1, 1)
        moments = [
            Moment(index / last, index * (steps - 1) / last, _UNKNOWN, steps)
            for index in range(count)
        ]
        return [(moment.progress, strengths_at(uses, moment, pass_name)) for moment in moments]

    every = knots(max(steps, 1))
    return every if len({strengths for _, strengths in every}) <= KNOTS else knots(KNOTS)


def steps_of(p: Any, pass_name: PassName) -> int:
    """Return how many steps a pass of the picture will have."""
    if pass_name == "hires":
        return p.hr_second_pass_steps or p.steps
    if getattr(p, "init_images", None):
        return setup_img2img_steps(p)[1] + 1
    return p.steps


def keep(p: Any, pass_name: PassName, prompts: Any, encoded: Encoded) -> None:
    """Leave conditionings on the picture, where no later activation loses them, if there is anything to choose."""
    key = (pass_name, getattr(prompts, "is_negative_prompt", False))
    kept = {name: one for name, one in getattr(p, _NAME, {}).items() if name != key}
    setattr(p, _NAME, {**kept, key: encoded} if len(encoded.conds) > 1 else kept)


def choose(params: Any, moment: Moment, strengths: Strengths, pass_name: PassName) -> None:
    """Give the evaluation that follows the conditionings of these strengths."""
    kept = getattr(params.denoiser.p, _NAME, {})
    step = params.denoiser.step

    def read_positive(cond: Any) -> Any:
        return prompt_parser.reconstruct_multicond_batch(cond, step)[1]

    def read_negative(cond: Any) -> Any:
        return prompt_parser.reconstruct_cond_batch(cond, step)

    if (pass_name, False) in kept:
        encoded = kept[pass_name, False]
        params.text_cond = encoded.at(moment.progress, strengths, read_positive)
    if (pass_name, True) in kept:
        encoded = kept[pass_name, True]
        params.text_uncond = encoded.at(moment.progress, strengths, read_negative)


def _mixed(one: Any, other: Any, share: float) -> Any:
    """Mix two tensors, or those of two mappings, which are the caller's own."""
    if not isinstance(one, dict):
        return one.lerp(other, share)
    for name in one:
        one[name] = one[name].lerp(other[name], share)
    return one
