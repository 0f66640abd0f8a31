"""The pictures that the demo draws: one prompt and seed under eight schedules, and sixteen prompts without and with the LoRA.

The prompts are drawn from the grammar by a fixed seed; sampler, steps and guidance are chosen once, for all pictures.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from lib_lora.demo.concepts import DONUT
from lib_lora.host import GenerateRequest
from lib_lora.schedule.grammar import parse_prompt

SIDE, STEPS, GUIDANCE, SAMPLER = 64, 20, 4.0, "ddim"
PAIRS, COMPARED = 16, 8
MERGED_STRENGTH = 0.8
MAIN_PROMPT = "a large striped blue donut on a beige background"


@dataclass(frozen=True, slots=True)
class Shot:
    """One way to draw the main prompt: its title and the tags that are added to the prompt."""

    title: str
    tags: tuple[str, ...] = ()


def scheduled_shots(first: str, second: str) -> tuple[Shot, ...]:
    """Return the shots of the base with the networks `first` and `second` live."""
    return (
        Shot("Base"),
        Shot("At 0.5", (f"<lora:{first}:0.5>",)),
        Shot("At 1", (f"<lora:{first}:1>",)),
        Shot("Ramp from 0 to 1", (f"<lora:{first}:0@0,1@1>",)),
        Shot(
            f"Half time: {second} takes over",
            (f"<lora:{first}:1@0,0@0.5|step>", f"<lora:{second}:0@0,1@0.5|step>"),
        ),
        Shot("Off for the last 5 steps", (f"<lora:{first}:1:stop={STEPS - 5}>",)),
    )


def live_shot(first: str) -> Shot:
    """Return the shot that the picture of the merged model must equal."""
    return Shot(f"Live at {MERGED_STRENGTH}", (f"<lora:{first}:{MERGED_STRENGTH}>",))


def request(prompt: str, tags: Sequence[str], seed: int) -> GenerateRequest:
    """Return the request of one picture."""
    return GenerateRequest(
        prompt=" ".join([prompt, *tags]),
        steps=STEPS,
        sampler=SAMPLER,
        guidance=GUIDANCE,
        width=SIDE,
        height=SIDE,
        seed=seed,
    )


def donut_prompts(taught: Sequence[str]) -> list[str]:
    """Draw the prompts of the pairs, none of which is a caption that was taught."""
    return list(islice(_untaught(random.Random(0), frozenset(taught)), PAIRS))


def _untaught(rng: random.Random, taught: frozenset[str]) -> Iterator[str]:
    while True:
        prompt = DONUT.caption(DONUT.random_scene(rng), rng)
        if prompt not in taught:
            yield prompt


def prompts_from(captions: Sequence[str]) -> list[str]:
    """Return the prompts of the pairs for a person's own pictures: their captions in turn, without tags they may hold."""
    words = [parse_prompt(caption).text for caption in captions]
    return list(islice(cycle(dict.fromkeys(words)), PAIRS))
