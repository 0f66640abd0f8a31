"""The same with the flags that change where and how the real WebUI computes.

On a CPU `--lowvram` and `--medvram` move nothing, for every device is the CPU; what they do there is all else: hooks that move modules
run before each of them, and the conditionings of the hires pass are encoded before the first pass.
"""

import numpy as np
import pytest

from tests.real_host.pictures import CLEARLY, close
from tests.real_host.test_evaluations import assert_exact

HIRES = {"enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent", "denoising_strength": 0.6}
ATTENTION = {
    "--opt-sdp-attention": "sdp",
    "--opt-split-attention": "Doggettx",
    "--opt-sub-quad-attention": "sub-quadratic",
}


@pytest.mark.parametrize("flag", ["--lowvram", "--medvram", *ATTENTION])
def test_launch_flags(start, figures, flag):
    host = start(flag)
    state = host.ask("state")
    figures("attention", state["attention"])
    if flag in ATTENTION:
        assert state["attention"] == ATTENTION[flag]
    else:
        assert state["lowvram"]
    constant = {"plan": {"strengths": {"one": 1}}, **HIRES}
    drawn = host.watch("<lora:one:1@0,1@1>", **constant)
    assert_exact(drawn, figures)
    static, none = host.watch("<lora:one:1>", **HIRES), host.watch(**HIRES)
    assert close(figures("constant to static", drawn.differs(static)))
    off = host.watch("<lora:one:0.95@0,0.95@1>", **HIRES)
    assert not close(figures("5 % off to static", off.differs(static)))
    assert figures("none to static", none.differs(static)[0]) > CLEARLY
    plan = {"strengths": [{"one": share} for share in (0, 0.5, 1)]}
    ramp = host.watch("<lora:one:te=1:unet=0@0,1@1>", plan=plan, steps=3)
    assert_exact(ramp, lambda name, value: figures(f"ramp: {name}", value))
    hires_off = host.watch("<lora:one:1@0,1@1:hr=0>", **HIRES)
    assert not close(figures("hr=0 to static", hires_off.differs(static)))


def test_reload_ui(start, figures):
    """The button unloads the extension and loads it anew: patches and hooks are there once, and draw the same."""
    host = start("--opt-sub-quad-attention")
    ramp, plain = host.watch("<lora:one:0@0,1@1>"), host.watch()
    model = host.ask("apply")
    host.ask("reload_ui")
    assert host.ask("apply") == model
    again = host.watch("<lora:one:0@0,1@1>")
    assert np.array_equal(again.pixels, ramp.pixels)
    assert again.infotext == ramp.infotext
    assert np.array_equal(host.watch().pixels, plain.pixels)
    assert figures("ramp to none", ramp.differs(plain)[0]) > CLEARLY
