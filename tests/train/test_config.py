"""Reading a configuration: every problem at once, nearest names, and no second default."""

import dataclasses
import json

import pytest

from lib_lora.errors import UsageError
from lib_lora.networks.compose import NETWORK_TYPES
from lib_lora.train.config import SECTIONS, TrainConfig, with_settings
from tests.train.asked import MINIMAL, problems_of


def test_what_must_be_given_is_enough(tmp_path):
    config = TrainConfig.from_dict(MINIMAL, tmp_path)
    assert config.model.base == tmp_path / "base.safetensors"
    assert config.network == SECTIONS["network"]()


def test_plain_values_read_back_to_an_equal_configuration():
    raw = {**MINIMAL, "network": {"rank": 7, "text_encoder": True}, "run": {"seed": 3}}
    config = TrainConfig.from_dict(raw)
    again = TrainConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert again.network.rank == 7


def test_all_problems_come_in_one_error():
    problems = problems_of(
        {
            "modle": {"base": "x"},
            "data": {"folder": 3, "size": 100, "captoin": "x", "keep_tags": 1},
            "network": {"rank": "16", "type": "lore", "unet": False},
            "schedule": {"steps": 10, "warmup": 10, "batch": 0, "accumulate": True},
            "saving": {"out": "lora.ckpt"},
            "run": [],
        }
    )
    assert problems == {
        "modle": "There is no such section. Did you mean 'model'?",
        "model.base": "This must be given.",
        "data.folder": "Expects a path; found 3.",
        "data.captoin": "There is no such key. Did you mean 'caption'?",
        "data.size": "Must be divisible by 8; found 100.",
        "data.keep_tags": "Goes with caption_orders of 1 or more; tags stay in order without.",
        "network": "Nothing would be trained: set unet or text_encoder to true.",
        "network.rank": "Expects a whole number; found '16'.",
        "network.type": "'lore' is not accepted. Did you mean 'lora'?",
        "schedule.batch": "Accepts 1 to 1024; found 0.",
        "schedule.accumulate": "Expects a whole number; found True.",
        "schedule.warmup": "Must be less than the 10 steps; found 10.",
        "saving.out": "Must end in .safetensors; found 'lora.ckpt'.",
        "run": "A section holds keys and values; found [].",
    }


@pytest.mark.parametrize(
    ("optimizer", "wrong"),
    [
        (
            {},
            {
                "optimizer.unet_rate": "Prodigy finds the rate and multiplies it by this: set 1; found 0.0001."
            },
        ),
        ({"unet_rate": 1.0}, {}),
    ],
)
def test_prodigy_takes_a_factor_for_a_rate(optimizer, wrong):
    raw = {**MINIMAL, "optimizer": {"type": "prodigy", **optimizer}}
    if wrong:
        assert problems_of(raw) == wrong
        return
    TrainConfig.from_dict(raw)
    both = {**raw, "network": {"text_encoder": True}}
    both["optimizer"] = {**raw["optimizer"], "text_encoder_rate": 0.5}
    (found,) = problems_of(both).items()
    assert found == (
        "optimizer.text_encoder_rate",
        "Prodigy has one rate for all: set that of the UNet.",
    )


def test_every_type_that_can_be_created_can_be_chosen():
    (field,) = (f for f in dataclasses.fields(SECTIONS["network"]) if f.name == "type")
    assert field.metadata["choices"] == tuple(k.id for k in NETWORK_TYPES if k.create)
    for type_ in ("lora", "loha", "lokr"):
        raw = {**MINIMAL, "network": {"type": type_, "dora": True, "tucker": True, "factor": 8}}
        assert TrainConfig.from_dict(raw).network.dora is True


def test_not_a_number_is_refused():
    problems = problems_of({**MINIMAL, "optimizer": {"unet_rate": float("nan")}})
    assert list(problems) == ["optimizer.unet_rate"]


def test_a_whole_number_will_do_where_a_number_is_expected():
    config = TrainConfig.from_dict({**MINIMAL, "network": {"alpha": 8}})
    assert type(config.network.alpha) is float


def test_settings_are_read_as_the_fields_type():
    raw = with_settings(
        MINIMAL,
        [
            "schedule.steps=20",
            "optimizer.unet_rate=1e-3",
            "network.text_encoder=true",
            "data.caption=5=five",
            "model.config=",
        ],
    )
    config = TrainConfig.from_dict(raw)
    assert (config.schedule.steps, config.optimizer.unet_rate) == (20, 1e-3)
    assert config.network.text_encoder is True
    assert config.data.caption == "5=five"
    assert config.model.config is None
    assert MINIMAL["data"] == {"folder": "pictures"}


def test_a_setting_that_does_not_read_is_named_by_the_configuration():
    raw = with_settings(MINIMAL, ["schedule.steps=many", "schedule.stepps=3", "shedule.steps=3"])
    problems = problems_of(raw)
    assert problems["schedule.steps"] == "Expects a whole number; found 'many'."
    assert "Did you mean 'steps'?" in problems["schedule.stepps"]
    assert "Did you mean 'schedule'?" in problems["shedule"]


@pytest.mark.parametrize("text", ["steps=3", "schedule.steps", ".steps=3", "schedule.=3"])
def test_a_setting_of_another_form_is_refused(text):
    with pytest.raises(UsageError, match=r"section\.key=value"):
        with_settings({}, [text])


def test_every_field_says_what_a_form_needs_and_its_default_is_acceptable():
    for name, kind in SECTIONS.items():
        fields = dataclasses.fields(kind)
        assert len(fields) <= 12, name
        for field in fields:
            assert field.metadata["label"], field.name
            assert field.metadata["help"].endswith("."), field.name
    TrainConfig.from_dict(TrainConfig.from_dict(MINIMAL).to_dict())
