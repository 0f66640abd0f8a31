"""Which tags of a prompt are lifted out, and that the others stay where they are, letter by letter."""

import pytest

from lib_lora.hosts.a1111_tags import negative_notes, split_prompts, static_use

STATIC = [
    "<lora:x>",
    "<lora:x:0.8>",
    "<lora:x:0.8:0.5>",
    "<lora:x:1:0.5:8>",
    "<lora:x:te=0.8:unet=1>",
    "<lora:x:1:dyn=4>",
    "<lora:x:1:lbw=MINE:stop=10>",
    "<lyco:x:1>",
    "<hypernet:x:1>",
]
OURS = [
    "<lora:x:0@0,1@1>",
    "<lora:x:1:start=3>",
    "<lora:x:te=0.8:unet=0@0,1@1>",
    "<lora:x:1:hr=0>",
    "<lora:x:1:lbw=OUTALL:stop=10>",
    "<lora:x:1:step=3-12>",
]


@pytest.mark.parametrize("tag", STATIC)
def test_what_the_host_reads_stays(tag):
    prompt = f"a [fox {tag}], (cat{tag}:1.2) [red {tag}|blue] {tag}{tag}, red"
    split = split_prompts([prompt])
    assert (split.texts, split.uses, split.problems) == ((prompt,), (), ())


@pytest.mark.parametrize("tag", OURS)
def test_schedules_are_lifted_out(tag):
    split = split_prompts([f"a fox {tag}<lora:y:1>"])
    assert split.texts == ("a fox <lora:y:1>",)
    assert [use.source for use in split.uses] == [tag]
    assert split.problems == ()


@pytest.mark.parametrize("tag", [*STATIC[:6], "<lora:x:te=0.8>"])
def test_what_a_static_tag_asks_for_can_be_taken(tag):
    items = tag.removeprefix("<lora:").removesuffix(">").split(":")
    use = static_use(items)
    assert (use.name, use.source) == ("x", tag)
    assert use.curves["unet"].is_constant


@pytest.mark.parametrize("tag", STATIC[6:7])
def test_what_a_tag_asks_of_another_extension_cannot(tag):
    assert static_use(tag.removeprefix("<lora:").removesuffix(">").split(":")) is None


def test_the_other_name_of_a_tag_is_lifted_out_too():
    split = split_prompts(["a fox <lyco:x:0@0,1@1> <lyco:y:1>"])
    assert split.texts == ("a fox  <lyco:y:1>",)
    assert [use.name for use in split.uses] == ["x"]


@pytest.mark.parametrize(
    ("tag", "column"),
    [
        ("<lora:x:high>", 11),
        ("<lora:x:0@0,1@x>", 17),
        ("<lora:x:1:strat=3>", 13),
        # The WebUI would take these for numbers and draw no picture, or take the tag for words.
        ("<lora:x:nan>", 11),
        ("<lora:x:te=1:unet=inf>", 21),
        ("<lora:x:1:dyn=2.5>", 17),
        ("<lora:x:1:1:2.5>", 15),
        ("<lora:x:te=1=2>", 11),
        ("<lora:>", 9),
    ],
)
def test_a_bad_tag_is_told_by_its_column_in_the_prompt(tag, column):
    split = split_prompts([f"a <lora:y:1>{tag}"])
    assert split.texts == ("a <lora:y:1>",)
    (problem,) = split.problems
    assert problem.startswith(f"{tag} is left out: column {column + len('<lora:y:1>')}:")


@pytest.mark.parametrize("tag", [*STATIC[:6], *OURS])
def test_editing_makes_a_schedule_of_every_tag(tag):
    split = split_prompts([f"a <lora:y:1>[fox{tag}<hypernet:h:1>:cat:0.5][{tag}:0.3] red"])
    assert split.texts == ("a <lora:y:1>[fox<hypernet:h:1>:cat:0.5] red",)
    assert [use.source for use in split.uses] == [tag, tag]
    assert split.problems == ()


def test_a_batch_whose_tags_are_edited_in_other_ways_says_so():
    split = split_prompts(["a [<lora:x:1>:0.5]", "a [<lora:x:1>:0.6]"])
    assert (split.texts, len(split.uses), len(split.problems)) == (("a ", "a "), 1, 1)


def test_signs_for_private_use_do_no_harm():
    assert split_prompts(["a \ue000\ue001 fox <lora:x:0@0,1@1>"]).uses


def test_a_batch_takes_the_schedules_of_its_first_prompt_and_says_so():
    split = split_prompts(["a <lora:x:0@0,1@1>", "b <lora:y:0@0,1@1>"])
    assert (split.texts, [use.name for use in split.uses]) == (("a ", "b "), ["x"])
    (problem,) = split.problems
    assert "first" in problem


@pytest.mark.parametrize("tag", OURS)
def test_schedules_in_a_negative_prompt_are_told(tag):
    (note,) = negative_notes(["bad", f"bad {tag}"])
    assert "neg=" in note


@pytest.mark.parametrize("text", ["", "bad <lora:x:1>", "<b [a:b:0.5]"])
def test_of_other_negative_prompts_nothing_is_told(text):
    assert negative_notes([text]) == ()


def test_no_prompt_at_all_is_no_problem():
    assert split_prompts([]).texts == ()
