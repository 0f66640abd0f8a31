"""Preparing the worker's environment: seen from the page, and allowed or not."""

import threading

import pytest

from lib_lora.errors import LoraError, UsageError
from lib_lora.ui.preparation import Preparation


def until(preparation, key, value):
    for _ in range(500):
        if preparation.view()[key] == value:
            return preparation.view()
        threading.Event().wait(0.01)
    raise AssertionError(preparation.view())


def test_what_is_ready_lets_a_training_begin():
    preparation = Preparation(lambda extra: None, lambda tell, extra: None, True)
    preparation.check()
    assert preparation.view()["ready"]


def test_preparing_tells_its_steps_and_is_done_once():
    lacking, gate = ["diffusers is missing."], threading.Event()

    def prepare(tell, extra):
        tell("Collecting diffusers")
        gate.wait(5)
        lacking.clear()

    preparation = Preparation(lambda extra: lacking[0] if lacking else None, prepare, True)
    with pytest.raises(UsageError, match="diffusers is missing"):
        preparation.check()
    preparation.begin()
    view = until(preparation, "lines", ["Collecting diffusers"])
    assert (view["busy"], view["ready"]) == (True, False)
    with pytest.raises(UsageError, match="already"):
        preparation.begin()
    gate.set()
    assert until(preparation, "busy", False)["ready"]
    preparation.check()


def test_what_went_wrong_is_a_sentence_and_can_be_tried_again():
    def prepare(tell, extra):
        raise LoraError("PyPI cannot be reached.")

    preparation = Preparation(lambda extra: "It is missing.", prepare, True)
    preparation.begin()
    view = until(preparation, "sentence", "PyPI cannot be reached.")
    assert (view["ready"], view["allowed"]) == (False, True)


def test_over_the_network_nobody_installs():
    preparation = Preparation(lambda extra: "It is missing.", lambda tell, extra: None, False)
    assert not preparation.view()["allowed"]
    with pytest.raises(UsageError, match="over the network"):
        preparation.begin()


def test_an_optional_package_is_lacking_for_the_training_that_needs_it_alone():
    there = set()
    preparation = Preparation(
        lambda extra: f"{extra} is missing." if extra and extra not in there else None,
        lambda tell, extra: there.add(extra),
        True,
    )
    preparation.check()
    with pytest.raises(UsageError, match="prodigyopt is missing"):
        preparation.check("prodigyopt")
    assert preparation.view()["allowed"]
    preparation.check()
    with pytest.raises(UsageError, match="prodigyopt is missing"):
        preparation.check("prodigyopt")
    preparation.begin()
    until(preparation, "ready", True)
    preparation.check("prodigyopt")
