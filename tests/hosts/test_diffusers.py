"""The standalone host against diffusers and PEFT, which know nothing of this library."""

import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    EulerDiscreteScheduler,
    StableDiffusionPipeline,
)

from lib_lora.errors import UsageError
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.network_file import write_network
from lib_lora.host import GenerateRequest
from lib_lora.hosts.diffusers import DiffusersHost
from lib_lora.networks.lora import ALPHA, DOWN, UP
from tests.tiny import CONFIG, tiny_checkpoint, tiny_components

SCALE = 0.5
SIZE = 64
CONVOLUTIONS = (".conv1", ".conv_shortcut", ".conv")
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
SCHEDULERS = {
    "Euler": EulerDiscreteScheduler(**BETAS, timestep_spacing="linspace"),
    "DDIM": DDIMScheduler(**BETAS, steps_offset=1, set_alpha_to_one=False, clip_sample=False),
}
OFF = {"one": 0.0, "two": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a random base and two LoRAs, each in our kohya file and as a PEFT state."""
    folder = tmp_path_factory.mktemp("models")
    base = open_checkpoint(tiny_checkpoint(folder))
    for seed, name in enumerate(("one", "two")):
        tensors = random_lora(base, seed)
        write_network(folder / f"{name}.safetensors", tensors, base.layers, base.family.components)
        torch.save(peft_state(tensors), folder / f"{name}.pt")
    return folder


def random_lora(base, seed):
    """Return rank 4 and alpha 2 on every default layer and on convolutions, of a size that changes pictures clearly."""
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for id_, layer in base.layers.items():
        wanted = layer.path.endswith((*base.family.trained_by_default, *CONVOLUTIONS))
        if layer.component == "vae" or not wanted:
            continue
        out, *inputs = layer.shape
        up = torch.randn(out, 4, *(1 for _ in inputs[1:]), generator=draw)
        down = torch.randn(4, *inputs, generator=draw) / np.prod(inputs) ** 0.5
        tensors[id_] = {DOWN: down, UP: 0.3 * up, ALPHA: torch.tensor(4 * SCALE)}
    return tensors


def peft_state(tensors):
    """Return the state that diffusers hands to PEFT, with alpha / rank (a power of two) folded into the upper factor."""
    state = {}
    for id_, parts in tensors.items():
        component, path = id_.split(".", 1)
        prefix = {"unet": "unet", "te1": "text_encoder"}[component]
        name = f"{prefix}.{path.removeprefix('text_model.')}"
        state[f"{name}.lora_A.weight"] = parts[DOWN]
        state[f"{name}.lora_B.weight"] = parts[UP] * SCALE
    return state


@pytest.fixture(scope="module")
def host(folder):
    return DiffusersHost(folder / "tiny-0.safetensors", [folder], CONFIG)


@pytest.fixture(scope="module")
def reference(folder, host):
    """Return a pipeline made of the original modules, with both LoRAs as PEFT adapters."""
    modules = tiny_components()
    pipeline = StableDiffusionPipeline(
        vae=modules["vae"],
        text_encoder=modules["te1"],
        tokenizer=host._base.tokenizer,
        unet=modules["unet"],
        scheduler=SCHEDULERS["DDIM"],
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    for name in ("one", "two"):
        pipeline.load_lora_weights(torch.load(folder / f"{name}.pt"), adapter_name=name)
    return pipeline


def request(prompt, **changes):
    return GenerateRequest(
        **{"prompt": prompt, "steps": 5, "width": SIZE, "height": SIZE, "seed": 1, **changes}
    )


@pytest.fixture
def recorded(host):
    """Return the list that every evaluation of the host's UNet goes to: its arguments and its output."""
    calls = []

    def record(module, args, output):
        calls.append((args, output.sample))

    handle = host._base.denoiser.register_forward_hook(record)
    yield calls
    handle.remove()


def spread(tensor):
    return float(tensor.max() - tensor.min())


def distance(a, b):
    return float((a - b).abs().max()) / spread(b)


def pixels(image):
    return np.asarray(image).astype(np.float64)


def put_weights(pipeline, weights):
    pipeline.set_adapters(list(weights), list(weights.values()))


def evaluated(pipeline, args, weights):
    put_weights(pipeline, weights)
    return pipeline.unet(*args).sample


@torch.no_grad()
@pytest.mark.parametrize("sampler", ["Euler", "Heun"])
def test_every_evaluation_equals_peft_at_that_weight(host, reference, recorded, sampler):
    """Teacher-forced: PEFT gets the recorded input of each evaluation of a ramp and a switch."""
    prompt = "a red circle <lora:one:0@0,1@1> <lora:two:0.6:stop=2>"
    trace = host.generate(request(prompt, steps=4, sampler=sampler)).trace
    assert len(trace) == len(recorded) == (7 if sampler == "Heun" else 4)
    for evaluation, (args, output) in zip(trace, recorded, strict=True):
        # A ramp over four steps, and 0.6 at steps 0 and 1.
        weights = {"one": evaluation.step / 3, "two": 0.6 if evaluation.step < 2 else 0.0}
        assert evaluation.strengths == weights
        assert distance(output, evaluated(reference, args, weights)) <= 1e-5
    # The controls, at the last evaluation: weights off by 5 % are told apart, and no networks at all clearly.
    stronger = {name: 1.05 * weight for name, weight in weights.items()}
    assert distance(output, evaluated(reference, args, stronger)) > 1e-4
    assert distance(output, evaluated(reference, args, OFF)) > 1e-2


@torch.no_grad()
def test_text_encoders_run_at_their_own_strengths(host, reference, recorded):
    host.generate(request("a red circle <lora:one:0.4@0,1@1:0.7>"))
    contexts = [args[2][1:] for args, _ in recorded]
    # From 0.4 to 1 over five steps.
    for step, context in enumerate(contexts):
        expected = encoded(reference, host, {"one": 0.4 + 0.15 * step, "two": 0.0})
        assert distance(context, expected) <= 1e-5
    off = encoded(reference, host, {"one": 1.05, "two": 0.0})
    assert distance(contexts[-1], off) > 1e-4


def encoded(pipeline, host, weights):
    put_weights(pipeline, weights)
    ids = host._base.tokenizer("a red circle ", padding="max_length", return_tensors="pt").input_ids
    return pipeline.text_encoder(ids).last_hidden_state


def switched(pipeline, first, second, at, sampler):
    """Return the picture of a diffusers pipeline whose adapters change before step `at`."""

    def switch(pipe, step, time, tensors):
        if step == at - 1:
            put_weights(pipe, second)
        return tensors

    pipeline.scheduler = SCHEDULERS[sampler]
    put_weights(pipeline, OFF)
    positive, negative = pipeline.encode_prompt("a red circle ", "cpu", 1, True)
    put_weights(pipeline, first)
    noise = torch.randn(1, 4, SIZE // 8, SIZE // 8, generator=torch.Generator().manual_seed(1))
    return pipeline(
        prompt_embeds=positive,
        negative_prompt_embeds=negative,
        latents=noise,
        num_inference_steps=6,
        guidance_scale=7.0,
        callback_on_step_end=switch,
        height=SIZE,
        width=SIZE,
    ).images[0]


@torch.no_grad()
@pytest.mark.parametrize("sampler", list(SCHEDULERS))
def test_a_switch_at_a_step_draws_the_picture_of_set_adapters_in_a_callback(
    host, reference, sampler
):
    prompt = "a red circle <lora:one:0:0.8:stop=3><lora:two:0:0.5:start=3>"
    ours = pixels(host.generate(request(prompt, steps=6, sampler=sampler)).image)
    first, second = {**OFF, "one": 0.8}, {**OFF, "two": 0.5}
    theirs = pixels(switched(reference, first, second, 3, sampler))
    # In levels of 0..255; a twentieth of what is allowed, for a random model draws pale pictures.
    assert np.abs(ours - theirs).mean() <= 0.05
    # The controls: a switch one step later, weights off by 5 %, and no networks at all draw other pictures.
    later = pixels(switched(reference, first, second, 4, sampler))
    stronger = [{name: 1.05 * weight for name, weight in part.items()} for part in (first, second)]
    wrong = pixels(switched(reference, *stronger, 3, sampler))
    plain = pixels(switched(reference, OFF, OFF, 3, sampler))
    distances = [np.abs(ours - other).mean() for other in (later, wrong, plain)]
    assert min(distances) > 0.2, distances


def test_a_missing_lora_is_told_and_the_picture_is_still_made(host):
    plain = host.generate(request("a red circle "))
    missed = host.generate(request("a red circle <lora:onne:1>"))
    assert missed.notes == ("There is no LoRA 'onne'. Did you mean 'one'?",)
    assert missed.image == plain.image
    assert host.generate(request("a red circle <lora:one:1>")).image != plain.image


def test_bad_tags_damaged_files_and_long_prompts_are_told(folder, host):
    (folder / "torn.safetensors").write_bytes(b"not a network")
    prompt = "a red circle <lora:one:often=1><lora:torn:1>" + ", more words" * 40
    notes = host.generate(request(prompt, steps=1)).notes
    (folder / "torn.safetensors").unlink()
    tag, torn, cut = notes
    assert tag.startswith("<lora:one:often=1> is left out: column 24: expected one of te=")
    assert torn.startswith("The LoRA 'torn' is left out: ")
    assert cut.startswith("The text encoder reads 77 tokens; the last ")


def hooks(host):
    return sum(len(module._forward_hooks) for module in host.layers().values())


def test_an_exception_in_the_unet_leaves_no_trace(host):
    before = host.generate(request("a red circle")).image
    count = iter(range(100))

    def fail(module, args):
        if next(count) == 3:
            raise RuntimeError("out of memory")

    handle = host._base.denoiser.mid_block.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        host.generate(request("a red circle <lora:one:1>"))
    handle.remove()
    assert (hooks(host), host.busy()) == (0, False)
    assert host.generate(request("a red circle")).image == before


def test_the_weights_of_the_base_are_left_alone(host):
    before = {id_: layer.weight.clone() for id_, layer in host.layers().items()}
    host.generate(request("a red circle <lora:one:0@0,1@1>"))
    assert all(torch.equal(layer.weight, before[id_]) for id_, layer in host.layers().items())
    assert hooks(host) == 0


@pytest.mark.parametrize("sampler", ["Euler", "Euler a"])
def test_a_picture_does_not_depend_on_its_batch(host, sampler):
    tag = "<lora:one:0@0,1@1>"
    asked = [
        request(f"a red circle {tag}", sampler=sampler),
        request(f"a blue star {tag}", seed=2, negative="a square", sampler=sampler),
    ]
    together = host.generate_batch(asked)
    for alone, batched in zip(map(host.generate, asked), together, strict=True):
        assert np.abs(pixels(alone.image) - pixels(batched.image)).max() <= 1.0
    # The control: the two pictures are not alike.
    assert np.abs(pixels(together[0].image) - pixels(together[1].image)).mean() > 3.0


@pytest.mark.parametrize("other", [{"steps": 4}, {"guidance": 1.0}, {"prompt": "b <lora:two:1>"}])
def test_a_batch_of_unlike_requests_is_refused(host, other):
    with pytest.raises(UsageError, match="words and seed alone"):
        host.generate_batch(
            [request("a <lora:one:1>"), request(**{"prompt": "b <lora:one:1>", **other})]
        )


def test_sides_are_multiples_of_eight(host):
    with pytest.raises(UsageError, match="60x64"):
        host.generate(request("a", width=60))
    assert host.generate(request("a", width=128, steps=1)).image.size == (128, 64)


def test_the_host_tells_what_it_has(folder, host, tmp_path):
    assert host.info().name == "diffusers"
    assert host.native_size == SIZE
    assert host.checkpoints()[0].file == folder / "tiny-0.safetensors"
    assert [file.stem for file in host.networks()] == ["one", "tiny-0", "two"]
    assert host.layers()["unet.conv_in"] is host._base.denoiser.conv_in
    assert len(host.layers()) == len(open_checkpoint(folder / "tiny-0.safetensors").layers)


def test_a_network_made_during_the_session_can_be_named(folder, host, tmp_path):
    new = tmp_path / "new.safetensors"
    new.write_bytes((folder / "one.safetensors").read_bytes())
    asked = request("a red circle <lora:new:1>", steps=2)
    assert "no LoRA 'new'" in host.generate(asked).notes[0]
    host.add_network(new)
    drawn = host.generate(asked)
    assert drawn.notes == ()
    assert drawn.image == host.generate(request("a red circle <lora:one:1>", steps=2)).image


def test_the_device_can_be_taken_away_and_given_back(host):
    before = host.generate(request("a red circle", steps=2)).image
    host.release_gpu()
    host.restore_gpu()
    host.restore_gpu()
    assert host.generate(request("a red circle", steps=2)).image == before


@torch.no_grad()
def test_the_negative_prompt_has_a_strength_of_its_own(host, reference, recorded):
    prompt = "a red circle <lora:one:te=0:unet=0@0,1@1:neg=0.3>"
    host.generate_batch([request(prompt, steps=3), request(f"{prompt} on sand", steps=3, seed=2)])
    for step, (args, output) in enumerate(recorded):
        positive, negative = (
            evaluated(reference, args, {"one": strength, "two": 0.0})
            for strength in (step / 2, 0.3)
        )
        assert distance(output, torch.cat([negative[:2], positive[2:]])) <= 1e-5
        assert distance(output, positive) > 1e-2
