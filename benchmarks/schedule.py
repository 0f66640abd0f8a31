"""What three scheduled LoRAs cost: the time of the UNet beside the multiply-adds they add, their memory, and a change of strength.

Run as `python3 -m benchmarks.schedule`, on one thread for numbers that hold. Alone it measures the UNet of Stable Diffusion 1.5 with random
weights, one picture with guidance, in user CPU time, which other programs disturb less than the clock. With `--url` it measures a
running WebUI through its API, on the checkpoint that it has loaded: whole pictures less pictures of one step, by the clock, or with
`--pid` in the user CPU time of its process. All is measured in turns, and the least time counts; alone, that of each block of the UNet,
for no evaluation of ten seconds passes undisturbed, but each block does in some round. If a UNet without networks differs from itself,
nothing is proved, and the exit code is 1; so it is when more is taken than is allowed.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import re
import resource
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import torch
from diffusers import UNet2DConditionModel
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lib_lora.apply.forecast import forecast
from lib_lora.apply.session import LoadedNetwork, Session, Uses
from lib_lora.families.sd1 import SD1
from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.network_file import write_network
from lib_lora.networks.contract import ALPHA, LayerNetwork
from lib_lora.networks.lora import DOWN, LORA, UP
from lib_lora.schedule.clock import Clock
from lib_lora.schedule.grammar import parse_prompt

NETWORKS, RANK = 3, 32
RAMP, OFF = "0.2@0,1@1", "0@0,0@1"
LEVELS = [14.6, 7.3, 3.4, 1.6, 0.7, 0.3, 0.0]
ATTENTION = (".to_q", ".to_k", ".to_v", ".to_out.0")
NULL, UPDATE_SECONDS = 0.03, 0.001
PER_SHARE = 1.5  # time allowed for what a share of the multiply-adds takes
PER_BYTE, MORE_BYTES = 1.2, 32e6
TOKENS, PICTURES = 77, 2  # a picture with guidance is two rows
SMALL = 64
UPDATES = 200
BLOCK = re.compile(r"\b(resnets|transformer_blocks|downsamplers|upsamplers)\.\d+$|\.(attn\d|ff)$")

Times = Mapping[str, Sequence[Sequence[float]]]
"""For each case its rounds, each the times of its parts in their order."""
Name = TypeVar("Name", bound=Hashable)
Timed = TypeVar("Timed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit code."""
    asked = _parse(arguments)
    print(
        f"{asked.size} x {asked.size} pixels, {asked.rounds} rounds, {NETWORKS} LoRAs of rank {RANK}"
    )
    right = _measure_webui(asked) if asked.url else _measure_alone(asked)
    return 0 if right else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--size", type=int, default=512, help="side of the picture in pixels")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--unet", type=Path, help="a folder of diffusers that describes another UNet"
    )
    parser.add_argument("--url", default=os.environ.get("LOOM_WEBUI_URL"), help="of a WebUI")
    parser.add_argument("--pid", type=int, help="the WebUI's process on this machine")
    parser.add_argument("--checkpoint", type=Path, help="the file that the WebUI has loaded")
    parser.add_argument("--lora-dir", type=Path, help="the WebUI's folder of LoRAs")
    parser.add_argument("--steps", type=int, default=8, help="of a picture of the WebUI")
    asked = parser.parse_args(arguments)
    if asked.url and not (asked.checkpoint and asked.lora_dir):
        parser.error("--url needs --checkpoint and --lora-dir, where the LoRAs are written")
    return asked


