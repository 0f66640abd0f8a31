"""What the live mode computes and leaves out, against what v1.10.1 of the WebUI was seen to compute and to find."""

import json

import numpy as np
import pytest
import torch

from lib_lora.errors import UsageError
from lib_lora.families.detect import FAMILIES, detect_family
from lib_lora.families.sd1 import SD1, UNET
from lib_lora.families.sd2 import OPENCLIP
from lib_lora.families.sd3 import FUSED, FUSED_TEXT
from lib_lora.families.sdxl import CLIP, SDXL
from lib_lora.families.sdxl import OPENCLIP as SECOND_CLIP
from lib_lora.formats.dialects import alias_table, locate
from lib_lora.formats.header import read_header
from lib_lora.formats.network_file import write_network
from lib_lora.formats.stream import TensorReader, write_tensors
from lib_lora.merge.bake import bake
from lib_lora.merge.live import (
    NAMINGS,
    NOT_FOUND,
    compose_in_turn,
    misfit,
    translated,
    webui_suffix,
)
from lib_lora.merge.plan import LoraChoice, plan_merge
from lib_lora.networks.compose import compose, network_type_of
from lib_lora.networks.contract import LayerNetwork, shapes_of
from tests.families import recorded
from tests.golden_data import golden
from tests.merge.small import CONV, LAYERS, QUERY, TEXT, W, base_tensors, lora_tensors

RECORDED = golden("network_types")
CASES = {case["id"]: case for case in RECORDED["cases"]}
ATTENTIONS = {
    f"{one['kind']}-{'-'.join(one['parts'])}-{one['multiplier']}": one
    for one in RECORDED["a1111_fused_qkv"]
}
NAMES = golden("other_kohya_names_resolved")["webui"]
LIMIT = 1e-5


def tensor(record):
    return torch.tensor(record["data"], dtype=torch.float64).reshape(record["shape"])


def part_of(case):
    """Return the network of a recorded case as a file gives it, and the weight it is for."""
    tensors = {suffix: tensor(record) for suffix, record in case["state"].items()}
    if case["type"] == "oft-kohya":  # its alpha of 0 is a bound, which is our other suffix
        tensors["constraint"] = tensors.pop("alpha")
    layer = RECORDED["layers"][case["layer"]]
    weight = tensor({"data": layer["weight"], "shape": layer["weight_shape"]})
    return LayerNetwork(network_type_of(shapes_of(tensors)), tensors), weight


def webui_result(case, strength):
    """Return what the WebUI made of a case: an error, or deltas; two cases have the WebUI itself for their truth."""
    found = case["a1111"].get("calc_updown", {}).get(strength, "=truth")
    return case["truth"][strength] if found == "=truth" else found


@pytest.mark.parametrize("id_", CASES)
def test_the_delta_is_that_of_the_webui(id_):
    part, weight = part_of(CASES[id_])
    for strength in ("1.0", "0.7"):
        result = webui_result(CASES[id_], strength)
        assert (misfit(part, tuple(weight.shape)) is not None) == ("error" in result)
        if "error" in result:
            continue
        delta = compose_in_turn(weight, [(translated(part), float(strength))])
        assert (delta.bias is None) == ("b" not in result)
        for name, found in (("w", delta.weight), ("b", delta.bias)):
            if name in result:
                right = torch.tensor(result[name], dtype=torch.float64)
                assert float((found.flatten() - right).abs().max()) <= LIMIT
                # Control: a strength off by 5 % is told apart.
                assert float((1.05 * found.flatten() - right).abs().max()) > 10 * LIMIT


def test_the_record_holds_what_the_webui_does_otherwise():
    results = [webui_result(case, "1.0") for case in CASES.values()]
    assert sum("error" in result for result in results) == 7
    assert sum("max_abs_diff" in result for result in results) == 12
    differing = [case for case in CASES.values() if "max_abs_diff" in webui_result(case, "1.0")]
    for case in differing:
        part, weight = part_of(case)
        own, theirs = (
            law(weight, [(network, 1.0)]).weight
            for law, network in ((compose, part), (compose_in_turn, translated(part)))
        )
        assert float((own - theirs).abs().max()) > 0.2


def layers_of(name):
    shapes = golden("sd15")["original"] if name == "sd15" else recorded.shapes(name)
    shapes = {key: tuple(shape) for key, shape in shapes.items()}
    family = detect_family(shapes, {})
    return family, family.layers(shapes)


