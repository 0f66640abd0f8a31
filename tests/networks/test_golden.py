"""The deltas of the network types against those that the trainers which write such files were seen to compute."""

import math

import pytest
import torch

from lib_lora.networks.compose import compose, network_type_of
from lib_lora.networks.contract import LayerNetwork, misfit, shapes_of
from tests.golden_data import golden

RECORDED = golden("network_types")
IDS = {"diag-oft": "oft", "oft-kohya": "oft"}  # our id where it is not the record's word
CASES = {case["id"]: case for case in RECORDED["cases"]}
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
    return kind, compose(weight, [(LayerNetwork(kind, tensors), 1.0)])


def check(delta, expected):
    delta, expected = delta.flatten(), torch.tensor(expected, dtype=torch.float64)
    assert float((delta - expected).abs().max()) <= LIMIT
    if float(expected.abs().max()) > LIMIT:  # one case is nothing, on purpose
        assert float((1.05 * delta - expected).abs().max()) > 20 * LIMIT


@pytest.mark.parametrize("id_", CASES)
def test_the_delta_is_the_trainers(id_):
    case = CASES[id_]
    tensors = {suffix: tensor(recorded) for suffix, recorded in case["state"].items()}
    if case["type"] == "oft-kohya":  # its alpha of 0 is a bound, which is our other suffix
        tensors["constraint"] = tensors.pop("alpha")
    kind, delta = delta_of(case["layer"], tensors)
    id_ = IDS.get(case["type"], case["type"])
    assert kind.id == ("dora-" if "dora_scale" in tensors else "") + id_
    # The strength is linear in the delta, as the trainers' multiplier is where nothing is normed, rescaled or multiplied.
    linear = kind.id != "boft" and not tensors.keys() & {"dora_scale", "rescale"}
    for strength in (1.0, 0.7) if linear else (1.0,):
        truth = case["truth"].get(str(strength), {})
        for name, part in (("w", delta.weight), ("b", delta.bias)):
            if name in truth:
                check(strength * part, truth[name])
        assert (delta.bias is None) == ("b" not in case["truth"]["1.0"])


def test_the_record_holds_every_type():
    assert len(CASES) == len(RECORDED["cases"]) == 97


@pytest.mark.parametrize("name", PEFT)
def test_the_delta_is_that_of_peft(name):
    case = PEFT[name]
    tensors = {PEFT_SUFFIXES[key]: tensor(recorded) for key, recorded in case["state"].items()}
    rank = tensors["lora_down.weight"].shape[0]
    root = math.sqrt(rank) if case["config"]["use_rslora"] else 1.0
    tensors["alpha"] = torch.tensor(case["config"]["lora_alpha"] * root)
    check(delta_of(case["layer"], tensors)[1].weight, case["result"]["1.0"]["fwd_w"])
