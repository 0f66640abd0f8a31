"""Networks on a tensor that is several of our layers: cut for reading, joined for writing, nothing lost either way."""

import pytest
import torch

from lib_lora.errors import UnmatchedError, UsageError
from lib_lora.families.sd3 import SD3
from lib_lora.families.table import Part
from lib_lora.formats.fused import cut, joined
from lib_lora.formats.network_file import read_network, write_network
from lib_lora.formats.stream import write_tensors
from lib_lora.networks.compose import compose
from lib_lora.networks.contract import ALPHA
from lib_lora.networks.lora import DOWN, UP
from tests.families.recorded import small

LAYERS = SD3.layers(small("sd3-medium"))
BLOCK = "transformer.transformer_blocks"
QKV = tuple(f"{BLOCK}.0.attn.to_{part}" for part in "qkv")
WIDTH = LAYERS[QKV[0]].shape[0]
FUSED = "lora_unet_joint_blocks_0_x_block_attn_qkv"
LAST = f"{BLOCK}.1.norm1_context.linear"
RANK, SCALE = 2, 0.75


def draw(*shape, seed=0):
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64
    )


def read(tmp_path, tensors):
    file = tmp_path / "style.safetensors"
    write_tensors(file, tensors, {})
    return read_network(file, LAYERS, SD3.components)


def delta(network, layer_id):
    base = torch.zeros(LAYERS[layer_id].shape, dtype=torch.float64)
    return compose(base, [(network.layers[layer_id], 1.0)]).weight


def trained_as_one(rank=RANK):
    return {
        DOWN: draw(rank, WIDTH),
        UP: draw(3 * WIDTH, rank, seed=1),
        ALPHA: torch.tensor(SCALE * rank, dtype=torch.float64),
    }


def trained_apart():
    """Return three networks, and the one tensor per suffix in which kohya's `split_qkv` saves them: alpha is that of one."""
    three = [
        {
            DOWN: draw(RANK, WIDTH, seed=10 * n),
            UP: draw(WIDTH, RANK, seed=10 * n + 1),
            ALPHA: torch.tensor(SCALE * RANK, dtype=torch.float64),
        }
        for n in range(3)
    ]
    up = torch.zeros(3 * WIDTH, 3 * RANK, dtype=torch.float64)
    for n, part in enumerate(three):
        up[n * WIDTH : (n + 1) * WIDTH, n * RANK : (n + 1) * RANK] = part[UP]
    saved = {DOWN: torch.cat([part[DOWN] for part in three]), UP: up, ALPHA: three[0][ALPHA]}
    return three, saved


def product(tensors):
    return float(tensors[ALPHA]) / len(tensors[DOWN]) * tensors[UP] @ tensors[DOWN]


def named(name, tensors):
    return {f"{name}.{suffix}": tensor for suffix, tensor in tensors.items()}


@pytest.mark.parametrize("name", [FUSED, "diffusion_model.joint_blocks.0.x_block.attn.qkv"])
@pytest.mark.parametrize("rank", [2, 3])
def test_each_layer_gets_its_rows(tmp_path, name, rank):
    tensors = trained_as_one(rank)
    network = read(tmp_path, named(name, tensors))
    assert (network.layers.keys(), network.unmatched) == (set(QKV), ())
    for n, layer_id in enumerate(QKV):
        rows = product(tensors)[n * WIDTH : (n + 1) * WIDTH]
        torch.testing.assert_close(delta(network, layer_id), rows)
        assert not torch.allclose(delta(network, layer_id), 1.05 * rows)


def test_three_pairs_saved_as_one_have_their_trained_strength(tmp_path):
    three, saved = trained_apart()
    network = read(tmp_path, named(FUSED, saved))
    for layer_id, part in zip(QKV, three, strict=True):
        torch.testing.assert_close(delta(network, layer_id), product(part))
        assert len(network.layers[layer_id].tensors[DOWN]) == RANK


def test_one_number_beside_the_zeros_makes_it_an_ordinary_network(tmp_path):
    _, saved = trained_apart()
    saved[UP][0, -1] = 1e-30
    network = read(tmp_path, named(FUSED, saved))
    for n, layer_id in enumerate(QKV):
        torch.testing.assert_close(
            delta(network, layer_id), product(saved)[n * WIDTH : (n + 1) * WIDTH]
        )


def test_under_another_dialects_name_the_zeros_leave_the_strength_alone(tmp_path):
    _, saved = trained_apart()
    network = read(tmp_path, named("diffusion_model.joint_blocks.0.x_block.attn.qkv", saved))
    torch.testing.assert_close(delta(network, QKV[1]), product(saved)[WIDTH : 2 * WIDTH])
    file = tmp_path / "kohya.safetensors"
    write_network(
        *(file, {id: layer.tensors for id, layer in network.layers.items()}, LAYERS),
        *(SD3.components, "kohya"),
    )
    again = read_network(file, LAYERS, SD3.components)
    torch.testing.assert_close(delta(again, QKV[1]), delta(network, QKV[1]))


