"""Block weights in the real WebUI: every call against weights that hold each layer as strongly as its block says.

Which layers a block has is written here once more, in the WebUI's names of them, as sd-webui-lora-block-weight finds them.
"""

import pytest

from tests.real_host.test_evaluations import assert_exact

INPUTS, OUTPUTS = (tuple(f"{side}{n:02}" for n in range(12)) for side in ("IN", "OUT"))
ALL = ("BASE", *INPUTS, "M00", *OUTPUTS)
LISTS = {
    12: ("BASE", "IN04", "IN05", "IN07", "IN08", "M00", *OUTPUTS[:6]),
    17: ("BASE", "IN01", "IN02", "IN04", "IN05", "IN07", "IN08", "M00", *OUTPUTS[3:]),
    20: ("BASE", *INPUTS[:9], "M00", *OUTPUTS[:9]),
    26: ALL,
}
DEEP = "diffusion_model_(input_blocks_([5-9]|1[01])|middle_block|output_blocks_[0-5])_"
SHARES = (0, 0.5, 1)


def layers_of(block):
    """Return the pattern of the names of a block's layers."""
    if block == "BASE":
        return "transformer_|model_transformer_"
    if block == "M00":
        return "diffusion_model_middle_block_"
    side = "input" if block.startswith("IN") else "output"
    return f"diffusion_model_{side}_blocks_{int(block[-2:])}_"


def factors_of(values):
    """Return the pattern and the factor of every block; a block that the list does not name is off."""
    own = dict(zip(LISTS[len(values)], values, strict=True))
    return [(layers_of(block), own.get(block, 0)) for block in ALL]


def text_of(values):
    return ",".join(map(str, values))


def spread(count):
    """Return as many values, all others, some above 1, one below 0 and one of 0."""
    values = [round(1.3 - 1.5 * index / count, 3) for index in range(count)]
    return [*values[:-1], 0]


@pytest.mark.parametrize("count", LISTS)
def test_a_constant_strength(host, figures, count):
    values = spread(count)
    plan = {"strengths": {"one": 0.8}, "factors": {"one": factors_of(values)}}
    tag = f"<lora:one:te=0:unet=0.8:lbw={text_of(values)}>"
    assert_exact(host.watch(tag, plan=plan, steps=2), figures)


@pytest.mark.parametrize("name", ["one", "loha", "lokr", "dora", "full", "norm"])
def test_a_ramp(host, figures, name):
    values = spread(17)
    factors = {name: factors_of(values)}
    plan = {"strengths": [{name: 1 - share / 2} for share in SHARES], "factors": factors}
    tag = f"<lora:{name}:te=0:unet=1@0,0.5@1:lbw={text_of(values)}>"
    assert_exact(host.watch(tag, plan=plan, steps=3), figures)


def test_a_preset_until_a_step(host, figures):
    factors = {"one": factors_of([1, *[0] * 7, *[1] * 9])}
    plan = {"strengths": [{"one": 1}, {"one": 1}, {}, {}], "factors": factors}
    drawn = host.watch("<lora:one:1:lbw=OUTALL:stop=2>", plan=plan, steps=4)
    assert_exact(drawn, figures)


def test_a_value_that_the_tag_names(host, figures):
    values = [1, *["X"] * 6, "X+0.2", *["X-0.1"] * 9]
    numbers = [1, *[0.3] * 6, 0.5, *[0.2] * 9]
    plan = {"strengths": {"one": 1}, "factors": {"one": factors_of(numbers)}}
    tag = f"<lora:one:te=0:unet=1:lbw={text_of(values)}:x=0.3>"
    assert_exact(host.watch(tag, plan=plan, steps=2), figures)


@pytest.mark.parametrize(
    ("name", "pattern", "factor"),
    [("ATTNDEEPON", "attn", 1), ("ATTNDEEPOFF", "attn", 0), ("PROJDEEPOFF", "proj", 0)],
)
def test_elements_of_deep_blocks(host, figures, name, pattern, factor):
    factors = factors_of([0.5] * 26)
    factors.append((f"{DEEP}.*{pattern}", factor))
    plan = {"strengths": {"one": 1}, "factors": {"one": factors}}
    tag = f"<lora:one:te=0:unet=1:lbw={text_of([0.5] * 26)}:lbwe={name}>"
    assert_exact(host.watch(tag, plan=plan, steps=2), figures)


def test_two_networks_by_prompt_editing(host, figures):
    first, second = spread(17), spread(12)
    factors = {"one": factors_of(first), "two": factors_of(second)}
    plan = {"strengths": [{"one": 1}] * 2 + [{"two": 0.7}] * 2, "factors": factors}
    one = f"<lora:one:te=0:unet=1:lbw={text_of(first)}>"
    two = f"<lora:two:te=0:unet=0.7:lbw={text_of(second)}>"
    assert_exact(host.watch(f"[{one}:{two}:0.5]", plan=plan, steps=4), figures)


def test_one_network_in_two_tags_with_other_blocks(host, figures):
    """Blocks of one are off in the other: there the network is as strong as its own tag says."""
    first = [1] * 9 + [0] * 8
    second = [0] * 9 + [0.5] * 8
    summed = [1] * 9 + [0.5] * 8
    # What is in no block acts twice.
    own = [("diffusion_model_(time_embed|out)_", 2), *factors_of(summed)]
    plan = {"strengths": {"one": 1}, "factors": {"one": own}}
    tags = (
        f"<lora:one:te=0:unet=1:lbw={text_of(first)}><lora:one:te=0:unet=1:lbw={text_of(second)}>"
    )
    assert_exact(host.watch(tags, plan=plan, steps=2), figures)


@pytest.mark.parametrize("base", [0.5, 0])
def test_the_text_encoder(host, figures, base):
    texts = ["a green ring", "a red square"]
    shares = [0.4, 0.6, 0.8]
    values = [base, *[1] * 16]
    factors = {"words": factors_of(values)}
    plan = {"words": [{"words": share} for share in shares], "texts": texts, "factors": factors}
    tag = f"<lora:words:te=0.4@0,0.8@1:unet=0:lbw={text_of(values)}>"
    settings = {"prompt": f"{texts[0]}{tag}", "negative_prompt": texts[1], "steps": 3}
    drawn = host.watch(plan=plan, **settings)
    if base:
        assert_exact(drawn, figures)
    else:
        assert all(call["difference"] == 0 for call in drawn.seen["calls"])
