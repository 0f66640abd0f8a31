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
    preparation = Preparation(lambda: None, lambda tell: None, True)
    preparation.check()
    assert preparation.view()["ready"]


def test_preparing_tells_its_steps_and_is_done_once():
    lacking, gate = ["diffusers is missing."], threading.Event()

    def prepare(tell):
        tell("Collecting diffusers")
        gate.wait(5)
        lacking.clear()

    preparation = Preparation(lambda: lacking[0] if lacking else None, prepare, True)
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
    def prepare(tell):
        raise LoraError("PyPI cannot be reached.")

    preparation = Preparation(lambda: "It is missing.", prepare, True)
    preparation.begin()
    view = until(preparation, "sentence", "PyPI cannot be reached.")
    assert (view["ready"], view["allowed"]) == (False, True)


def test_over_the_network_nobody_installs():
    preparation = Preparation(lambda: "It is missing.", lambda tell: None, False)
    assert not preparation.view()["allowed"]
    with pytest.raises(UsageError, match="over the network"):
        preparation.begin()
