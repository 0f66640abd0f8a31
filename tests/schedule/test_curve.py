"""Strength over time: the values at, between and outside keyframes."""

import pytest

from lib_lora.errors import UsageError
from lib_lora.schedule.curve import Curve, Keyframe, Moment, NetworkUse, Window, strengths_at


def at_progress(progress, steps=11):
    return Moment(progress, progress * (steps - 1), 1.0, steps)


def at_sigma(sigma):
    return Moment(0.3, 3.0, sigma, 11)


RAMP = Curve((Keyframe(0.2, 1.0), Keyframe(0.6, 3.0)))


@pytest.mark.parametrize(
    ("progress", "strength"),
    [(0.0, 1.0), (0.2, 1.0), (0.3, 1.5), (0.4, 2.0), (0.6, 3.0), (1.0, 3.0)],
)
def test_linear_between_keyframes_and_flat_outside(progress, strength):
    assert RAMP.at(at_progress(progress)) == pytest.approx(strength, rel=1e-12)


@pytest.mark.parametrize(
    ("easing", "quarter"),
    # The values of t, 0, t^2 (3 - 2 t), t^2 and 1 - (1 - t)^2 at t = 1/4.
    [
        ("linear", 0.25),
        ("step", 0.0),
        ("smooth", 0.15625),
        ("ease-in", 0.0625),
        ("ease-out", 0.4375),
    ],
)
def test_the_later_keyframe_shapes_the_way_to_it(easing, quarter):
    curve = Curve((Keyframe(0.0, 0.0), Keyframe(1.0, 1.0, easing=easing)))
    assert curve.at(at_progress(0.0)) == 0.0
    assert curve.at(at_progress(0.25)) == quarter
    assert curve.at(at_progress(1.0)) == 1.0


def test_two_keyframes_at_one_position_are_a_jump():
    curve = Curve((Keyframe(0.0, 0.0), Keyframe(0.5, 1.0), Keyframe(0.5, 4.0), Keyframe(1.0, 4.0)))
    assert curve.at(at_progress(0.25)) == 0.5
    assert curve.at(at_progress(0.4999)) == pytest.approx(0.9998)
    assert curve.at(at_progress(0.5)) == 4.0


def test_steps_count_from_zero():
    curve = Curve((Keyframe(0, 0.0, "step"), Keyframe(10, 1.0, "step")))
    assert [curve.at(at_progress(k / 20, 21)) for k in (0, 5, 10, 20)] == [0.0, 0.5, 1.0, 1.0]


def test_noise_levels_fall_and_run_on_their_logarithm():
    curve = Curve((Keyframe(8.0, 0.0, "sigma"), Keyframe(2.0, 1.0, "sigma")))
    expected = {16.0: 0.0, 8.0: 0.0, 4.0: 0.5, 2.0: 1.0, 0.1: 1.0, 0.0: 1.0}
    for sigma, strength in expected.items():
        assert curve.at(at_sigma(sigma)) == pytest.approx(strength, rel=1e-12), sigma


@pytest.mark.parametrize(
    "frames",
    [
        (),
        (Keyframe(0.0, 1.0), Keyframe(3.0, 1.0, "step")),
        (Keyframe(0.6, 1.0), Keyframe(0.5, 1.0)),
        (Keyframe(2.0, 1.0, "sigma"), Keyframe(8.0, 1.0, "sigma")),
        (Keyframe(1.5, 1.0),),
        (Keyframe(-1.0, 1.0, "step"),),
        (Keyframe(0.0, 1.0, "sigma"),),
        (Keyframe(0.0, float("nan")),),
    ],
)
def test_a_curve_that_means_nothing_is_refused(frames):
    with pytest.raises(UsageError):
        Curve(frames)


def test_constants():
    assert Curve.constant(0.7).is_constant
    assert Curve((Keyframe(0.0, 0.7), Keyframe(1.0, 0.7))).is_constant
    assert not RAMP.is_constant


def test_a_window_is_open_at_its_stop_and_gates_the_unet_only():
    one = Curve.constant(1.0)
    use = NetworkUse(name="a", curves={"unet": one, "te": one}, window=Window(3, 6))
    steps = [use.strength("unet", at_progress(k / 10)) for k in range(11)]
    assert steps == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0]
    assert {use.strength("te", at_progress(k / 10)) for k in range(11)} == {1.0}


def test_the_hires_pass_takes_its_own_curves_where_it_has_them():
    curves = {"unet": Curve.constant(1.0), "te": Curve.constant(0.5)}
    use = NetworkUse(name="a", curves=curves, hires={"unet": Curve.constant(0.2)})
    assert use.strength("unet", at_progress(0.0), "hires") == 0.2
    assert use.strength("te", at_progress(0.0), "hires") == 0.5
    assert use.strength("unet", at_progress(0.0), "base") == 1.0


def strength_on_neg(pass_name="base", **fields):
    use = NetworkUse(name="a", **fields)
    return use.strength("neg", at_progress(0.5, 11), pass_name)


def test_the_negative_prompt_follows_the_unet_unless_it_has_its_own_curve():
    one, own, hires = (Curve.constant(value) for value in (1.0, 0.3, 0.2))
    both = {"unet": one, "te": one, "neg": own}
    assert strength_on_neg(curves={"unet": one, "te": one}) == 1.0
    assert strength_on_neg(curves=both) == 0.3
    assert strength_on_neg("hires", curves=both) == 0.3
    # What the hires pass says of the UNet holds for the negative prompt too.
    assert strength_on_neg("hires", curves=both, hires={"unet": hires}) == 0.2
    assert strength_on_neg("hires", curves=both, hires={"unet": hires, "neg": one}) == 1.0
    assert strength_on_neg(curves=both, window=Window(6)) == 0.0


def test_strengths_of_one_name_add_up():
    half, ramp = Curve.constant(0.5), Curve((Keyframe(0.0, 0.0), Keyframe(1.0, 1.0)))
    uses = [
        NetworkUse(name=name, curves={"unet": curve, "te": half})
        for name, curve in (("a", half), ("b", ramp), ("a", ramp))
    ]
    assert strengths_at(uses, at_progress(0.5)) == {"a": 1.0, "b": 0.5}
