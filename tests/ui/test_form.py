"""The form: complete, described in the words of `TrainConfig`, and read back as it was filled."""

import json

import pytest

from lib_lora.errors import ConfigError
from lib_lora.train.config import SECTIONS, TrainConfig
from lib_lora.ui.form import describe_form, form_texts, known_names, problems_of, read_form

OWN = {"model.base": "/b.safetensors", "data.folder": "/d", "saving.out": "/o.safetensors"}


def described():
    form = describe_form()
    groups = [field for group in form["groups"] for field in group["fields"]]
    return {field["name"]: field for field in [*form["own"].values(), *form["basic"], *groups]}


def test_every_field_stands_on_the_page_once_with_label_and_help():
    form = describe_form()
    shown = [*form["own"].values(), *form["basic"]]
    shown += [field for group in form["groups"] for field in group["fields"]]
    assert sorted(field["name"] for field in shown) == sorted(known_names())
    assert len(form["own"]) + len(form["basic"]) <= 12
    assert all(field["label"] and field["help"] for field in shown)
    assert {group["id"] for group in form["groups"]} <= set(SECTIONS)
    json.dumps(form, allow_nan=False)


def test_a_field_carries_its_limits_and_its_choices():
    rank, kind = described()["network.rank"], described()["network.type"]
    assert (rank["kind"], rank["range"], rank["default"]) == ("integer", [1, 1024], "16")
    assert (kind["kind"], kind["default"]) == ("choice", "lora")
    assert "loha" in kind["choices"]
    assert described()["optimizer.unet_rate"]["default"] == "0.0001"
    assert described()["network.dora"]["kind"] == "switch"


def test_an_untouched_form_is_the_default_configuration():
    untouched = {name: field["default"] for name, field in described().items()} | OWN
    plain = {"model": {"base": "/b.safetensors"}, "data": {"folder": "/d"}}
    usual = TrainConfig.from_dict({**plain, "saving": {"out": "/o.safetensors"}})
    assert read_form(untouched) == usual
    assert form_texts(usual.to_dict()) == untouched


def test_all_problems_come_at_once_at_their_fields():
    with pytest.raises(ConfigError) as caught:
        read_form({**OWN, "network.rank": "many", "data.size": "63", "schedule.steps": "1.5"})
    found = dict(problems_of(caught.value))
    assert set(found) == {"network.rank", "data.size", "schedule.steps"}
    assert "whole number" in found["network.rank"]


def test_a_problem_of_a_section_stands_at_its_first_field():
    with pytest.raises(ConfigError) as caught:
        read_form({**OWN, "network.unet": "false"})
    ((name, sentence),) = problems_of(caught.value)
    assert name == "network.type"
    assert "Nothing would be trained" in sentence


def test_a_field_that_the_form_has_not_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"network\.rank"):
        read_form({**OWN, "network.rnk": "4"})
