"""Which LoRA tags of a prompt are ours and which stay the WebUI's.

The WebUI reads numbers, `te=`, `unet=` and `dyn=`. Tags with parts of sd-webui-lora-block-weight are that extension's. Every other tag is
a schedule, or a bad one that the host would stumble over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lib_lora.schedule.curve import NetworkUse
from lib_lora.schedule.grammar import parse_prompt

_TAG = re.compile(r"<lora:([^<>]*)>")
_HOST_WORDS = frozenset({"te", "unet", "dyn"})
_BLOCK_WEIGHT_WORDS = frozenset({"lbw", "lbwe", "x", "step", "w"})
_HOST_STRENGTHS = 2
_BATCH = "The pictures of one batch share the schedules of the first one's prompt."


@dataclass(frozen=True, slots=True)
class Split:
    """A prompt, or the prompts of a batch: `texts` without our tags, what these ask for, and a sentence for each problem."""

    texts: tuple[str, ...]
    uses: tuple[NetworkUse, ...]
    problems: tuple[str, ...]


def split_prompts(prompts: Sequence[str], keep_weights: bool) -> Split:
    """Lift our tags out of the prompts of one batch; as in the WebUI, the tags of the first prompt count.

    keep_weights: tags without a schedule are ours too.
    """
    parts = [_split(prompt, keep_weights) for prompt in prompts]
    problems = [problem for part in parts for problem in part.problems]
    if any(_sources(part) != _sources(parts[0]) for part in parts):
        problems.append(_BATCH)
    texts = tuple(text for part in parts for text in part.texts)
    return Split(texts, parts[0].uses if parts else (), tuple(dict.fromkeys(problems)))


def _split(prompt: str, keep_weights: bool) -> Split:
    def host_keeps(inside: str) -> bool:
        return _is_hosts(inside, keep_weights)

    ours_only = _TAG.sub(
        lambda tag: "." * len(tag.group()) if host_keeps(tag.group(1)) else tag.group(), prompt
    )
    text = _TAG.sub(lambda tag: tag.group() if host_keeps(tag.group(1)) else "", prompt)
    parsed = parse_prompt(ours_only)
    return Split((text,), parsed.uses, tuple(map(str, parsed.errors)))


def _is_hosts(inside: str, keep_weights: bool) -> bool:
    """Tell whether what stands between `<lora:` and `>` is left to the host."""
    _, *parts = inside.split(":")
    words = {part.partition("=")[0].strip() for part in parts if "=" in part}
    if words & _BLOCK_WEIGHT_WORDS:
        return "@" not in inside
    if not words <= _HOST_WORDS or not all(_is_number(part) for part in parts):
        return False
    positional = [part for part in parts if "=" not in part]
    return not keep_weights or "dyn" in words or len(positional) > _HOST_STRENGTHS


def _is_number(part: str) -> bool:
    try:
        float(part.rpartition("=")[2])
    except ValueError:
        return False
    return True


def _sources(part: Split) -> list[str]:
    return [use.source for use in part.uses]
