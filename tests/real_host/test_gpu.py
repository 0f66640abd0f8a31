"""The real WebUI's GPU lent to a training run and given back: its models leave, nothing loads them, and the next picture is the one of before."""

import numpy as np
import pytest

STATIC, RAMP = "<lora:one:1>", "<lora:one:0@0,1@1>"


@pytest.mark.parametrize("flags", [(), ("--medvram",), ("--lowvram",)])
def test_a_picture_before_and_after_is_the_same(start, flags):
    host = start(*flags)
    before = [host.watch(tags) for tags in ("", STATIC, RAMP)]
    model = host.ask("apply")["hash"]
    assert host.ask("lend") == {"on the device": 0, "asked for": False}
    host.ask("take_back")
    assert host.ask("apply")["hash"] == model
    after = [host.watch(tags) for tags in ("", STATIC, RAMP)]
    for was, now in zip(before, after, strict=True):
        assert np.array_equal(was.pixels, now.pixels)
        assert was.infotext == now.infotext


def test_pictures_are_refused_meanwhile_where_that_is_set(host):
    host.ask("lend", refuse=True)
    try:
        with pytest.raises(RuntimeError, match="LoRA Loom is training on the GPU"):
            host.watch()
    finally:
        host.ask("take_back")
    host.watch()


def test_a_checkpoint_chosen_meanwhile_is_loaded(host):
    host.ask("lend", refuse=True)
    host.ask("choose", checkpoint="other")
    host.ask("take_back")
    assert host.ask("state")["checkpoint"] == "other"
    host.post("/sdapi/v1/options", {"sd_model_checkpoint": "base"})


def test_a_merge_that_nobody_saved_is_named(host):
    """The weights that the WebUI has a backup of are compared by it, so its own LoRA do not count."""
    host.watch(STATIC)
    assert host.ask("differing_layers") == []
    shifted = host.ask("differing_layers", shifted=True)
    assert shifted
    assert all(layer.startswith("unet.") for layer in shifted)
    assert host.ask("differing_layers") == []
