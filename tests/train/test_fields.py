"""The reading of configuration fields: what no field can hold is a problem told, never an error of its own."""

from pathlib import Path

import pytest

from lib_lora.train.config_learning import OptimizerConfig, ScheduleConfig
from lib_lora.train.config_outputs import SavingConfig
from lib_lora.train.fields import read_section


def problems_of(kind, raw):
    problems = []
    read_section("section", kind, raw, Path(), problems)
    return problems


@pytest.mark.parametrize(("kind", "key"), [(ScheduleConfig, "steps"), (OptimizerConfig, "clip")])
def test_a_number_too_large_for_a_float_is_out_of_range(kind, key):
    ((field, sentence),) = problems_of(kind, {key: 10**400})
    assert field == f"section.{key}"
    assert sentence.startswith("Accepts ")
    assert sentence.endswith(f"found {10**400}.")


def test_a_home_that_is_nobodys_is_told():
    ((field, sentence),) = problems_of(SavingConfig, {"out": "~nobody at all/x.safetensors"})
    assert (field, sentence) == ("section.out", "There is no home folder '~nobody at all'.")
