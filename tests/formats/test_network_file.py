"""Networks through files: every dialect gives the same delta back, here and in diffusers' own loader; nothing is silent."""

import copy

import pytest
import torch
from diffusers import StableDiffusionPipeline
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict

from lib_lora.errors import FileFormatError, UnmatchedError, UsageError
from lib_lora.families.sd1 import SD1
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.hashes import sshs_model_hash
from lib_lora.formats.header import read_header
from lib_lora.formats.network_file import read_network, write_network
from lib_lora.formats.stream import TensorReader, write_tensors
from lib_lora.formats.written import WRITABLE
from lib_lora.networks.compose import compose
from lib_lora.networks.contract import LayerNetwork
from lib_lora.networks.lora import ALPHA, DOWN, UP
from lib_lora.networks.oft import OFT
from tests.golden_data import golden
from tests.tiny import CONFIG, tiny_checkpoint, tiny_components

BLOCK = "down_blocks.0.attentions.0"
CONV = "unet.down_blocks.0.resnets.0.conv1"
POINTWISE = f"unet.{BLOCK}.proj_in"
LINEAR = f"unet.{BLOCK}.transformer_blocks.0.attn1.to_q"
TEXT = "te1.text_model.encoder.layers.1.mlp.fc1"
# diffusers knows the tensors of a text encoder by those of its attention
TEXT_ATTENTION = "te1.text_model.encoder.layers.0.self_attn.q_proj"
CHANGED = (CONV, POINTWISE, LINEAR, TEXT, TEXT_ATTENTION)
# (rank, alpha) of each changed layer: alpha / rank a power of two, one number that rounds, and different ones
STRENGTHS = {
    "plain": [(4, 4.0)] * 5,
    "folded": [(4, 1.0)] * 5,
    "rounding": [(6, 4.0)] * 5,
    "mixed": [(4, 4.0), (2, 3.0), (8, 1.7), (4, 0.1), (2, 2.0)],
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def layers(base):
    return open_checkpoint(base).layers


@pytest.fixture(scope="module")
def loaded(base):
    return StableDiffusionPipeline.from_single_file(
        str(base), config=str(CONFIG), local_files_only=True
    )


@pytest.fixture
def pipeline(loaded):
    """Return a copy of the base's pipeline, to be changed at will."""
    return StableDiffusionPipeline(
        **copy.deepcopy(loaded.components), requires_safety_checker=False
    )


def a_network(layers, strengths="plain"):
    """Return a random network on a convolution, a 1x1 convolution, a linear layer and two layers of the text encoder."""
    draw = torch.Generator().manual_seed(5)
    tensors = {}
    for layer_id, (rank, alpha) in zip(CHANGED, STRENGTHS[strengths], strict=True):
        out, inputs, *kernel = layers[layer_id].shape
        ones = [1] * len(kernel)
        tensors[layer_id] = {
            DOWN: torch.randn(rank, inputs, *kernel, generator=draw),
            UP: torch.randn(out, rank, *ones, generator=draw),
            ALPHA: torch.tensor(alpha),
        }
    return tensors


# A spelling that on SD1 is kohya's own.
READ_AS = {"onetrainer": "kohya"}
FILES = tuple(dialect for dialect in WRITABLE if dialect != "peft")


def write(file, tensors, layers, dialect="kohya", **others):
    write_network(file, tensors, layers, SD1.components, dialect, **others)


def read(file, layers):
    return read_network(file, layers, SD1.components)


def delta(tensors):
    """Return alpha / rank * up @ down in float64 as a matrix, by its definition."""
    down, up = tensors[DOWN].double(), tensors[UP].double()
    return float(tensors[ALPHA]) / down.shape[0] * up.flatten(1) @ down.flatten(1)


def delta_read(network, layers, layer_id):
    weight = torch.zeros(layers[layer_id].shape, dtype=torch.float64)
    return compose(weight, [(network.layers[layer_id], 1.0)]).weight.flatten(1)


@pytest.mark.parametrize("strengths", STRENGTHS)
@pytest.mark.parametrize("dialect", WRITABLE)
def test_a_written_network_is_read_back_with_the_same_delta(tmp_path, layers, dialect, strengths):
    tensors = a_network(layers, strengths)
    file = tmp_path / ("some-style" if dialect == "peft" else "some-style.safetensors")
    write(file, tensors, layers, dialect, metadata={"ss_output_name": "x"})
    network = read(file, layers)
    assert (network.name, network.unmatched) == ("some-style", ())
    assert network.dialect == READ_AS.get(dialect, dialect)
    assert network.metadata["ss_output_name"] == "x"
    assert network.layers.keys() == tensors.keys()
    for layer_id, parts in tensors.items():
        found = delta_read(network, layers, layer_id)
        torch.testing.assert_close(found, delta(parts), rtol=1e-12, atol=1e-12)
        assert not torch.allclose(found, 1.05 * delta(parts))


@pytest.mark.parametrize("dialect", FILES)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("alpha", [1.0, 3.0, 2.0**12])
def test_eight_bits_are_written_as_they_are(tmp_path, layers, dialect, dtype, alpha):
    # 2^10 times 1.5 is beyond the largest number of E4M3, 448, and within that of E5M2, 57344.
    out, inputs = layers[LINEAR].shape
    tensors = {
        DOWN: torch.full((4, inputs), 0.25).to(dtype),
        UP: torch.full((out, 4), 1.5).to(dtype),
        ALPHA: torch.tensor(alpha),
    }
    file = tmp_path / "style.safetensors"
    write(file, {LINEAR: tensors}, layers, dialect)
    network = read(file, layers)
    assert network.layers[LINEAR].tensors[UP].dtype == dtype
    assert torch.equal(delta_read(network, layers, LINEAR), delta(tensors))


@pytest.mark.parametrize("strengths", STRENGTHS)
def test_diffusers_reads_the_diffusers_dialect_to_the_same_delta(
    tmp_path, layers, pipeline, strengths
):
    tensors = a_network(layers, strengths)
    write(tmp_path / "style.safetensors", tensors, layers, "diffusers")
    before = weights(pipeline)
    pipeline.load_lora_weights(str(tmp_path), weight_name="style.safetensors")
    pipeline.fuse_lora(components=["unet", "text_encoder"])
    pipeline.unload_lora_weights()
    after = weights(pipeline)
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed == set(CHANGED)
    for layer_id, parts in tensors.items():
        found = (after[layer_id].double() - before[layer_id].double()).flatten(1)
        expected = delta(parts)
        error = (found - expected).norm() / expected.norm()
        assert error < 1e-6  # float32 sums
        assert (found - 1.05 * expected).norm() / expected.norm() > 0.04


def weights(pipeline):
    """Return the weights of UNet and text encoder by layer id."""
    found = {}
    for prefix, module in (
        ("unet.", pipeline.unet),
        ("te1.text_model.", pipeline.text_encoder),
    ):
        for key, tensor in module.state_dict().items():
            name = key.removeprefix("text_model.")
            if name.endswith(".weight"):
                found[prefix + name.removesuffix(".weight")] = tensor.clone()
    return found


def test_alpha_is_folded_where_that_is_exact_and_told_where_it_is_not(tmp_path, layers):
    for strengths, told in (
        ("plain", False),
        ("folded", False),
        ("rounding", True),
        ("mixed", True),
    ):
        file = tmp_path / f"{strengths}.safetensors"
        write(file, a_network(layers, strengths), layers, "diffusers")
        assert ("lora_adapter_metadata" in read_header(file).metadata) == told


def test_a_file_that_diffusers_saved_with_its_metadata_is_read_at_its_own_strength(
    tmp_path, layers, pipeline
):
    config = LoraConfig(
        r=4,
        lora_alpha=6,
        target_modules=["attn1.to_q"],
        alpha_pattern={f"{BLOCK}.transformer_blocks.0.attn1.to_q": 3},
    )
    pipeline.unet.add_adapter(config)
    for name, parameter in pipeline.unet.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    state = get_peft_model_state_dict(pipeline.unet)
    StableDiffusionPipeline.save_lora_weights(
        str(tmp_path),
        unet_lora_layers=state,
        unet_lora_adapter_metadata=pipeline.unet.peft_config["default"].to_dict(),
    )
    network = read(tmp_path / "pytorch_lora_weights.safetensors", layers)
    assert network.unmatched == ()
    assert len(network.layers) == 16  # one attn1 per transformer block of SD1
    alphas = {id: float(part.tensors[ALPHA]) for id, part in network.layers.items()}
    assert alphas.pop(LINEAR) == 3
    assert set(alphas.values()) == {6}


def test_a_raw_peft_state_dict_is_read(tmp_path, layers):
    unet = get_peft_model(
        tiny_components()["unet"], LoraConfig(r=2, lora_alpha=2, target_modules=["attn2.to_k"])
    )
    state = {key: value for key, value in unet.state_dict().items() if "lora_" in key}
    assert all(".default." in key and key.startswith("base_model.model.") for key in state)
    file = tmp_path / "adapter_model.safetensors"
    write_tensors(file, state, {})
    network = read(file, layers)
    assert (network.dialect, len(network.layers), network.unmatched) == ("peft", 16, ())
    assert all(ALPHA not in part.tensors for part in network.layers.values())


def test_every_kohya_name_of_sd15_is_read_with_kohyas_shapes(tmp_path):
    facts = golden("sd15")
    layers = SD1.layers({key: tuple(shape) for key, shape in facts["original"].items()})
    tensors = {}
    for name, (_, _, down, up) in facts["kohya"].items():
        tensors[f"{name}.lora_down.weight"] = torch.zeros(down, dtype=torch.float16)
        tensors[f"{name}.lora_up.weight"] = torch.zeros(up, dtype=torch.float16)
        tensors[f"{name}.alpha"] = torch.tensor(1.0)
    file = tmp_path / "kohya.safetensors"
    write_tensors(file, tensors, {})
    network = read(file, layers)
    assert network.unmatched == ()
    assert network.layers.keys() == {
        f"{component}.{path}" for component, path, *_ in facts["kohya"].values()
    }


def shifted(tensors, layer_id, suffix, change):
    parts = dict(tensors[layer_id])
    parts[suffix] = change(parts[suffix])
    return tensors | {layer_id: parts}


TO_Q = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
ADDED = {
    "stranger": ({"lora_unet_nowhere.lora_down.weight": torch.zeros(1)}, "no layer of this name"),
    "embedding": ({"bundle_emb.cat.string_to_param.*": torch.zeros(1)}, "bundled embedding"),
    "same layer in other words": (
        {"lora_unet_input_blocks_1_1_transformer_blocks_0_attn1_to_q.alpha": torch.zeros(())},
        "already names the same tensor",
    ),
    "half a pair": (
        {"lora_unet_conv_in.lora_down.weight": torch.zeros(2, 4, 3, 3)},
        "lora_up.weight of this layer is missing",
    ),
    "only an alpha": ({"lora_unet_conv_in.alpha": torch.tensor(1.0)}, "no supported network type"),
    "another type": (
        {"lora_unet_conv_in.hada_x": torch.zeros(2, 2)},
        "hada_x belong to no supported",
    ),
}


@pytest.mark.parametrize("case", ADDED)
def test_a_tensor_that_is_not_applied_is_named_with_the_reason(tmp_path, layers, case):
    added, reason = ADDED[case]
    file = tmp_path / "style.safetensors"
    write(file, a_network(layers), layers)
    with TensorReader(file) as reader:
        tensors = {key: reader.read(key) for key in reader.header.tensors}
    write_tensors(file, tensors | added, {})
    network = read(file, layers)
    assert network.layers.keys() == set(CHANGED)
    (left,) = network.unmatched
    # Of two spellings of one layer the one that comes first in the file is taken.
    assert left.tensor in added or left.tensor.startswith(TO_Q)
    assert reason in left.reason


@pytest.mark.parametrize(
    ("layer_id", "suffix", "change", "reason"),
    [
        (LINEAR, UP, lambda up: up[:-1], r"delta has the shape \(31, 32\), the layer \(32, 32\)"),
        (LINEAR, DOWN, lambda down: down[:, :-1], r"delta has the shape \(32, 31\)"),
        (CONV, DOWN, lambda down: down[..., :1], r"delta has the shape \(32, 32, 3, 1\)"),
        (LINEAR, DOWN, lambda down: down[:-1], "no common rank"),
        (LINEAR, DOWN, lambda down: down[0], "no pair of factors"),
        (LINEAR, ALPHA, lambda alpha: alpha.repeat(2), r"alpha \(2,\) is not one number"),
    ],
)
def test_a_wrong_shape_is_named_and_the_rest_is_read(
    tmp_path, layers, layer_id, suffix, change, reason
):
    file = tmp_path / "style.safetensors"
    write(file, shifted(a_network(layers), layer_id, suffix, change), layers)
    network = read(file, layers)
    assert network.layers.keys() == set(CHANGED) - {layer_id}
    assert len(network.unmatched) == 3
    for left in network.unmatched:
        with pytest.raises(AssertionError, match=reason):
            raise AssertionError(left.reason)


def test_rank_0_is_refused(tmp_path, layers):
    tensors = a_network(layers)
    tensors[LINEAR] = {DOWN: torch.zeros(0, 32), UP: torch.zeros(32, 0)}
    file = tmp_path / "style.safetensors"
    write(file, tensors, layers)
    assert {left.reason for left in read(file, layers).unmatched} == {
        "lora_down.weight (0, 32) and lora_up.weight (32, 0) have no common rank"
    }


def test_dora_is_not_read_as_plain_lora(tmp_path, layers):
    tensors = a_network(layers)
    tensors[LINEAR]["dora_scale"] = torch.ones(32, 1)
    tensors[CONV]["dora_scale"] = torch.ones(31, 1)
    file = tmp_path / "style.safetensors"
    write(file, tensors, layers)
    network = read(file, layers)
    assert network.layers[LINEAR].type.id == "dora-lora"
    assert CONV not in network.layers
    assert {left.reason for left in network.unmatched} == {
        "dora_scale (31, 1) is neither one number per row nor one per column of the layer (32, 32, 3, 3)"
    }


def test_a_linear_pair_on_a_1x1_convolution_fits(tmp_path, layers):
    tensors = a_network(layers)
    flat = {
        suffix: part.flatten(1) if part.dim() else part
        for suffix, part in tensors[POINTWISE].items()
    }
    file = tmp_path / "style.safetensors"
    write(file, tensors | {POINTWISE: flat}, layers)
    network = read(file, layers)
    assert network.unmatched == ()
    expected = delta(tensors[POINTWISE])
    torch.testing.assert_close(delta_read(network, layers, POINTWISE), expected)


def test_a_file_without_a_match_is_an_error_that_names_the_first_reason(tmp_path, layers):
    file = tmp_path / "style.safetensors"
    write_tensors(file, {"lora_unet_nowhere.lora_down.weight": torch.zeros(1)}, {})
    with pytest.raises(UnmatchedError, match=r"style\.safetensors.*lora_unet_nowhere.*no layer"):
        read(file, layers)
    write_tensors(file, {}, {})
    with pytest.raises(UnmatchedError, match="no tensor"):
        read(file, layers)


def test_a_network_of_another_family_is_refused_even_where_layers_fit(tmp_path, layers):
    file = tmp_path / "style.safetensors"
    write(file, a_network(layers), layers)
    with TensorReader(file) as reader:
        tensors = {key: reader.read(key) for key in reader.header.tensors}
    tensors["lora_te2_text_model_encoder_layers_0_mlp_fc1.alpha"] = torch.tensor(1.0)
    write_tensors(file, tensors, {})
    with pytest.raises(UnmatchedError, match="made for Stable Diffusion XL"):
        read(file, layers)


def test_alphas_that_cannot_be_read_are_an_error(tmp_path, layers):
    file = tmp_path / "style.safetensors"
    write(file, a_network(layers), layers, "diffusers")
    with TensorReader(file) as reader:
        tensors = {key: reader.read(key) for key in reader.header.tensors}
    write_tensors(file, tensors, {"lora_adapter_metadata": "{"})
    with pytest.raises(FileFormatError, match="lora_adapter_metadata"):
        read(file, layers)


def test_what_metadata_told_of_the_tensors_before_is_not_kept(tmp_path, layers):
    file = tmp_path / "style.safetensors"
    told = {"lora_adapter_metadata": "{}", "sshs_legacy_hash": "0", "ss_seed": "7"}
    write(file, a_network(layers), layers, metadata=told)
    metadata = read_header(file).metadata
    assert metadata.keys() == {"ss_seed", "sshs_model_hash", "modelspec.hash_sha256"}


@pytest.mark.parametrize("dialect", FILES)
def test_equal_networks_give_equal_bytes_and_true_hashes(tmp_path, layers, dialect):
    files = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    tensors = a_network(layers, "mixed")
    write(files[0], tensors, layers, dialect, metadata={"a": "1", "b": "2"})
    write(files[1], dict(reversed(tensors.items())), layers, dialect, metadata={"b": "2", "a": "1"})
    assert files[0].read_bytes() == files[1].read_bytes()
    metadata = read_header(files[0]).metadata
    assert metadata["sshs_model_hash"] == sshs_model_hash(files[0])
    assert metadata["modelspec.hash_sha256"] == f"0x{sshs_model_hash(files[0])}"


def test_what_cannot_be_written_is_refused(tmp_path, layers):
    file = tmp_path / "style.safetensors"
    tensors = a_network(layers)
    with pytest.raises(UsageError, match="kohya"):
        write(file, tensors, layers, "koyha")
    with pytest.raises(UnmatchedError, match=r"unet\.conv_in"):
        write(file, {"unet.conv_im": tensors[CONV]}, layers)
    tensors[LINEAR] = {"diff": torch.zeros(32, 32)}
    with pytest.raises(UsageError, match=rf"{LINEAR} has diff"):
        write(file, tensors, layers, "diffusers")
    assert not file.exists()


def kohyas_oft(layers, bound):
    draw = torch.Generator().manual_seed(6)
    rows = layers[LINEAR].shape[0]
    blocks = torch.randn(rows // 4, 4, 4, generator=draw)
    return {LINEAR: {"oft_blocks": blocks, "constraint": torch.tensor(bound)}}


@pytest.mark.parametrize("dialect", ["kohya", "kohya-sgm", "comfy", "onetrainer"])
@pytest.mark.parametrize("bound", [0.0, 0.02])
def test_the_bound_of_kohyas_oft_keeps_its_meaning(tmp_path, layers, dialect, bound):
    """kohya's trainer names it `alpha` under "oft_"; LyCORIS' `alpha` is the same bound but for 0, which is none."""
    file, tensors = tmp_path / "oft.safetensors", kohyas_oft(layers, bound)
    if not bound and not dialect.startswith("kohya"):
        with pytest.raises(UsageError, match=rf"{LINEAR} is bound to 0.*kohya"):
            write_network(file, tensors, layers, SD1.components, dialect)
        return
    write_network(file, tensors, layers, SD1.components, dialect)
    names = {key.rpartition(".")[::2] for key in read_header(file).tensors}
    assert {suffix for _, suffix in names} == {"oft_blocks", "alpha"}
    ((name, _), _) = names
    assert name.startswith("oft_unet_") == dialect.startswith("kohya")
    base = torch.randn(layers[LINEAR].shape, generator=torch.Generator().manual_seed(7))
    network = read_network(file, layers, SD1.components)
    assert network.unmatched == ()
    found = compose(base, [(network.layers[LINEAR], 1.0)]).weight
    right = compose(base, [(LayerNetwork(OFT, tensors[LINEAR]), 1.0)]).weight
    assert torch.equal(found, right)
    # The control: without its bound it turns the weight more.
    free = compose(
        base, [(LayerNetwork(OFT, {**tensors[LINEAR], "constraint": torch.tensor(9.0)}), 1.0)]
    )
    assert float((free.weight - right).abs().max()) > 0.1
