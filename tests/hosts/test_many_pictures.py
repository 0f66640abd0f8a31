"""Two hundred pictures in the stand-in of the WebUI: whatever happens in them, nothing piles up."""

import gc
import resource
from pathlib import Path

import torch
from modules import script_callbacks

PICTURES, WARM = 200, 40
RAMP = "a fox <lora:a:1@0,0.2@1><lora:b:0.5@0,1@1:neg=0.1>"
PER_PICTURE = 4096  # bytes: a network of this model has more


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def left(host):
    """Return what is there: hooks of the model, tensors, and all objects that can pile up."""
    gc.collect()
    found = gc.get_objects()
    tensors = sum(type(one) in (torch.Tensor, torch.nn.Parameter) for one in found)
    return host.model.hooks(), tensors, len(found)


def draw(host, number):
    """Draw a picture: every tenth fails in the UNet, every seventh has a bad tag, every fifth no schedule."""
    unet = host.model.model.diffusion_model
    tags = {0: "a fox", 1: "a fox <lora:c:0@0,1@1>"}.get((number % 5) + (number % 7 > 0), RAMP)
    unet.broken = number % 10 == 3
    try:
        host.draw(tags, enable_hr=number % 4 == 0)
    except ValueError:
        assert unet.broken
    unet.broken = False
    unet.seen.clear()


def test_two_hundred_pictures_leave_nothing_behind(host):
    for number in range(WARM):
        draw(host, number)
    host.draw(RAMP)
    host.model.model.diffusion_model.seen.clear()
    before, memory = left(host), resident()
    assert before[0] > 0
    for number in range(WARM, PICTURES):
        draw(host, number)
    host.draw(RAMP)
    host.model.model.diffusion_model.seen.clear()
    hooks, tensors, objects = left(host)
    assert (hooks, tensors) == before[:2]
    assert abs(objects - before[2]) < PICTURES - WARM
    assert resident() - memory < (PICTURES - WARM) * PER_PICTURE
    host.draw("a fox")
    assert host.model.hooks() == 0
    assert script_callbacks.swallowed == []