@pytest.mark.parametrize("naming", sorted(NAMES.keys() - {"sd3-medium/kohya-with-alpha"}))
def test_a_name_finds_a_layer_where_it_does_in_the_webui(naming):
    family, layers = layers_of(naming.partition("/")[0])
    aliases = alias_table(layers.values(), family.components)
    for name, place in NAMES[naming].items():
        key = f"{name}.lora_down.weight"
        alias = locate(key, aliases).alias
        found = alias is not None and {
            webui_suffix(key, layers[target.layer], family) for target in alias.targets
        }
        if family is SDXL and name.startswith("lora_te1_text_model_embeddings"):
            assert place is None  # found, and then the file is refused: see below
        elif place is None:
            assert not found or found == {None}, name
        else:
            assert found == {"lora_down.weight"}, name


def test_it_is_told_for_every_family_how_the_webui_finds_its_layers():
    assert NAMINGS.keys() == {family.id for family in FAMILIES}


def read(file):
    with TensorReader(file) as reader:
        return {key: reader.read(key) for key in reader.header.tensors}


def factors(out, inputs, rank=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    down, up = (torch.randn(size, generator=draw) for size in ((rank, inputs), (out, rank)))
    return {"lora_down.weight": down, "lora_up.weight": up}


def live_plan(folder, base, network):
    """Plan the merge of tensors into tensors, both by their keys."""
    write_tensors(folder / "base.safetensors", base, {})
    write_tensors(folder / "lora.safetensors", network, {})
    choice = LoraChoice(folder / "lora.safetensors")
    return plan_merge(folder / "base.safetensors", [choice], mode="live")


INPUT = {f"{UNET}input_blocks.0.0.weight": torch.ones(8, 4, 3, 3)}
SD2_BASE = {
    **INPUT,
    f"{UNET}input_blocks.1.1.proj_in.weight": torch.ones(8, 8),
    f"{OPENCLIP}token_embedding.weight": torch.ones(5, 8),
}
SD3_BASE = {FUSED: torch.ones(24, 8), FUSED_TEXT: torch.ones(24, 8)}
SDXL_BASE = {
    **INPUT,
    f"{UNET}label_emb.0.0.weight": torch.ones(8, 8),
    f"{UNET}output_blocks.0.1.proj_in.weight": torch.ones(8, 8),
    f"{CLIP}text_model.embeddings.token_embedding.weight": torch.ones(5, 8),
    f"{SECOND_CLIP}token_embedding.weight": torch.ones(5, 8),
}
OPENCLIP_ATTENTION = f"{OPENCLIP}transformer.resblocks.0.attn."


@pytest.mark.parametrize("name", ATTENTIONS)
def test_an_attention_is_changed_as_a_whole_or_not_at_all(tmp_path, name):
    record = ATTENTIONS[name]
    if record["kind"] == "mha":
        rest, spelling = SD2_BASE, "lora_te_text_model_encoder_layers_0_self_attn_{}_proj"
        keys = {
            "qkv": f"{OPENCLIP_ATTENTION}in_proj_weight",
            "out": f"{OPENCLIP_ATTENTION}out_proj.weight",
        }
    else:
        rest, spelling = SD3_BASE, "transformer.transformer_blocks.0.attn.to_{}"
        keys = {"qkv": FUSED}
    stored = {key: torch.tensor(record[f"base_{end}"]).reshape(-1, 8) for end, key in keys.items()}
    network = {}
    for part in record["parts"]:
        flat = record["lora"][part]
        scale = flat["alpha"][0] / record["rank"]  # SD3's files cannot tell the WebUI an alpha
        up = torch.tensor(flat["lora_up.weight"]).reshape(8, -1) * scale
        network[f"{spelling.format(part)}.lora_up.weight"] = up
        down = torch.tensor(flat["lora_down.weight"]).reshape(-1, 8)
        network[f"{spelling.format(part)}.lora_down.weight"] = down
    write_tensors(tmp_path / "base.safetensors", {**rest, **stored}, {})
    write_tensors(tmp_path / "lora.safetensors", network, {})
    choice = LoraChoice(tmp_path / "lora.safetensors", record["multiplier"])
    plan = plan_merge(tmp_path / "base.safetensors", [choice], mode="live")
    bake(plan, tmp_path / "out.safetensors")
    whole = len(record["parts"]) == (4 if record["kind"] == "mha" else 3)
    told = {entry.tensor: entry.reason for entry in plan.networks[0].unmatched}
    assert told.keys() == (set() if whole else network.keys())
    assert all("as a whole" in reason for reason in told.values())
    baked = read(tmp_path / "out.safetensors")
    for end, key in keys.items():
        right = torch.tensor(record[f"delta_{end}"]).reshape(-1, 8)
        assert (right.abs().max() > 0.1) == whole
        assert float((baked[key] - stored[key] - right).abs().max()) <= LIMIT


def test_each_network_changes_what_the_ones_before_it_left(make_base, make_lora, tmp_path):
    draw = torch.Generator().manual_seed(0)
    lora, gains = lora_tensors([QUERY], seed=1), 0.3 * torch.randn(W, generator=draw)
    columns = {QUERY: {"weight": gains, "on_input": torch.tensor(True)}}
    choices = [LoraChoice(make_lora(lora, "lora"), 0.8), LoraChoice(make_lora(columns, "ia3"), 0.5)]
    base, key = make_base(torch.float32), LAYERS[QUERY].weight.key
    results = {}
    for mode in ("exact", "live"):
        bake(plan_merge(base, choices, mode=mode), tmp_path / f"{mode}.safetensors")
        results[mode] = read(tmp_path / f"{mode}.safetensors")[key].numpy()
    bake(plan_merge(base, choices[::-1], mode="live"), tmp_path / "turned.safetensors")

    weight = base_tensors(torch.float32)[key].double().numpy()
    up, down = (lora[QUERY][s].double().numpy() for s in ("lora_up.weight", "lora_down.weight"))
    delta, columns = 0.8 * up @ down * 4.0 / 8, 0.5 * gains.double().numpy()
    right = weight + delta + (weight + delta) * columns
    np.testing.assert_allclose(results["live"], right, rtol=0, atol=1e-7)
    summed = weight + delta + weight * columns
    np.testing.assert_allclose(results["exact"], summed, rtol=0, atol=1e-7)
    turned = read(tmp_path / "turned.safetensors")[key].numpy()
    np.testing.assert_allclose(turned, weight + weight * columns + delta, rtol=0, atol=1e-7)
    assert np.abs(right - summed).max() > 1e-4
    recipe = read_header(tmp_path / "live.safetensors").metadata["sd_merge_recipe"]
    assert json.loads(recipe)["mode"] == "live"


LINEAR = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
IN = "unet.conv_in"


def test_tensors_beside_those_of_its_type_are_not_read(tmp_path):
    """Under PEFT's names that is the alpha, which halves the delta here; beside factors it is a difference of the bias."""
    pair, ones = factors(W, W), torch.ones(W, 2, 1, 1)
    network = {
        f"{LINEAR}.lora_A.weight": pair["lora_down.weight"],
        f"{LINEAR}.lora_B.weight": pair["lora_up.weight"],
        f"{LINEAR}.alpha": torch.tensor(1.0),
        "lora_unet_conv_in.lora_down.weight": torch.ones(2, 4, 3, 3),
        "lora_unet_conv_in.lora_up.weight": ones,
        "lora_unet_conv_in.diff_b": torch.ones(W),
    }
    plan = live_plan(tmp_path, base_tensors(torch.float32), network)
    exact = plan_merge(plan.base.path, plan.choices)
    assert exact.changes.keys() - plan.changes.keys() == {LAYERS[IN].bias.key}
    assert plan.networks[0].unmatched == exact.networks[0].unmatched == ()
    bake(plan, tmp_path / "out.safetensors")
    key = LAYERS[QUERY].weight.key
    change = read(tmp_path / "out.safetensors")[key] - base_tensors(torch.float32)[key]
    right = (pair["lora_up.weight"].double() @ pair["lora_down.weight"].double()).numpy()
    np.testing.assert_allclose(change.numpy(), right, rtol=0, atol=LIMIT)


SET = {f"{LINEAR}.set_weight": torch.ones(W, W)}
OTHER = {f"{LINEAR}.lora_{one}.default.weight": torch.ones(W, W) for one in "AB"}
HALF = {f"{LINEAR}.lora_up.weight": torch.ones(W, 2)}
NO_ALPHA = {f"{LINEAR}.{one}.weight": torch.ones(W, W) for one in ("a1", "a2", "b1", "b2")}


@pytest.mark.parametrize("odd", [SET, OTHER, HALF, NO_ALPHA], ids=lambda odd: next(iter(odd))[-20:])
def test_a_file_that_the_webui_refuses_changes_nothing(tmp_path, odd):
    text = {f"lora_te_{TEXT[4:].replace('.', '_')}.{s}": t for s, t in factors(W, W).items()}
    plan = live_plan(tmp_path, base_tensors(torch.float32), {**text, **odd})
    assert not plan.changes
    told = {entry.tensor: entry.reason for entry in plan.networks[0].unmatched}
    assert told.keys() == {*text, *odd}
    assert all("refuses a file that holds" in told[key] for key in text)
    alone = tmp_path / "alone"
    alone.mkdir()
    assert live_plan(alone, base_tensors(torch.float32), text).changes  # control


def test_files_that_the_webui_refuses_in_other_families(tmp_path):
    qkv = "lora_unet_joint_blocks_0_x_block_attn_qkv"
    network = {f"{qkv}.{suffix}": tensor for suffix, tensor in factors(24, 8).items()}
    assert live_plan(tmp_path, SD3_BASE, network).changes.keys() == {FUSED}
    plan = live_plan(tmp_path, SD3_BASE, {**network, f"{qkv}.alpha": torch.tensor(2.0)})
    assert not plan.changes
    assert "few parts" in plan.warnings[0]
    embedding = "lora_te1_text_model_embeddings_token_embedding"
    for name, changed in ((embedding, False), ("lora_unet_output_blocks_0_1_proj_in", True)):
        sizes = factors(5 if name == embedding else 8, 8)
        plan = live_plan(tmp_path, SDXL_BASE, {f"{name}.{s}": t for s, t in sizes.items()})
        assert bool(plan.changes) == changed
    assert not plan.warnings


def test_layers_that_it_does_not_find_or_fit_are_named(tmp_path, make_base, make_lora):
    network = lora_tensors([CONV, QUERY], seed=1)
    network[CONV] = {"weight": torch.ones(1, W, 1, 1), "on_input": torch.tensor(False)}
    file = make_lora(network)
    plan = plan_merge(make_base(torch.float32), [LoraChoice(file)], mode="live")
    assert plan.changes.keys() == {LAYERS[QUERY].weight.key}
    assert {entry.reason for entry in plan.networks[0].unmatched} == {
        "the live WebUI's IA3 does not fit this layer"
    }
    assert "2 tensors of lora.safetensors are left out" in plan.warnings[0]
    file = make_lora(lora_tensors([QUERY], seed=1), dialect="diffusers")
    plan = plan_merge(make_base(torch.float32), [LoraChoice(file)], mode="live")
    assert not plan.changes
    assert {entry.reason for entry in plan.networks[0].unmatched} == {NOT_FOUND}


def test_a_delta_on_nine_channels_is_left_out(tmp_path):
    """The WebUI widens it as if it had four, and then it does not fit."""
    shape = (8, 9, 3, 3)
    base = {**base_tensors(torch.float32), f"{UNET}input_blocks.0.0.weight": torch.ones(shape)}
    plan = live_plan(tmp_path, base, {"lora_unet_conv_in.diff": torch.ones(shape)})
    assert not plan.changes
    assert plan_merge(plan.base.path, plan.choices).changes
    assert "9 channels" in plan.warnings[0]


def test_a_delta_on_four_of_nine_channels_is_widened_as_the_webui_does(tmp_path):
    base = {
        **base_tensors(torch.float32),
        f"{UNET}input_blocks.0.0.weight": torch.ones(8, 9, 3, 3),
    }
    draw = torch.Generator().manual_seed(1)
    difference = torch.randn(8, 4, 3, 3, generator=draw)
    plan = live_plan(tmp_path, base, {"lora_unet_conv_in.diff": difference})
    report = bake(plan, tmp_path / "merged.safetensors")
    with TensorReader(report.file) as reader:
        found = reader.read(f"{UNET}input_blocks.0.0.weight")
    assert torch.equal(found[:, :4], (1 + difference.double()).float())
    assert torch.equal(found[:, 4:], torch.ones(8, 5, 3, 3))


def test_a_folder_is_refused(tmp_path, make_base):
    folder = tmp_path / "peft"
    write_network(folder, lora_tensors([QUERY], seed=1), LAYERS, SD1.components, "peft")
    with pytest.raises(UsageError, match="peft is a folder"):
        plan_merge(make_base(torch.float32), [LoraChoice(folder)], mode="live")
