"""A small training of each family and objective, from the configuration to the file: it learns, it fits, it tells what it is."""

import json
import math
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from PIL import Image, ImageDraw

from lib_lora.apply.session import LoadedNetwork, Session
from lib_lora.cli.main import main
from lib_lora.errors import UsageError
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.header import read_header
from lib_lora.formats.network_file import read_network
from lib_lora.jobs.client import Run
from lib_lora.merge.bake import bake
from lib_lora.merge.plan import LoraChoice, plan_merge
from lib_lora.schedule.clock import Clock
from lib_lora.schedule.grammar import parse_prompt
from lib_lora.train.base_model import live_modules
from lib_lora.train.config import TrainConfig
from lib_lora.train.loop import Loop
from lib_lora.train.objective import validation_draws
from lib_lora.train.prepare import prepare
from lib_lora.train.training import train
from tests.train import families
from tests.train.test_training import Noter

STEPS, DRAWS = 6, 4
SIZES = ((64, 64), (120, 64), (64, 100), (90, 90))
CPU = torch.device("cpu")

# The case, its family, what else is asked for, and what the file says of itself.
CASES = {
    "sd1 v": (
        "sd1",
        {"model": {"prediction": "v"}},
        {"ss_base_model_version": "sd_v1", "modelspec.prediction_type": "v"},
    ),
    "sd2 v": (
        "sd2",
        {"loss": {"zero_terminal_snr": True}},
        {
            "ss_base_model_version": "sd_v2_v",
            "ss_v2": "True",
            "modelspec.architecture": "stable-diffusion-v2-768-v/lora",
            "modelspec.prediction_type": "v",
        },
    ),
    "sd2": (
        "sd2",
        {"model": {"prediction": "epsilon"}},
        {
            "ss_base_model_version": "sd_v2",
            "ss_v2": "True",
            "modelspec.architecture": "stable-diffusion-v2-512/lora",
            "modelspec.prediction_type": "epsilon",
        },
    ),
    "sdxl": (
        "sdxl",
        {"network": {"conv_rank": 4}, "optimizer": {"unet_rate": 8e-3}},
        {
            "ss_base_model_version": "sdxl_base_v1-0",
            "ss_v2": "False",
            "modelspec.architecture": "stable-diffusion-xl-v1-base/lora",
        },
    ),
    "sd3": (
        "sd3",
        {"saving": {"dialect": "kohya"}},
        {
            "ss_base_model_version": "sd3",
            "modelspec.architecture": "stable-diffusion-v3-medium/lora",
        },
    ),
}
# Names that kohya's trainer gives to layers of the family.
NAMES = {
    "sd1": (
        "lora_te_text_model_encoder_layers_0_mlp_fc1",
        "lora_unet_mid_block_attentions_0_proj_in",
    ),
    "sd2": (
        "lora_te_text_model_encoder_layers_2_self_attn_q_proj",
        "lora_unet_up_blocks_1_attentions_0_proj_out",
    ),
    "sdxl": (
        "lora_te1_text_model_encoder_layers_0_mlp_fc1",
        "lora_te2_text_model_encoder_layers_1_self_attn_v_proj",
        "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q",
    ),
    "sd3": (
        "lora_te1_text_model_encoder_layers_0_mlp_fc1",
        "lora_te2_text_model_encoder_layers_1_self_attn_v_proj",
        "lora_unet_joint_blocks_0_x_block_mlp_fc1",
    ),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return {name: families.checkpoint(folder, name) for name in families.KINDS}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Pictures of different shapes, which go to three buckets."""
    folder = tmp_path_factory.mktemp("pictures")
    for number, (size, colour) in enumerate(
        zip(SIZES, ("red", "blue", "gold", "navy"), strict=True)
    ):
        image = Image.new("RGB", size, colour)
        ImageDraw.Draw(image).ellipse([8, 8, 40, 50], "white")
        image.save(folder / f"{number}.png")
        if number % 2:
            (folder / f"{number}.txt").write_text(f"a circle, number {number}", "utf-8")
    return folder


def asked(base, pictures, out, **sections):
    raw = {
        "model": {"base": str(base)},
        "data": {"folder": str(pictures), "size": 64, "bucket_step": 16, "caption_dropout": 0.2},
        "network": {"rank": 4, "alpha": 4.0, "text_encoder": True},
        "schedule": {"steps": STEPS, "batch": 2, "decay": "constant"},
        "optimizer": {"unet_rate": 5e-3, "text_encoder_rate": 1e-3},
        "loss": {"validation_draws": DRAWS},
        "saving": {"out": str(out), "dtype": "fp32"},
        "run": {"threads": 1, "device": "cpu"},
    }
    for section, values in sections.items():
        raw[section] = {**raw.get(section, {}), **values}
    return TrainConfig.from_dict(raw)


@dataclass(frozen=True)
class Trained:
    """A finished training: the case, its configuration, the loss of each step and of each validation."""

    case: str
    config: TrainConfig
    losses: list
    validations: dict


def in_this_process(config, folder):
    watcher = Noter()
    result = train(config, folder, None, watcher)
    assert result.ending == "done"
    return [loss for _, _, loss, _, _ in watcher.steps], result.validations


def in_a_worker(config, folder):
    """Train by the command line, and read the events of the run."""
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(config.to_dict()))
    assert main(["train", str(file), "--runs", str(folder / "runs")]) == 0
    (run,) = (folder / "runs").glob("*train*")
    events = [(event.kind, event.data) for event in Run(run).events()]
    losses = [data["loss"] for kind, data in events if kind == "step"]
    return losses, {data["step"]: data["loss"] for kind, data in events if kind == "validation"}


@pytest.fixture(scope="module", params=CASES)
def trained(request, bases, pictures, tmp_path_factory, kennel):
    """Each case trained once; one of them by a worker, as the command line and the page do it."""
    name, sections, _ = CASES[request.param]
    folder = tmp_path_factory.mktemp("run")
    config = asked(bases[name], pictures, folder / "lora.safetensors", **sections)
    run = in_a_worker if request.param == "sdxl" else in_this_process
    with kennel.launches():
        return Trained(request.param, config, *run(config, folder / "run"))


def validated(config, checkpoint, network=None):
    """Return the validation loss of the base in a file, with a network of a file applied live."""
    prepared = prepare(config, checkpoint, CPU, Noter())
    material = prepared.material
    shapes = [latent.shape for latent in material.latents]
    parts = validation_draws(config.run.seed, DRAWS, shapes, material.objective)

    @torch.no_grad()
    def loss():
        return sum(float(material.loss(part)) * len(part.rows) for part in parts) / DRAWS

    if network is None:
        return loss()
    (use,) = parse_prompt("<lora:x:1>").uses
    denoiser = checkpoint.family.denoiser.component
    with Session([(use, LoadedNetwork("x", dict(network.layers)))]) as session:
        session.open(live_modules(prepared.modules, checkpoint.layers))
        session.begin_pass(Clock.from_sigmas([2.0, 1.0]))
        for name, module in prepared.modules.items():
            # Text encoders and denoiser are armed in turn, as a host does it.
            arm = partial(session.step, 2.0) if name == denoiser else session.encode
            module.register_forward_pre_hook(lambda *_, arm=arm: arm() and None)
        return loss()


def test_it_learns_and_its_file_fits_the_base_whole(trained):
    name, _, told = CASES[trained.case]
    out = trained.config.saving.out
    assert len(trained.losses) == STEPS
    assert all(map(math.isfinite, trained.losses))
    assert trained.validations[STEPS] < trained.validations[0]
    base = open_checkpoint(trained.config.model.base)
    file = read_network(out, base.layers, base.family.components)
    assert file.dialect in ("kohya", "kohya-sgm")
    assert file.unmatched == ()
    assert {id_.partition(".")[0] for id_ in file.layers} == {
        *("te1", "te2")[: 1 + (name in ("sdxl", "sd3"))],
        base.family.denoiser.component,
    }
    header = read_header(out)
    assert set(NAMES[name]) <= {key.partition(".")[0] for key in header.tensors}
    assert {key: header.metadata.get(key) for key in told} == told


@pytest.mark.parametrize("trained", ["sd2 v", "sdxl", "sd3"], indirect=True)
def test_the_same_loss_in_training_live_and_merged(trained, tmp_path):
    config = trained.config
    base = open_checkpoint(config.model.base)
    network = read_network(config.saving.out, base.layers, base.family.components)
    before, expected = trained.validations[0], trained.validations[STEPS]
    assert abs(before / expected - 1) > 1e-4
    assert validated(config, base, network) == pytest.approx(expected, rel=1e-5)
    merged = tmp_path / "merged.safetensors"
    bake(plan_merge(config.model.base, [LoraChoice(config.saving.out)]), merged)
    assert validated(config, open_checkpoint(merged)) == pytest.approx(expected, rel=1e-5)


def test_sdxl_tells_its_unet_the_sizes_of_the_pictures_of_a_batch(bases, pictures, tmp_path):
    """Targets are those of the buckets, not a square; all in pixels, not in latents."""
    config = asked(bases["sdxl"], pictures, tmp_path / "x.safetensors")
    prepared = prepare(config, open_checkpoint(config.model.base), CPU, Noter())
    heard = []
    unet = prepared.modules["unet"]
    unet.add_time_proj.register_forward_pre_hook(lambda module, args: heard.append(args[0]))
    loop = Loop(prepared.material, None, config)
    draws = [part for step in range(6) for part in loop.draws(step)]
    for part in draws:
        prepared.material.loss(part)
    for part, numbers in zip(draws, heard, strict=True):
        for row, told in zip(part.rows.tolist(), numbers.view(-1, 6).tolist(), strict=True):
            (width, height), target = SIZES[row], prepared.material.latents[row].shape[1:]
            assert told[:2] == [height, width]
            assert told[4:] == [8 * side for side in target]
    assert len({tuple(part.noise.shape) for part in draws}) > 1


def test_what_has_no_effect_or_is_not_possible_is_said(bases, pictures, tmp_path):
    out = tmp_path / "x.safetensors"
    watcher = Noter()
    config = asked(bases["sd3"], pictures, out, model={"clip_skip": 2})
    prepare(config, open_checkpoint(bases["sd3"]), CPU, watcher)
    notes = " ".join(watcher.notes)
    assert "Stable Diffusion 3, which predicts the way from the picture to the noise." in notes
    assert "Clip skip has no effect" in notes
    assert "Trained without the T5 text encoder" in notes
    step = asked(bases["sd3"], pictures, out, data={"bucket_step": 8})
    with pytest.raises(UsageError, match=r"data\.bucket_step must be divisible by 16"):
        prepare(step, open_checkpoint(bases["sd3"]), CPU, watcher)
    terminal = asked(bases["sd1"], pictures, out, loss={"zero_terminal_snr": True})
    with pytest.raises(UsageError, match="needs a model that predicts v"):
        prepare(terminal, open_checkpoint(bases["sd1"]), CPU, watcher)


def test_sd3_is_named_so_that_the_webui_reads_it(bases, pictures, tmp_path):
    """WebUI 1.10.1 takes a key apart at its last two dots, which kohya's ".alpha" has not (its issue 16317)."""
    config = asked(bases["sd3"], pictures, tmp_path / "x.safetensors", schedule={"steps": 1})
    assert train(config, tmp_path / "run", None, Noter()).ending == "done"
    keys = read_header(config.saving.out).tensors
    assert all(len(key.rsplit(".", 2)) == 3 for key in keys)
    assert "transformer.transformer_blocks.0.attn.to_q.lora_A.weight" in keys
    base = open_checkpoint(bases["sd3"])
    file = read_network(config.saving.out, base.layers, base.family.components)
    assert (file.dialect, file.unmatched) == ("diffusers", ())


def test_what_the_file_could_not_hold_is_refused_before_the_first_step(bases, pictures, tmp_path):
    """SD3's names are those of tensors that are several layers, of which LoRA alone can be joined."""
    config = asked(
        bases["sd3"],
        pictures,
        tmp_path / "x.safetensors",
        network={"type": "loha"},
        saving={"dialect": "kohya"},
    )
    watcher = Noter()
    with pytest.raises(UsageError, match="joins for LoRA only"):
        train(config, tmp_path / "run", None, watcher)
    assert "training" not in watcher.stages
