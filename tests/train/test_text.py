"""What denoisers are told of captions, against what diffusers' pipelines tell them, for the same random models."""

import copy

import diffusers
import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, PreTrainedTokenizerFast

from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.train.base_model import load_base_model
from lib_lora.train.buckets import Buckets
from lib_lora.train.denoise import context_width, size_numbers
from lib_lora.train.precision import DTYPES
from lib_lora.train.prepare import read_captions
from lib_lora.train.text import encode, encode_all, put_together, tokenize
from tests.train import families
from tests.train.asked import asked_config

TEXTS = ["a circle, number 1", "a fox", "", "a " * 100]
WITHOUT_CHECKER = {
    "safety_checker": None,
    "feature_extractor": None,
    "requires_safety_checker": False,
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """The random model of each family in memory; SD3 with T5 and without."""
    folder = tmp_path_factory.mktemp("text")
    families.t5_tokenizer(folder)
    families.write_configs(folder, "sd3")
    files = {name: families.checkpoint(folder, name) for name in families.KINDS}
    found = {name: load_base_model(open_checkpoint(file)) for name, file in files.items()}
    found["sd3 with t5"] = load_base_model(open_checkpoint(files["sd3"]), folder)
    return found, folder


def told(base, texts, clip_skip=1, most=1):
    """Return what our code tells of texts."""
    family, captions = base.checkpoint.family, tokenize(base, texts, most)
    parts = captions.parts_of(captions.rows)
    said = {}
    for each in family.text_encoders:
        if each.component in captions.ids:
            module = base.text_encoders[each.component]
            found = encode_all(module, each, captions, clip_skip)
            said[each.component] = found.rows(parts.flatten()).joined(parts.shape[1])
    return put_together(family, said, context_width(base.denoiser))


def plain_pipeline(base, padding):
    return diffusers.StableDiffusionPipeline(
        vae=base.vae,
        text_encoder=base.text_encoders["te1"],
        tokenizer=families.clip_tokenizer(padding),
        unet=base.denoiser,
        scheduler=DDIMScheduler(),
        **WITHOUT_CHECKER,
    )


@pytest.mark.parametrize(("name", "padding"), [("sd1", "<|endoftext|>"), ("sd2", "!")])
def test_sd1_and_sd2_read_the_last_layer_normalised(bases, name, padding):
    base = bases[0][name]
    expected, _ = plain_pipeline(base, padding).encode_prompt(TEXTS, "cpu", 1, False)
    found = told(base, TEXTS)
    torch.testing.assert_close(found.tokens, expected, rtol=1e-4, atol=1e-5)
    assert found.pooled is None
    other = {"<|endoftext|>": "!", "!": "<|endoftext|>"}[padding]
    wrong, _ = plain_pipeline(base, other).encode_prompt(TEXTS, "cpu", 1, False)
    assert float((found.tokens - wrong).abs().max()) > 1e-2


def test_clip_skip_is_the_webuis_and_moves_sd1_alone(bases):
    """Clip skip 2 is diffusers' clip_skip=1: one layer is skipped, the final normalisation is not."""
    sd1, sd2 = bases[0]["sd1"], bases[0]["sd2"]
    layer = sd1.text_encoders["te1"](
        tokenize(sd1, TEXTS).ids["te1"], output_hidden_states=True
    ).hidden_states[-2]
    norm = getattr(
        sd1.text_encoders["te1"], "text_model", sd1.text_encoders["te1"]
    ).final_layer_norm
    found = told(sd1, TEXTS, clip_skip=2).tokens
    torch.testing.assert_close(found, norm(layer)[1:], rtol=1e-4, atol=1e-5)
    assert float((found - told(sd1, TEXTS).tokens).abs().max()) > 1e-2
    assert torch.equal(told(sd2, TEXTS, clip_skip=2).tokens, told(sd2, TEXTS).tokens)


def sdxl_pipeline(base):
    return diffusers.StableDiffusionXLPipeline(
        vae=base.vae,
        text_encoder=base.text_encoders["te1"],
        text_encoder_2=base.text_encoders["te2"],
        tokenizer=families.clip_tokenizer(),
        tokenizer_2=families.clip_tokenizer("!"),
        unet=base.denoiser,
        scheduler=DDIMScheduler(),
    )


def test_sdxl_reads_penultimate_layers_and_the_projected_text(bases):
    base = bases[0]["sdxl"]
    pipeline = sdxl_pipeline(base)
    tokens, dropped, pooled, dropped_pooled = pipeline.encode_prompt(TEXTS, device="cpu")
    found = told(base, TEXTS)
    torch.testing.assert_close(found.tokens, tokens, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.pooled, pooled, rtol=1e-4, atol=1e-5)
    # A sample without its caption is told what a picture without a negative prompt is.
    zeroed = found.zeroed(torch.ones(len(TEXTS), dtype=torch.bool))
    assert torch.equal(zeroed.tokens, dropped)
    assert torch.equal(zeroed.pooled, dropped_pooled)
    ids = tokenize(base, TEXTS).ids["te1"][1:]
    last = base.text_encoders["te1"](ids).last_hidden_state
    assert float((found.tokens[..., :32] - last).abs().max()) > 0.1


def test_sdxl_is_told_sizes_in_pixels(bases):
    base = bases[0]["sdxl"]
    fit = Buckets(64, 16).fit(100, 70)
    pipeline = diffusers.StableDiffusionXLPipeline(
        vae=base.vae,
        text_encoder=None,
        text_encoder_2=None,
        tokenizer=None,
        tokenizer_2=None,
        unet=base.denoiser,
        scheduler=DDIMScheduler(),
    )
    # 100 x 70 covers 80 x 48 scaled by 0.8: 80 x 56, eight rows of which are cut, four above.
    expected = pipeline._get_add_time_ids((70, 100), (4, 0), (48, 80), torch.float32, 40)
    assert size_numbers(fit) == expected[0].tolist() == [70, 100, 4, 0, 48, 80]


def sd3_pipeline(base, folder):
    """Return a pipeline whose CLIP-L has the identity for a projection, as diffusers gives it."""
    first = base.text_encoders["te1"]
    projected = CLIPTextModelWithProjection(CLIPTextConfig(**first.config.to_dict()))
    state = {
        f"text_model.{key.removeprefix('text_model.')}": t for key, t in first.state_dict().items()
    }
    projected.load_state_dict(state | {"text_projection.weight": torch.eye(32)}, strict=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder / "tokenizer_3"))
    tokenizer.pad_token = "<pad>"
    return diffusers.StableDiffusion3Pipeline(
        transformer=base.denoiser,
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=base.vae,
        text_encoder=projected.eval(),
        tokenizer=families.clip_tokenizer(),
        text_encoder_2=base.text_encoders["te2"],
        tokenizer_2=families.clip_tokenizer("!"),
        text_encoder_3=base.text_encoders.get("te3"),
        tokenizer_3=tokenizer,
    )