@pytest.mark.parametrize(
    "tensors",
    [
        {
            "hada_w1_a": draw(3 * WIDTH, 2),
            "hada_w1_b": draw(2, WIDTH),
            "hada_w2_a": draw(3 * WIDTH, 2, seed=3),
            "hada_w2_b": draw(2, WIDTH, seed=3),
        },
        {"lokr_w1": draw(6, 4), "lokr_w2": draw(WIDTH // 2, WIDTH // 4)},
        {"diff": draw(3 * WIDTH, WIDTH)},
    ],
    ids=["loha", "lokr", "full"],
)
def test_other_types_are_cut_along_their_outputs(tensors):
    whole = formula(tensors)
    assert whole.shape == (3 * WIDTH, WIDTH)
    for n in range(3):
        part = {suffix: cut(suffix, tensor, Part(n, 3)) for suffix, tensor in tensors.items()}
        torch.testing.assert_close(formula(part), whole[n * WIDTH : (n + 1) * WIDTH])


def formula(tensors):
    """Return the delta by the definitions of LoHa, LoKr and the full matrix."""
    if "lokr_w1" in tensors:
        return torch.kron(tensors["lokr_w1"], tensors["lokr_w2"])
    if "diff" in tensors:
        return tensors["diff"]
    return (tensors["hada_w1_a"] @ tensors["hada_w1_b"]) * (
        tensors["hada_w2_a"] @ tensors["hada_w2_b"]
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.float8_e4m3fn])
def test_a_lokr_whose_rows_belong_to_two_layers_is_multiplied_out(tmp_path, dtype):
    factors = {"lokr_w1": draw(4, 4), "lokr_w2": draw(3 * WIDTH // 4, WIDTH // 4)}
    factors = {suffix: tensor.to(dtype) for suffix, tensor in factors.items()}
    network = read(tmp_path, named(FUSED, factors))
    assert network.unmatched == ()
    whole = formula({suffix: tensor.double() for suffix, tensor in factors.items()})
    for n, layer_id in enumerate(QKV):
        rows = whole[n * WIDTH : (n + 1) * WIDTH]
        torch.testing.assert_close(delta(network, layer_id), rows, rtol=1e-6, atol=1e-6)
        assert not torch.allclose(delta(network, layer_id), 1.05 * rows)


def test_what_cannot_be_divided_is_named_once(tmp_path):
    with pytest.raises(UnmatchedError, match=r"1 tensors.*oft_blocks.*cannot be divided"):
        read(tmp_path, {f"{FUSED}.oft_blocks": torch.zeros(4, 12, 12)})


def test_exchanged_halves_are_put_right(tmp_path):
    rows = LAYERS[LAST].shape[0]
    tensors = {DOWN: draw(RANK, WIDTH), UP: draw(rows, RANK), ALPHA: torch.tensor(2.0)}
    original = read(
        tmp_path, named("lora_unet_joint_blocks_1_context_block_adaLN_modulation_1", tensors)
    )
    first, second = product(tensors).chunk(2)
    torch.testing.assert_close(delta(original, LAST), torch.cat([second, first]))
    ours = read(tmp_path, named("transformer.transformer_blocks.1.norm1_context.linear", tensors))
    torch.testing.assert_close(delta(ours, LAST), product(tensors))


WRITTEN = {
    "shared down": {
        layer_id: {**trained_as_one(), UP: draw(WIDTH, RANK, seed=n)}
        for n, layer_id in enumerate(QKV)
    },
    "shared down, zeros beside the diagonal": {
        layer_id: {
            **trained_as_one(3),
            UP: torch.cat([torch.zeros(WIDTH, n), draw(WIDTH, 1), torch.zeros(WIDTH, 2 - n)], 1),
        }
        for n, layer_id in enumerate(QKV)
    },
    "apart": dict(zip(QKV, trained_apart()[0], strict=True)),
    "one alone": {QKV[1]: trained_apart()[0][1]},
    "without alpha": {
        layer_id: {DOWN: part[DOWN], UP: part[UP]}
        for layer_id, part in zip(QKV, trained_apart()[0], strict=True)
    },
    "halves": {LAST: {DOWN: draw(RANK, WIDTH), UP: draw(LAYERS[LAST].shape[0], RANK)}},
}


@pytest.mark.parametrize("case", WRITTEN)
@pytest.mark.parametrize("dialect", ["kohya", "comfy", "diffusers", "onetrainer"])
def test_what_is_written_joined_is_read_apart(tmp_path, dialect, case):
    file = tmp_path / "style.safetensors"
    write_network(file, WRITTEN[case], LAYERS, SD3.components, dialect)
    network = read_network(file, LAYERS, SD3.components)
    assert network.unmatched == ()
    for layer_id in network.layers:
        expected = torch.zeros_like(delta(network, layer_id))
        if layer_id in WRITTEN[case]:
            tensors = WRITTEN[case][layer_id]
            expected = product({ALPHA: len(tensors[DOWN]), **tensors})
        torch.testing.assert_close(delta(network, layer_id), expected, rtol=1e-12, atol=1e-12)
    assert network.layers.keys() >= WRITTEN[case].keys()


@pytest.mark.parametrize("dialect", ["kohya", "comfy"])
def test_what_cannot_be_joined_is_refused_by_name(tmp_path, dialect):
    file = tmp_path / "style.safetensors"
    other_rank = dict(WRITTEN["apart"])
    other_rank[QKV[1]] = {DOWN: draw(4, WIDTH), UP: draw(WIDTH, 4)}
    full = {QKV[0]: {"diff": draw(WIDTH, WIDTH)}}
    for tensors, reason in ((other_rank, "same rank and alpha"), (full, "for LoRA only")):
        with pytest.raises(UsageError, match=rf"joint_blocks\.0\.x_block\.attn\.qkv.*{reason}"):
            write_network(file, tensors, LAYERS, SD3.components, dialect)
    assert not file.exists()


def test_the_alpha_is_that_of_one_where_kohya_has_it_so():
    parts = trained_apart()[0]
    ours, kohyas = (joined("x", parts, alpha_of_one=one) for one in (False, True))
    assert float(ours[ALPHA]) == 3 * float(kohyas[ALPHA]) == 3 * SCALE * RANK
