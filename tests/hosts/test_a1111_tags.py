"""Which tags of a prompt are lifted out, and that the others stay where they are, letter by letter."""

import pytest

from lib_lora.hosts.a1111_tags import split_prompts

STATIC = [
    "<lora:x>",
    "<lora:x:0.8>",
    "<lora:x:0.8:0.5>",
    "<lora:x:1:0.5:8>",
    "<lora:x:te=0.8:unet=1>",
    "<lora:x:1:dyn=4>",
    "<lora:x:1:lbw=OUTALL:stop=10>",
    "<lyco:x:1>",
    "<hypernet:x:1>",
]
OURS = [
    "<lora:x:0@0,1@1>",
    "<lora:x:1:start=3>",
    "<lora:x:te=0.8:unet=0@0,1@1>",
    "<lora:x:1:hr=0>",
]


@pytest.mark.parametrize("tag", STATIC)
def test_what_the_host_reads_stays(tag):
    prompt = f"a [fox{tag}:cat:0.5] {tag}, red"
    split = split_prompts([prompt], keep_weights=False)
    assert (split.texts, split.uses, split.problems) == ((prompt,), (), ())


@pytest.mark.parametrize("tag", OURS)
def test_schedules_are_lifted_out(tag):
    split = split_prompts([f"a fox {tag}<lora:y:1>"], keep_weights=False)
    assert split.texts == ("a fox <lora:y:1>",)
    assert [use.source for use in split.uses] == [tag]
    assert split.problems == ()


@pytest.mark.parametrize("tag", STATIC[:3] + STATIC[4:5])
def test_keeping_the_weights_takes_plain_tags_too(tag):
    split = split_prompts([f"a fox {tag}"], keep_weights=True)
    assert (split.texts, len(split.uses)) == (("a fox ",), 1)


@pytest.mark.parametrize("tag", [STATIC[3], *STATIC[5:]])
def test_what_we_cannot_read_stays_the_hosts_all_the_same(tag):
    assert split_prompts([tag], keep_weights=True).texts == (tag,)


@pytest.mark.parametrize(
    ("tag", "column"),
    [("<lora:x:high>", 11), ("<lora:x:0@0,1@x>", 17), ("<lora:x:1:strat=3>", 13)],
)
def test_a_bad_tag_is_told_by_its_column_in_the_prompt(tag, column):
    split = split_prompts([f"a <lora:y:1>{tag}"], keep_weights=False)
    assert split.texts == ("a <lora:y:1>",)
    (problem,) = split.problems
    assert problem.startswith(f"{tag} is left out: column {column + len('<lora:y:1>')}:")


def test_a_batch_takes_the_schedules_of_its_first_prompt_and_says_so():
    split = split_prompts(["a <lora:x:0@0,1@1>", "b <lora:y:0@0,1@1>"], keep_weights=False)
    assert (split.texts, [use.name for use in split.uses]) == (("a ", "b "), ["x"])
    (problem,) = split.problems
    assert "first" in problem


def test_no_prompt_at_all_is_no_problem():
    assert split_prompts([], keep_weights=False).texts == ()
