"""The benchmark of schedules in its quick form: what it prints, and what it counts. Times mean nothing here."""

import re
from pathlib import Path

import pytest
import torch
from diffusers import UNet2DConditionModel

from benchmarks import schedule

UNET = Path(__file__).parents[2] / "lib_lora" / "demo" / "model" / "unet"
CASES = ("none", "none again", "ramp", "ramp, attention only", "strength 0")


def test_the_quick_form_prints_every_case(capsys, monkeypatch):
    monkeypatch.delenv("LOOM_WEBUI_URL", raising=False)
    code = schedule.main(["--size", "64", "--rounds", "2", "--unet", str(UNET)])
    printed = capsys.readouterr().out
    for case in CASES:
        assert re.search(rf"^  {case} +(\d+\.\d+ s +){{3}}\d+\.\d+$", printed, re.MULTILINE), case
    assert re.search(r"memory: \d+ MB more in this process, \d+ MB forecast", printed)
    assert re.search(r"change of strength: \d+\.\d+ ms, (within|OVER) the 1\.000 allowed", printed)
    assert code == ("INVALID" in printed or "OVER" in printed)


def test_a_noisy_comparison_is_invalid(capsys):
    times = {case: [(1.0,)] for case in CASES}
    shares = {"ramp": 0.089}
    assert schedule._print_times({**times, "ramp": [(1.13,)]}, shares)
    assert not schedule._print_times({**times, "ramp": [(1.14,)]}, shares)
    assert not schedule._print_times({**times, "strength 0": [(1.04,)]}, shares)
    assert not schedule._print_times({**times, "none again": [(1.04,)]}, shares)
    assert "INVALID" in capsys.readouterr().out


def test_the_least_time_of_each_part_counts(capsys):
    """By hand: 1 + 2, where the one round was disturbed in its first part and the other in its second."""
    rounds = {case: [(1.0, 5.0), (4.0, 2.0)] for case in CASES}
    assert schedule._print_times(rounds, {})
    assert re.search(
        r"^  none +3\.000 s +6\.000 s +0\.000 s", capsys.readouterr().out, re.MULTILINE
    )


def test_the_shares_are_those_of_stable_diffusion_1_5():
    config = schedule._config(None)
    with torch.device("meta"):
        unet = UNet2DConditionModel.from_config(config)
    layers = schedule._trained(unet)
    attention = [id_ for id_ in layers if id_.endswith(schedule.ATTENTION)]
    # kohya's trainer: 12 layers in each of 16 transformer blocks, 8 of them of attentions
    assert (len(layers), len(attention)) == (192, 128)
    # By hand, for one row: blocks, places and width of each level at 512 pixels.
    levels = [(5, 64 * 64, 320), (5, 32 * 32, 640), (5, 16 * 16, 1280), (1, 8 * 8, 1280)]
    rank, words = 3 * 32, 77
    of_words = sum(blocks * words * 2 * (768 + width) for blocks, _, width in levels)
    of_places = sum(blocks * places * width for blocks, places, width in levels)
    # A layer of a in c columns and b in c rows costs (a + b) c for each place: 2 for each of q, k, v, out, q and out, 9 and 5 for the
    # feed-forward, 2 for each of proj_in and proj_out.
    in_attention = rank * (12 * of_places + of_words)
    everywhere = rank * (30 * of_places + of_words)
    itself = layers_of(unet) + sum(
        blocks * 2 * places * width * (places + words) for blocks, places, width in levels
    )
    assert schedule.share(config, 512, layers) == pytest.approx(everywhere / itself, rel=1e-3)
    assert schedule.share(config, 512, attention) == pytest.approx(in_attention / itself, rel=1e-3)


def layers_of(unet):
    """Count the multiply-adds of all linear layers and convolutions for one row."""
    counts = []

    def count(module, inputs, y):
        counts.append(y[0].numel() * module.weight[0].numel())

    for module in unet.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d):
            module.register_forward_hook(count)
    with torch.no_grad(), torch.device("meta"):
        unet(torch.empty(1, 4, 64, 64), torch.tensor(500), torch.empty(1, 77, 768))
    return sum(counts)


def test_a_webui_is_measured_with_its_checkpoint_known(capsys):
    with pytest.raises(SystemExit):
        schedule.main(["--url", "http://127.0.0.1:1"])
    assert "--checkpoint" in capsys.readouterr().err