@pytest.mark.parametrize("name", ["sd3", "sd3 with t5"])
def test_sd3_reads_77_rows_of_both_clips_and_then_77_of_t5(bases, name):
    found_bases, folder = bases
    base = found_bases[name]
    pipeline = sd3_pipeline(base, folder)
    tokens, _, pooled, _ = pipeline.encode_prompt(
        TEXTS, TEXTS, TEXTS, device="cpu", do_classifier_free_guidance=False, max_sequence_length=77
    )
    found = told(base, TEXTS)
    assert found.tokens.shape == (4, 77 + 77, 128)
    torch.testing.assert_close(found.tokens, tokens, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.pooled, pooled, rtol=1e-4, atol=1e-5)
    t5 = found.tokens[:, 77:]
    assert bool(t5.any()) == ("te3" in base.text_encoders)


def test_captions_that_are_too_long_are_told_and_keep_their_end(bases):
    base = bases[0]["sdxl"]
    captions = tokenize(base, TEXTS)
    assert captions.cut == (TEXTS[3],)
    assert {tuple(ids.shape) for ids in captions.ids.values()} == {(5, 77)}
    assert captions.ids["te1"][4, -1] == families.END
    assert captions.rows.tolist() == [1, 2, 3, 4]


CUTS = {
    "a " * 100: [75, 25],
    "red fox, " * 30: [75, 15],  # the seventy-fifth is a comma
    "red , fox " * 40: [74, 46],
    "a " * 60 + ", " + "b " * 30: [61, 30],
    "a " * 50 + ", " + "b " * 40: [75, 16],  # the comma is too far back
    "a " * 75 + ", b": [75, 2],  # a comma that begins a part
    ", " * 160: [75, 75, 10],
}


@pytest.mark.parametrize("text", CUTS)
def test_long_captions_are_cut_where_the_webui_cuts(bases, text):
    """The lengths are those that tokenize_line of v1.10.1 gives with its settings as they come."""
    captions = tokenize(bases[0]["sd1"], [text], most=3)
    ids = [row[1 : row.tolist().index(families.END)] for row in captions.ids["te1"][1:]]
    assert [len(each) for each in ids] == CUTS[text]
    assert captions.cut == ()
    assert tokenize(bases[0]["sd1"], [text]).cut == (text,)


FIRST, SECOND = "a " * 60 + ",", "b " * 30
LONG = f"{FIRST} {SECOND}"