def _measure_alone(asked: argparse.Namespace) -> bool:
    """Measure a UNet in this process."""
    config = _config(asked.unet)
    torch.manual_seed(0)
    plain = UNet2DConditionModel.from_config(config).requires_grad_(False).eval()
    layers = _trained(plain)
    attention = {id_: layer for id_, layer in layers.items() if id_.endswith(ATTENTION)}
    everywhere, in_attention = _twin(plain), _twin(plain)
    marks: list[float] = []
    for unet in (plain, everywhere, in_attention):
        _mark(unet, marks)
    inputs = _inputs(config, asked.size)
    with torch.inference_mode():
        small = _inputs(config, SMALL)  # the first evaluation makes what later ones only use
        plain(*small)
        before = _resident()
        uses = _uses(layers, RAMP)
        expected = forecast([network.layers for _, network in uses], _modules(plain))
        ramp = _session(everywhere, uses)
        ramp.step(LEVELS[0])
        everywhere(*small)
        taken = _resident() - before
        narrow = _session(in_attention, _uses(attention, RAMP))
        narrow.step(LEVELS[0])
        in_attention(*small)
        work = {
            "none": lambda turn: plain(*inputs),
            "none again": lambda turn: plain(*inputs),
            "ramp": lambda turn: _evaluate(everywhere, ramp, turn, inputs),
            "ramp, attention only": lambda turn: _evaluate(in_attention, narrow, turn, inputs),
            "strength 0": lambda turn: (ramp.disarm(), everywhere(*inputs)),
        }
        times = _in_turns(work, asked.rounds, lambda task, turn: _part_seconds(task, turn, marks))
        updates = [_seconds(lambda turn=turn: ramp.step(_level(turn))) for turn in range(UPDATES)]
    shares = {
        "ramp": share(config, asked.size, layers),
        "ramp, attention only": share(config, asked.size, attention),
    }
    print(f"user CPU time of one evaluation on {torch.get_num_threads()} threads")
    right = _print_times(times, shares)
    right &= _print_memory(taken, expected)
    update = statistics.median(updates)
    print(f"  change of strength: median {update * 1e3:.2f} ms, most {max(updates) * 1e3:.2f} ms")
    return _print_verdict("change of strength", update * 1e3, UPDATE_SECONDS * 1e3, "ms") and right


def _config(folder: Path | None) -> dict[str, object]:
    """Return a UNet's configuration: that of Stable Diffusion 1.5 where no other is asked for."""
    if folder is None:
        return {"cross_attention_dim": 768, "sample_size": 64}  # the rest is the library's default
    return dict(UNet2DConditionModel.load_config(folder))


