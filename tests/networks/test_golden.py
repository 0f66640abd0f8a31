"""The deltas of the network types against those that the trainers which write such files were seen to compute."""

import math

import pytest
import torch

from lib_lora.networks.compose import compose, network_type_of
from lib_lora.networks.contract import LayerNetwork, misfit, shapes_of
from tests.golden_data import golden

RECORDED = golden("network_types")
TYPES = ("lora", "loha", "lokr")
CASES = {case["id"]: case for case in RECORDED["cases"] if case["type"] in TYPES}
PEFT = {name: case for name, case in RECORDED["peft"].items() if "lora" in name or "dora" in name}
PEFT_SUFFIXES = {
    "l.lora_A.weight": "lora_down.weight",
    "l.lora_B.weight": "lora_up.weight",
    "l.lora_magnitude_vector": "dora_scale",
}
# The trainers computed in float32, on deltas of about 0.1 to 2.
LIMIT = 5e-6


def tensor(recorded):
    return torch.tensor(recorded["data"], dtype=torch.float64).reshape(recorded["shape"])


def weight_of(layer):
    found = RECORDED["layers"][layer]
    return tensor({"data": found["weight"], "shape": found["weight_shape"]})


def delta_of(layer, tensors):
    weight = weight_of(layer)
    kind = network_type_of(shapes_of(tensors))
    assert misfit(kind, shapes_of(tensors), tuple(weight.shape)) is None
    return kind, compose(weight, [(LayerNetwork(kind, tensors), 1.0)]).weight.flatten()


def check(delta, expected):
    expected = torch.tensor(expected, dtype=torch.float64)
    assert float((delta - expected).abs().max()) <= LIMIT
    assert float((1.05 * delta - expected).abs().max()) > 20 * LIMIT


@pytest.mark.parametrize("id_", CASES)
def test_the_delta_is_the_trainers(id_):
    case = CASES[id_]
    tensors = {suffix: tensor(recorded) for suffix, recorded in case["state"].items()}
    kind, delta = delta_of(case["layer"], tensors)
    assert kind.id == ("dora-" if "dora_scale" in tensors else "") + case["type"]
    check(delta, case["truth"]["1.0"]["w"])
    # The strength is linear in the delta, as the trainers' multiplier is where nothing is normed.
    if "dora_scale" not in tensors and "0.7" in case["truth"]:
        check(0.7 * delta, case["truth"]["0.7"]["w"])


def test_the_record_holds_every_type():
    assert len(RECORDED["cases"]) == 97
    assert len(CASES) == 56


@pytest.mark.parametrize("name", PEFT)
def test_the_delta_is_that_of_peft(name):
    case = PEFT[name]
    tensors = {PEFT_SUFFIXES[key]: tensor(recorded) for key, recorded in case["state"].items()}
    rank = tensors["lora_down.weight"].shape[0]
    root = math.sqrt(rank) if case["config"]["use_rslora"] else 1.0
    tensors["alpha"] = torch.tensor(case["config"]["lora_alpha"] * root)
    check(delta_of(case["layer"], tensors)[1], case["result"]["1.0"]["fwd_w"])
