"""Which LoRA tags of a prompt are ours and which stay the WebUI's.

The WebUI reads finite numbers, `te=`, `unet=` and `dyn=`, and takes no notice of prompt editing. Block weights that we do not know are left to
sd-webui-lora-block-weight. Every other tag is a schedule, or a bad one that the host would stumble over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lib_lora.schedule.brackets import brackets_of
from lib_lora.schedule.curve import NetworkUse
from lib_lora.schedule.grammar import TAG, parse_prompt

_HIDDEN = "\ue000\ue001"  # no prompt has these: they are for private use
_HOST_WORDS = frozenset({"te", "unet", "dyn"})
_BLOCK_WEIGHT_WORDS = frozenset({"lbw", "lbwe", "x", "step", "w"})
_BATCH = "The pictures of one batch share the schedules of the first one's prompt."
_NEGATIVE = (
    "Schedules in the negative prompt are words there and do nothing else:"
    " neg= in a tag of the prompt is its strength on the negative one."
)


@dataclass(frozen=True, slots=True)
class Split:
    """A prompt, or the prompts of a batch: `texts` without our tags, what these ask for, and a sentence for each problem."""

    texts: tuple[str, ...]
    uses: tuple[NetworkUse, ...]
    problems: tuple[str, ...]


def split_prompts(prompts: Sequence[str]) -> Split:
    """Lift our tags out of the prompts of one batch; as in the WebUI, the tags of the first prompt count."""
    parts = [_split(prompt) for prompt in prompts]
    problems = [problem for part in parts for problem in part.problems]
    if any(part.uses != parts[0].uses for part in parts):
        problems.append(_BATCH)
    texts = tuple(text for part in parts for text in part.texts)
    return Split(texts, parts[0].uses if parts else (), tuple(dict.fromkeys(problems)))


def negative_notes(prompts: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence where negative prompts, out of which the WebUI takes no tags, hold some of ours."""
    split = split_prompts(prompts)
    return (_NEGATIVE,) if split.uses or split.problems else ()


def static_use(items: Sequence[str]) -> NetworkUse | None:
    """Return what one of the host's own tags asks for, `None` where we do not understand it; items: its parts, as the host has them."""
    parsed = parse_prompt(f"<lora:{':'.join(map(str, items))}>")
    return next(iter(parsed.uses), None)


def _split(prompt: str) -> Split:
    """Lift our tags out of one prompt; those of the host are hidden meanwhile."""
    brackets = brackets_of(prompt)
    hidden: list[str] = []

    def hide(tag: re.Match[str]) -> str:
        edited = any(
            bracket.gate(tag.start()) for bracket in brackets if bracket.holds(tag.start())
        )
        if edited or not _is_hosts(tag.group(1)):
            return tag.group()
        hidden.append(tag.group())
        return _HIDDEN[0] + _HIDDEN[1] * (len(tag.group()) - 1)

    parsed = parse_prompt(TAG.sub(hide, prompt))
    found = iter(hidden)
    text = re.sub(f"{_HIDDEN[0]}{_HIDDEN[1]}+", lambda _: next(found, ""), parsed.text)
    return Split((text,), parsed.uses, tuple(map(str, parsed.errors)))


def _is_hosts(inside: str) -> bool:
    """Tell whether the host reads what stands between `<lora:` and `>`."""
    name, *parts = inside.split(":")
    if not name.strip():
        return False
    words = {part.partition("=")[0].strip() for part in parts if "=" in part}
    if words & _BLOCK_WEIGHT_WORDS and "@" not in inside:
        return static_use([name, *parts]) is None  # of presets that its extension alone has
    values = [part.partition("=")[2] if "=" in part else part for part in parts]
    return (
        words <= _HOST_WORDS and all(map(_is_number, values)) and all(map(_is_whole, _ranks(parts)))
    )


def _ranks(parts: Sequence[str]) -> list[str]:
    """Return what the host reads as a number of ranks."""
    named = [part.partition("=")[2] for part in parts if part.startswith("dyn=")]
    return [*[part for part in parts if "=" not in part][2:3], *named]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _is_whole(text: str) -> bool:
    try:
        return int(text) == float(text)
    except ValueError:
        return False
