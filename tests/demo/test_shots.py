from lib_lora.demo.make_dataset import DATASET_DIR
from lib_lora.demo.shots import (
    MAIN_PROMPT,
    PAIRS,
    STEPS,
    donut_prompts,
    live_shot,
    prompts_from,
    request,
    scheduled_shots,
)
from lib_lora.schedule.curve import Moment
from lib_lora.schedule.grammar import parse_prompt


def strengths(shot):
    """Return the strength of each network at each step of the pass, by the grammar."""
    parsed = parse_prompt(request(MAIN_PROMPT, shot.tags, 0).prompt)
    assert not parsed.errors
    assert parsed.text.strip() == MAIN_PROMPT
    moments = [Moment(k / (STEPS - 1), k, 1.0, STEPS) for k in range(STEPS)]
    return {use.name: [use.strength("unet", moment) for moment in moments] for use in parsed.uses}


def test_the_schedules_are_those_of_the_issue():
    base, half, full, ramp, switch, off = map(strengths, scheduled_shots("a", "b"))
    assert base == {}
    assert half == {"a": [0.5] * 20}
    assert full == {"a": [1.0] * 20}
    assert ramp["a"][0] == 0.0
    assert ramp["a"][-1] == 1.0
    assert all(x < y for x, y in zip(ramp["a"], ramp["a"][1:], strict=False))
    assert switch == {"a": [1.0] * 10 + [0.0] * 10, "b": [0.0] * 10 + [1.0] * 10}
    assert off == {"a": [1.0] * 15 + [0.0] * 5}
    assert strengths(live_shot("a")) == {"a": [0.8] * 20}


def test_the_prompts_are_fixed_and_none_was_taught():
    taught = [file.read_text().strip() for file in (DATASET_DIR / "donut").glob("*.txt")]
    prompts = donut_prompts(taught)
    assert prompts == donut_prompts(taught)
    assert len(prompts) == PAIRS
    assert not set(prompts) & set(taught)
    assert set(donut_prompts([])) - set(prompts) <= set(taught)


def test_a_persons_captions_are_taken_in_turn():
    prompts = prompts_from(["x", "y", "x", "z"])
    assert prompts[:4] == ["x", "y", "z", "x"]
    assert len(prompts) == PAIRS
    assert prompts_from(["only"]) == ["only"] * PAIRS
    assert prompts_from(["a cat<lora:other:2>"])[0] == "a cat"