def parts_by_pipeline(pipeline, texts, **how):
    """Return what diffusers says of each text as a prompt of its own, side by side in tokens, and the first's pooled output."""
    said = [pipeline.encode_prompt(text, device="cpu", **how) for text in texts]
    return torch.cat([each[0] for each in said], dim=1), said[0][2 if len(said[0]) > 2 else 1]


@pytest.mark.parametrize(("name", "padding"), [("sd1", "<|endoftext|>"), ("sd2", "!")])
def test_parts_are_read_as_prompts_of_their_own_and_joined(bases, name, padding):
    base = bases[0][name]
    how = {"num_images_per_prompt": 1, "do_classifier_free_guidance": False}
    pipeline = plain_pipeline(base, padding)
    found = told(base, ["a fox", LONG], most=3).tokens
    assert found.shape[1] == 2 * 77
    for row, texts in enumerate((("a fox", ""), (FIRST, SECOND))):
        expected, _ = parts_by_pipeline(pipeline, texts, **how)
        torch.testing.assert_close(found[row : row + 1], expected, rtol=1e-4, atol=1e-5)
    assert told(base, ["a fox"], most=3).tokens.shape[1] == 77
    short, _ = parts_by_pipeline(pipeline, ("a fox", SECOND), **how)
    assert float((found[:1] - short).abs().max()) > 1e-2


def test_the_pooled_text_is_that_of_the_first_part(bases):
    base = bases[0]["sdxl"]
    pipeline = sdxl_pipeline(base)
    found = told(base, [LONG], most=2)
    tokens, pooled = parts_by_pipeline(pipeline, (FIRST, SECOND))
    torch.testing.assert_close(found.tokens, tokens, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.pooled, pooled, rtol=1e-4, atol=1e-5)


def test_t5_hears_a_long_caption_whole_in_as_many_tokens_as_clip(bases):
    """SD3Cond of v1.10.1 gives T5 token_count=lg_out.shape[1]."""
    found_bases, folder = bases
    base = found_bases["sd3 with t5"]
    pipeline = sd3_pipeline(base, folder)
    how = {"do_classifier_free_guidance": False, "max_sequence_length": 154, "device": "cpu"}
    said = [pipeline.encode_prompt(part, part, LONG, **how) for part in (FIRST, SECOND)]
    clips, t5 = [each[0][:, :77] for each in said], said[0][0][:, 77:]
    found = told(base, [LONG], most=3)
    torch.testing.assert_close(found.tokens, torch.cat([*clips, t5], 1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.pooled, said[0][2], rtol=1e-4, atol=1e-5)


def test_gradients_reach_a_text_encoder_that_is_trained(bases):
    base = bases[0]["sdxl"]
    how = base.checkpoint.family.text_encoders[1]
    module = copy.deepcopy(base.text_encoders["te2"]).requires_grad_(True)
    said = encode(module, how, tokenize(base, TEXTS).ids["te2"])
    (said.tokens.sum() + said.pooled.square().sum()).backward()
    grads = {name: p.grad for name, p in module.named_parameters()}
    assert grads["text_projection.weight"] is not None
    assert all(g is not None for name, g in grads.items() if "layers.2" in name)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp16", torch.bfloat16), ("bf16", torch.bfloat16)]
)
def test_captions_can_be_read_on_the_cpu_whatever_it_computes_in(bases, precision, dtype):
    """A CPU may not multiply in fp16, and T5's values overflow it."""
    whole, folder = bases[0]["sd3 with t5"], bases[1]
    small = load_base_model(whole.checkpoint, folder, DTYPES[precision])
    run = {"precision": precision, "text_device": "cpu"}
    config = asked_config("a", "b", "c.safetensors", run=run)
    captions = tokenize(small, TEXTS)
    found = read_captions(config, small, captions, (), torch.device("cpu"))(captions.rows)
    assert found.tokens.dtype == dtype
    torch.testing.assert_close(found.tokens.float(), told(whole, TEXTS).tokens, rtol=0.1, atol=0.1)


def test_what_was_said_stays_in_ordinary_memory_and_a_step_takes_its_own_to_the_device(bases):
    """Thousands of captions would fill a GPU beside the plan; the device without memory shows where the text goes."""
    base = bases[0]["sd3 with t5"]
    config = asked_config("a", "b", "c.safetensors", run={"text_device": "cpu"})
    captions = tokenize(base, TEXTS)
    said = read_captions(config, base, captions, (), torch.device("meta"))(captions.rows)
    assert (said.tokens.device.type, said.pooled.device.type) == ("meta", "meta")
    each = base.checkpoint.family.text_encoders[0]
    encoder = base.text_encoders[each.component]
    assert encode_all(encoder, each, captions).tokens.device.type == "cpu"
