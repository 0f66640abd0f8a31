"""The prompt grammar: what each form means, what is reported, and that no text can make it fail."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lib_lora.errors import UsageError
from lib_lora.schedule.curve import EASINGS, Bound, Curve, Gate, Keyframe, Window
from lib_lora.schedule.grammar import format_curve, parse_curve, parse_prompt

# A machine that is busy with other work draws slowly; the same examples are drawn every time.
patient = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def frames(*points, unit="fraction"):
    return Curve(tuple(Keyframe(position, strength, unit) for strength, position in points))


@pytest.mark.parametrize(
    ("text", "curve"),
    [
        ("0.8", Curve.constant(0.8)),
        ("-.5", Curve.constant(-0.5)),
        (" 1e-1 ", Curve.constant(0.1)),
        ("-1e3@0,1000@1", frames((-1000, 0), (1000, 1))),
        ("0@0,1@0.5,0@1", frames((0, 0), (1, 0.5), (0, 1))),
        ("0@0;1@0.5;0@1", frames((0, 0), (1, 0.5), (0, 1))),
        ("0@0~1@10~0@20", frames((0, 0), (1, 10), (0, 20), unit="step")),
        ("0@0.5,1@2", frames((0, 0.5), (1, 2), unit="step")),
        ("0@0st,1@1st", frames((0, 0), (1, 1), unit="step")),
        ("0@0st,1@1", frames((0, 0), (1, 1), unit="step")),
        ("0@0, 1@50%", frames((0, 0), (1, 0.5))),
        ("1@s5.2,0@s0.5", frames((1, 5.2), (0, 0.5), unit="sigma")),
        ("0@s0.5,1@s5.2", frames((1, 5.2), (0, 0.5), unit="sigma")),
        ("0@1,1@0", frames((1, 0), (0, 1))),
        ("1@0.5,0@0.5", frames((1, 0.5), (0, 0.5))),
        ("0.3@0.9", frames((0.3, 0.9))),
    ],
)
def test_curves(text, curve):
    assert parse_curve(text) == curve


def test_easings_belong_to_the_keyframe_they_stand_behind():
    curve = parse_curve("1@0,1@0.5|step,0@1|ease-in")
    assert [frame.easing for frame in curve.keyframes] == ["linear", "step", "ease-in"]


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("", 1),
        ("abc", 1),
        ("__import__('os')", 1),
        ("1e999", 1),
        ("1000.5", 1),
        ("0@0,-1e308@1", 5),
        ("nan", 1),
        ("0@0,1", 5),
        ("1,0@1", 1),
        ("0@0,x@1", 5),
        ("0@0,1@x", 7),
        ("0@0,1@-1", 7),
        ("0@0%,1@10", 8),
        ("0@0st,1@s5", 9),
        ("0@s5,1@2", 8),
        ("0@s0", 3),
        ("0@150%", 3),
        ("0@0,1@1|bounce", 9),
        ("1|step", 1),
        ("0@0@0", 1),
    ],
)
def test_errors_name_the_column(text, column):
    with pytest.raises(UsageError, match=f"^Column {column}: expected "):
        parse_curve(text)


def only_use(prompt):
    parsed = parse_prompt(prompt)
    assert parsed.errors == ()
    (use,) = parsed.uses
    return use


@pytest.mark.parametrize(
    ("tag", "te", "unet"),
    [
        ("<lora:x>", "1", "1"),
        ("<lora:x:0.8>", "0.8", "0.8"),
        ("<lora:x:0.8:0.5>", "0.8", "0.5"),
        ("<lora:x:0@0,1@1>", "0@0,1@1", "0@0,1@1"),
        ("<lora:x:0.5:0@0,1@1>", "0.5", "0@0,1@1"),
        ("<lora:x:te=0.6:unet=0@0,1@1>", "0.6", "0@0,1@1"),
        ("<lora:x:unet=0.3>", "1", "0.3"),
        # In the stock WebUI the UNet takes the text encoders' strength, named or not, unless it has its own.
        ("<lora:x:te=0.6>", "0.6", "0.6"),
        ("<lora:x:0.8:te=0.6>", "0.6", "0.6"),
        ("<lora:x:0.8:0.4:te=0.6>", "0.6", "0.4"),
    ],
)
def test_strengths_of_the_components(tag, te, unet):
    use = only_use(tag)
    assert use.curves == {"te": parse_curve(te), "unet": parse_curve(unet)}
    assert (use.name, use.source) == ("x", tag)


@pytest.mark.parametrize("tag", ["<lora:x:1:0.5:8>", "<lora:x:1:dyn=8>", "<lora:x:1:1:4:dyn=8>"])
def test_how_many_ranks_act(tag):
    assert only_use(tag).ranks == 8
    assert only_use("<lora:x:1:0.5>").ranks is None


@pytest.mark.parametrize("count", ["0", "-1", "2.5", "", "1" * 12])
def test_a_number_of_ranks_is_a_whole_one(count):
    (error,) = parse_prompt(f"<lora:x:1:dyn={count}>").errors
    assert "a whole number from 1" in error.expected


def test_the_webuis_other_name_of_a_tag_means_the_same():
    parsed = parse_prompt("a <lyco:x:0@0,1@1> b <lyco:y")
    assert parsed.text == "a  b <lyco:y"
    assert [(use.name, use.source) for use in parsed.uses] == [("x", "<lyco:x:0@0,1@1>")]
    assert [error.tag for error in parsed.errors] == ["<lyco:y"]


def test_windows():
    assert only_use("<lora:x:1:start=3:stop=12>").window == Window(3, 12)
    assert only_use("<lora:x:stop=5:1>").window == Window(None, 5)


def test_steps_in_one_part():
    assert only_use("<lora:x:1:step=3-12>").window == Window(3, 12)


HALF = Bound(0.5, fraction=True)


@pytest.mark.parametrize(
    ("prompt", "text", "gates"),
    [
        ("[<lora:a:1>:<lora:b:1>:0.5]", "", [Gate(stop=HALF), Gate(start=HALF)]),
        ("x [<lora:a:1>::10] y", "x  y", [Gate(stop=Bound(10))]),
        ("[<lora:a:1>:5]", "", [Gate(start=Bound(5))]),
        ("[ <lora:a:1> : 5 ]", "", [Gate(start=Bound(5))]),
        (
            "[cat <lora:a:1>:dog<lora:b:1>:0.5]",
            "[cat :dog:0.5]",
            [Gate(stop=HALF), Gate(start=HALF)],
        ),
        ("[(cat:1.2) <lora:a:1>:5]", "[(cat:1.2) :5]", [Gate(start=Bound(5))]),
        ("[[<lora:a:1>::9]:5]", "", [(Gate(stop=Bound(9)), Gate(start=Bound(5)))]),
        ("[x[<lora:a:1>::9]:5]", "[x:5]", [(Gate(stop=Bound(9)), Gate(start=Bound(5)))]),
        ("[<lora:a:0@0,1@1>:3]", "", [Gate(start=Bound(3))]),
        ("[<lora:a:1>]", "", [()]),
        ("[cat <lora:a:1>]", "[cat ]", [()]),
        ("(cat <lora:a:1>:1.2)", "(cat :1.2)", [()]),
        (r"\[cat <lora:a:1>:5\]", r"\[cat :5\]", [()]),
        ("[cat <lora:a:1>:dog]", "[cat :dog]", [()]),
        ("[a:b:c <lora:a:1>:5]", "[a:b:c :5]", [()]),
        ("[cat:5] <lora:a:1> [dog::3]", "[cat:5]  [dog::3]", [()]),
        ("[a (b <lora:a:1>:5]", "[a (b :5]", [()]),
        ("] [<lora:a:1>:5", "] [:5", [()]),
    ],
)
def test_prompt_editing_gates_its_tags(prompt, text, gates):
    parsed = parse_prompt(prompt)
    assert (parsed.text, parsed.errors) == (text, ())
    expected = [gate if isinstance(gate, tuple) else (gate,) for gate in gates]
    assert [use.gates for use in parsed.uses] == expected


def test_block_weights_in_a_tag():
    use = only_use("<lora:x:1:lbw=OUTALL:lbwe=ATTNDEEPOFF,PROJDEEPOFF:stop=10>")
    assert [use.blocks[name] for name in ("BASE", "IN01", "M00", "OUT03")] == [1, 0, 0, 1]
    assert [element.word for element in use.elements] == ["attn", "proj"]
    assert use.window == Window(None, 10)
    assert only_use("<lora:x:1>").blocks == {}


def test_values_of_blocks_may_be_told_by_x():
    values = ["X", "X+0.2", "X-0.3", "0.5", *["0"] * 8]
    use = only_use(f"<lora:x:1:lbw={','.join(values)}:x=0.4>")
    blocks = ("BASE", "IN04", "IN05", "IN07", "IN08", "IN00")
    assert [use.blocks[name] for name in blocks] == pytest.approx([0.4, 0.6, 0.1, 0.5, 0, 0])


def test_tags_are_lifted_out_and_the_rest_stays_as_it_is():
    parsed = parse_prompt("a  cat <lora:one:1> on\n(a mat:1.2)<lora:two:0.5>, <hypernet:h:1>")
    assert parsed.text == "a  cat  on\n(a mat:1.2), <hypernet:h:1>"
    assert [use.name for use in parsed.uses] == ["one", "two"]


@pytest.mark.parametrize(
    ("prompt", "text", "tag", "column", "expected"),
    [
        ("a <lora:x:hi=0>", "a ", "<lora:x:hi=0>", 11, "te=, unet=, neg=, hr="),
        ("<lora:x:1:lbw=OUTAL>", "", "<lora:x:1:lbw=OUTAL>", 15, "or a preset: NONE, ALL"),
        ("<lora:x:1:lbw=1,0>", "", "<lora:x:1:lbw=1,0>", 15, "one of 12, 17, 20, 26"),
        (f"<lora:x:lbw={'1,' * 11}R>", "", f"<lora:x:lbw={'1,' * 11}R>", 35, "a number, X"),
        (f"<lora:x:lbw={'1,' * 11}X>", "", f"<lora:x:lbw={'1,' * 11}X>", 35, "x= beside X"),
        ("<lora:x:1:lbwe=ATTN>", "", "<lora:x:1:lbwe=ATTN>", 16, "one of ATTNDEEPON"),
        ("<lora:x:1:step=3>", "", "<lora:x:1:step=3>", 16, "two steps such as 3-12"),
        ("<lora:x:step=3-9:stop=5>", "", "<lora:x:step=3-9:stop=5>", 14, "no start= or stop="),
        ("<lora:x:1:lwb=ALL>", "", "<lora:x:1:lwb=ALL>", 11, "start=, stop=, step=, dyn="),
        ("<lora:x:1:1:0.5>", "", "<lora:x:1:1:0.5>", 13, "how many ranks"),
        ("<lora:x:te=1:te=2>", "", "<lora:x:te=1:te=2>", 14, "te= once"),
        ("<lora:x:start=3:stop=3>", "", "<lora:x:start=3:stop=3>", 22, "a step behind 3"),
        ("<lora:x:step=3-1>", "", "<lora:x:step=3-1>", 16, "a step behind 3"),
        ("<lora:x:start=0.x>", "", "<lora:x:start=0.x>", 15, "a step"),
        ("<lora::1>", "", "<lora::1>", 7, "the name"),
        ("<lora:x:1e308>", "", "<lora:x:1e308>", 9, "a strength from -1000 to 1000"),
        ("<lora:x:0@0,y>", "", "<lora:x:0@0,y>", 13, "a number or keyframes"),
        ("[cat <lora:x:1>|dog]", "[cat |dog]", "<lora:x:1>", 6, "outside of [alternating|words]"),
        ("cat <lora:x:1", "cat <lora:x:1", "<lora:x:1", 14, "'>'"),
    ],
)
def test_a_bad_tag_is_reported_and_left_out(prompt, text, tag, column, expected):
    parsed = parse_prompt(prompt)
    (error,) = parsed.errors
    assert (parsed.text, parsed.uses) == (text, ())
    assert (error.tag, error.column) == (tag, column)
    assert expected in error.expected


def test_a_bad_tag_leaves_the_others_alone():
    parsed = parse_prompt(r"<lora:x:oops> \[[ <lora:y:1> <lora:z <lora:w:0.5>")
    assert [use.name for use in parsed.uses] == ["y", "w"]
    assert [error.tag for error in parsed.errors] == ["<lora:x:oops>", "<lora:z "]


@patient
@given(st.text().filter(lambda text: "<lora:" not in text))
def test_a_prompt_without_tags_comes_back_as_it_was(text):
    parsed = parse_prompt(text)
    assert (parsed.text, parsed.uses, parsed.errors) == (text, (), ())


# Characters that the grammar gives a meaning, so that random text gets deep into it.
FRAGMENTS = st.lists(
    st.sampled_from(["<lora:", ">", ":", "=", "@", "|", ",", "~", "te", "start", "0.5", "1", "st"])
    | st.sampled_from(["s", "%", "step", "[", "]", "\\", "-", "e", "9" * 400, "٣", "x"])
    | st.text(max_size=3)
).map("".join)


@patient
@given(FRAGMENTS)
def test_no_text_makes_it_fail(text):
    parsed = parse_prompt(text)
    assert len(parsed.uses) + len(parsed.errors) == text.count("<lora:")
    with suppress(UsageError):
        parse_curve(text)


@pytest.mark.parametrize(
    ("parts", "te", "unet"),
    [
        ("", None, None),
        (":hr=0", 0.0, 0.0),
        (":hrte=0.2", 0.2, None),
        (":hrunet=0.3", None, 0.3),
        (":hrunet=0.3:hr=0", 0.0, 0.3),
    ],
)
def test_the_hires_pass_has_curves_of_its_own_where_the_tag_says_so(parts, te, unet):
    (use,) = parse_prompt(f"<lora:x:1@0,0@1{parts}>").uses
    told = {"te": te, "unet": unet}
    assert use.hires == {
        group: Curve.constant(value) for group, value in told.items() if value is not None
    }


def test_the_negative_prompt_has_a_curve_of_its_own_where_the_tag_says_so():
    plain, (use,) = parse_prompt("<lora:x:1>").uses[0], parse_prompt("<lora:x:1:neg=0@0,1@1>").uses
    assert "neg" not in plain.curves
    assert use.curves == {**plain.curves, "neg": frames((0, 0), (1, 1))}


@st.composite
def curves(draw):
    unit = draw(st.sampled_from(["fraction", "step", "sigma"]))
    low, high = {"fraction": (0, 1), "step": (0, 1e6), "sigma": (1e-6, 1e6)}[unit]
    keyframes = draw(
        st.lists(
            st.builds(
                Keyframe,
                st.floats(low, high),
                st.floats(-1000, 1000),
                st.just(unit),
                st.sampled_from(EASINGS),
            ),
            min_size=1,
        )
    )
    return Curve(tuple(sorted(keyframes, key=lambda frame: frame.place)))


@patient
@given(curves())
def test_a_written_curve_reads_back_the_same(curve):
    assert parse_curve(format_curve(curve)) == curve
