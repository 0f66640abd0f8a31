"""When a part of an edited prompt is there, and what goes with the tags of a prompt."""

import pytest

from lib_lora.schedule.brackets import brackets_of, emptied, without
from lib_lora.schedule.curve import Bound, Curve, Gate, Moment, NetworkUse


def there(gate, steps):
    """Return at which steps of a pass a part is there."""
    last = max(steps - 1, 1)
    moments = [Moment(step / last, step, 1.0, steps) for step in range(steps)]
    return [gate.contains(moment) for moment in moments]


@pytest.mark.parametrize(
    ("bound", "steps", "first"),
    [
        (Bound(3), 8, 3),
        (Bound(0), 8, 0),
        (Bound(20), 8, 8),
        (Bound(0.5, fraction=True), 8, 4),
        (Bound(0.5, fraction=True), 5, 2),  # the WebUI rounds down
        (Bound(0.99, fraction=True), 10, 9),
        (Bound(1.0, fraction=True), 8, 8),
    ],
)
def test_a_change_comes_after_so_many_steps(bound, steps, first):
    expected = [step >= first for step in range(steps)]
    assert there(Gate(start=bound), steps) == expected
    assert there(Gate(stop=bound), steps) == [not yes for yes in expected]


def test_second_order_samplers_change_between_their_steps():
    gate = Gate(start=Bound(2))
    assert not gate.contains(Moment(0.3, 1.5, 1.0, 6))
    assert gate.contains(Moment(0.4, 2.0, 1.0, 6))


def test_gates_are_for_both_components_and_hold_all_at_once():
    gates = (Gate(start=Bound(2)), Gate(stop=Bound(5)))
    use = NetworkUse(
        name="a", curves={"unet": Curve.constant(0.7), "te": Curve.constant(0.4)}, gates=gates
    )
    found = [
        (use.strength("unet", moment), use.strength("te", moment))
        for moment in (Moment(step / 7, step, 1.0, 8) for step in range(8))
    ]
    assert found == [(0, 0)] * 2 + [(0.7, 0.4)] * 3 + [(0, 0)] * 3


def test_brackets_that_hold_only_tags_go_with_them():
    text = "a [.. :5] [.. b:5] [[..::3]:2] [c]"
    tags = [(at, at + 2) for at in range(len(text) - 1) if text[at : at + 2] == ".."]
    gone = emptied(text, brackets_of(text), tags)
    assert without(text, gone) == "a  [ b:5]  [c]"


def test_many_brackets_take_little_time():
    text = "[" * 3000 + ".." + ":5]" * 3000
    assert len(brackets_of(text)) == 3000
    assert without(text, emptied(text, brackets_of(text)[:50], [(3000, 3002)]))