def _trained(unet: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that kohya's trainer puts a LoRA on where convolutions are not asked for."""
    return {
        id_: module
        for id_, module in _modules(unet).items()
        if id_.endswith(SD1.trained_by_default)
    }


def _modules(unet: nn.Module) -> dict[str, nn.Module]:
    return {
        f"unet.{path}": module
        for path, module in unet.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
    }


def _twin(unet: UNet2DConditionModel) -> UNet2DConditionModel:
    """Return another UNet on the same weights, for hooks of its own."""
    with torch.device("meta"):
        twin = UNet2DConditionModel.from_config(unet.config)
    twin.load_state_dict(unet.state_dict(), assign=True)
    return twin.requires_grad_(False).eval()


def _inputs(config: Mapping[str, object], size: int) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    latents = torch.randn(PICTURES, 4, size // 8, size // 8, generator=draw)
    words = torch.randn(PICTURES, TOKENS, int(str(config["cross_attention_dim"])), generator=draw)
    return latents, torch.tensor(500), words


def _network(weight: torch.Tensor, draw: torch.Generator) -> dict[str, torch.Tensor]:
    """Return a LoRA as files hold it, in half precision."""
    down = torch.randn(RANK, *weight.shape[1:], generator=draw).half()
    up = torch.randn(weight.shape[0], RANK, *(1 for _ in weight.shape[2:]), generator=draw).half()
    return {DOWN: down * 0.01, UP: up * 0.01, ALPHA: torch.tensor(float(RANK))}


def _uses(layers: Mapping[str, nn.Module], curve: str) -> Uses:
    draw = torch.Generator().manual_seed(2)
    tags = "".join(_tag(index, curve) for index in range(NETWORKS))
    return [
        (
            use,
            LoadedNetwork(
                use.name,
                {
                    id_: LayerNetwork(LORA, _network(layer.get_parameter("weight"), draw))
                    for id_, layer in layers.items()
                },
            ),
        )
        for use in parse_prompt(tags).uses
    ]


def _tag(index: int, curve: str) -> str:
    return f"<lora:loom_benchmark_{index}:te=0:unet={curve}>"


def _session(unet: nn.Module, uses: Uses) -> Session:
    session = Session(uses)
    session.open(_modules(unet), unet)
    session.begin_pass(Clock.from_sigmas(LEVELS))
    return session


def _evaluate(
    unet: nn.Module, session: Session, turn: int, inputs: tuple[torch.Tensor, ...]
) -> None:
    session.step(_level(turn))
    unet(*inputs)


def _level(turn: int) -> float:
    return LEVELS[turn % (len(LEVELS) - 1)]


def share(config: Mapping[str, object], size: int, layers: Iterable[str]) -> float:
    """Return the multiply-adds of the networks on these layers, as a share of those of the UNet itself."""
    with torch.device("meta"):
        unet = UNet2DConditionModel.from_config(config)
        inputs = tuple(one.to("meta") for one in _inputs(config, size))
    added = 0

    def count(module: nn.Module, inputs: tuple[torch.Tensor, ...], y: torch.Tensor) -> None:
        nonlocal added
        weight = module.get_parameter("weight")
        places = y.numel() // len(weight)
        added += places * NETWORKS * RANK * (weight[0].numel() + len(weight))

    modules = _modules(unet)
    for id_ in layers:
        modules[id_].register_forward_hook(count)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        unet(*inputs)
    return added / (counter.get_total_flops() / 2)


def _measure_webui(asked: argparse.Namespace) -> bool:
    """Measure a WebUI through its API."""
    config = _config(asked.unet)
    with torch.device("meta"):
        layers = _trained(UNet2DConditionModel.from_config(config))
    read = _process_seconds(asked.pid) if asked.pid else time.perf_counter

    def picture(tags: str, steps: int) -> Callable[[int], float]:
        return lambda turn: _drawn(asked, tags, steps, read)

    ramp, off = ("".join(_tag(n, curve) for n in range(NETWORKS)) for curve in (RAMP, OFF))
    cases = {"none": "", "none again": "", "ramp": ramp, "strength 0": off}
    with _written(asked, layers):
        work = {
            (name, steps): picture(tags, steps)
            for name, tags in cases.items()
            for steps in (asked.steps, 1)
        }
        drawn = _in_turns(work, asked.rounds, lambda task, turn: task(turn))
    # Other programs only ever add to a time: the least picture of one step is the nearest to what all others hold besides their steps.
    times = {
        name: [
            ((whole - min(drawn[name, 1])) / (asked.steps - 1),)
            for whole in drawn[name, asked.steps]
        ]
        for name in cases
    }
    print(f"{'user CPU' if asked.pid else 'clock'} time of one step in {asked.url}")
    return _print_times(times, {"ramp": share(config, asked.size, layers)})


@contextmanager
def _written(asked: argparse.Namespace, layers: Mapping[str, nn.Module]) -> Iterator[None]:
    """Keep the LoRAs in the WebUI's folder meanwhile."""
    checkpoint = open_checkpoint(asked.checkpoint)
    for id_, module in layers.items():
        shape = tuple(module.get_parameter("weight").shape)
        if id_ not in checkpoint.layers or checkpoint.layers[id_].shape != shape:
            raise SystemExit(f"{asked.checkpoint}: {id_} is not that of the UNet; see --unet")
    files = [asked.lora_dir / f"loom_benchmark_{index}.safetensors" for index in range(NETWORKS)]
    draw = torch.Generator().manual_seed(2)
    try:
        for file in files:
            tensors = {
                id_: _network(torch.empty(checkpoint.layers[id_].shape), draw) for id_ in layers
            }
            write_network(file, tensors, checkpoint.layers, checkpoint.family.components)
        yield
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _drawn(asked: argparse.Namespace, tags: str, steps: int, read: Callable[[], float]) -> float:
    """Return how long a picture takes."""
    body = {
        "prompt": f"a fox {tags}",
        "steps": steps,
        "width": asked.size,
        "height": asked.size,
        "sampler_name": "Euler",
        "cfg_scale": 7,
        "seed": 1,
        "save_images": False,
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{asked.url}/sdapi/v1/txt2img", json.dumps(body).encode(), headers
    )
    start = read()
    with urllib.request.urlopen(request) as response:
        infotext = json.load(response)["info"]
    if "Loom errors" in infotext:
        raise SystemExit(f"the WebUI left the LoRAs out: {infotext}")
    return read() - start


def _process_seconds(pid: int) -> Callable[[], float]:
    stat, ticks = Path(f"/proc/{pid}/stat"), os.sysconf("SC_CLK_TCK")
    return lambda: int(stat.read_text().rpartition(")")[2].split()[11]) / ticks


def _user_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def _mark(unet: nn.Module, marks: list[float]) -> None:
    """Let a UNet note the time where each of its blocks begins and ends."""

    def mark(*_: object) -> None:
        marks.append(_user_seconds())

    for name, module in unet.named_modules():
        if BLOCK.search(name):
            module.register_forward_pre_hook(mark)
            module.register_forward_hook(mark)


def _part_seconds(task: Callable[[int], object], turn: int, marks: list[float]) -> list[float]:
    """Return the times of an evaluation from each mark to the next."""
    marks[:] = [_user_seconds()]
    task(turn)
    return [end - start for start, end in pairwise([*marks, _user_seconds()])]


def _seconds(task: Callable[[], object]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def _resident() -> int:
    """Return the bytes of memory that this process has, with all freed memory given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _in_turns(
    work: Mapping[Name, Callable[[int], object]],
    rounds: int,
    timed: Callable[[Callable[[int], object], int], Timed],
) -> dict[Name, list[Timed]]:
    times: dict[Name, list[Timed]] = {name: [] for name in work}
    for turn in range(rounds):
        for name, task in work.items():
            times[name].append(timed(task, turn))
    return times


def _print_times(times: Times, shares: Mapping[str, float]) -> bool:
    """Print the times and what is allowed; return whether all are within it."""
    least = {name: sum(map(min, zip(*rounds, strict=True))) for name, rounds in times.items()}
    print(f"  {'':<22}{'min':>10}{'median':>10}{'spread':>10}{'ratio':>8}")
    for name, rounds in times.items():
        wholes = [sum(parts) for parts in rounds]
        numbers = (least[name], statistics.median(wholes), max(wholes) - min(wholes))
        columns = "".join(f"{number:>8.3f} s" for number in numbers)
        print(f"  {name:<22}{columns}{least[name] / least['none']:>8.3f}")
    null = abs(least["none again"] / least["none"] - 1)
    if null > NULL:
        print(
            f"  INVALID: without networks twice, and {null:.1%} apart; at most {NULL:.0%} is noise"
        )
        return False
    off = least["strength 0"] / least["none"] - 1
    right = _print_verdict("strength 0 above none", off * 100, NULL * 100, "%")
    for name, added in shares.items():
        ratio, allowed = least[name] / least["none"], 1 + PER_SHARE * added
        print(f"  {name}: {added:.1%} more multiply-adds")
        right &= _print_verdict(name, ratio, allowed, "times none")
    return right


def _print_memory(taken: int, expected: int) -> bool:
    megabytes, most = expected / 1e6, (PER_BYTE * expected + MORE_BYTES) / 1e6
    print(f"  memory: {taken / 1e6:.0f} MB more in this process, {megabytes:.0f} MB forecast")
    return _print_verdict("memory", taken / 1e6, most, "MB")


def _print_verdict(what: str, found: float, allowed: float, unit: str) -> bool:
    right = found <= allowed
    verdict = "within" if right else "OVER"
    print(f"  {what}: {found:.3f} {unit}, {verdict} the {allowed:.3f} allowed")
    return right


if __name__ == "__main__":
    sys.exit(main())
