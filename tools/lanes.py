"""Run the tests with the packages of the WebUIs: `python3 tools/lanes.py [--keep] [LANE ...]`, every lane when none is named.

A lane of a WebUI makes an environment of its own below `.lanes/` with that WebUI's Python and pins, lets `install.py` prepare the
worker there, checks that no package of the environment changed, trains a few steps, and runs tests. It takes about 6 GB and is
removed afterwards, unless it is to be kept. The lane `newest` is `python3 loom.py test`. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LANES = ROOT / ".lanes"
PIP = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")
ENVIRONMENT = (
    "import json; from lib_lora.jobs.environment import worker_environment;"
    "print(json.dumps(worker_environment()))"
)
COMMAND_LINE = "import sys; from lib_lora.cli.main import main; sys.exit(main(sys.argv[1:]))"
NEWEST = "newest"


class LaneError(Exception):
    """A lane failed; the text is one sentence."""


@dataclass(frozen=True)
class Lane:
    """The packages of a WebUI, and the tests that have to pass with them; `without` names tests that cannot, and why."""

    name: str
    python: str
    pins: str
    tests: tuple[str, ...]
    without: tuple[tuple[str, str], ...] = ()


WEBUIS = (
    Lane(
        "v1.10.1",
        "3.10",
        "lane-v1.10.1.txt",
        (
            "tests/networks",
            "tests/schedule",
            "tests/families",
            "tests/formats",
            "tests/apply",
            "tests/merge",
            "tests/ui",
        ),
        (
            (
                "tests/formats/test_peft_folder.py::test_the_bias_of_a_lora_is_scaled_as_peft_does",
                "the bias of a LoRA came with PEFT 0.14",
            ),
            (
                "tests/formats/test_peft_folder.py::test_a_folder_of_pefts_is_read_at_its_own_strength[expression]",
                "PEFT 0.13 finds no layer by this expression",
            ),
            (
                "tests/formats/test_network_file.py::test_diffusers_reads_the_diffusers_dialect_to_the_same_delta",
                "diffusers reads networks with transformers 4.34 and newer only",
            ),
            (
                "tests/formats/test_network_file.py::test_a_file_that_diffusers_saved_with_its_metadata_is_read_at_its_own_strength",
                "diffusers 0.31 saves no metadata of a network",
            ),
        ),
    ),
    Lane("forge", "3.10", "lane-forge.txt", ("tests/ui",)),
)


def main(arguments: Sequence[str]) -> int:
    """Run the lanes, list what came of each and end with the last one's summary; return 1 when one failed."""
    known = [*(lane.name for lane in WEBUIS), NEWEST]
    parser = argparse.ArgumentParser(prog="tools/lanes.py", description="run the lanes of tests")
    parser.add_argument("--keep", action="store_true", help="keep the environments in .lanes")
    parser.add_argument("lanes", nargs="*", metavar="LANE", help=", ".join(known))
    asked = parser.parse_args(arguments)
    if unknown := set(asked.lanes) - set(known):
        parser.error(f"there is no lane {', '.join(unknown)}; there are {', '.join(known)}")
    told, failed, summary = [], False, ""
    for name in asked.lanes or known:
        begun = time.monotonic()
        print(f"lane {name}", flush=True)
        try:
            summary = run_lane(name, asked.keep)
        except LaneError as error:
            summary, failed = f"FAILED: {error}", True
        told.append(f"lane {name} ({versions(name)}), {time.monotonic() - begun:.0f} s: {summary}")
    print("\n".join([*told, summary]))
    return int(failed)


def run_lane(name: str, keep: bool) -> str:
    """Run a lane and return its tests' summary; raises LaneError."""
    if name == NEWEST:
        return stream([sys.executable, str(ROOT / "loom.py"), "test"], os.environ)
    lane = next(lane for lane in WEBUIS if lane.name == name)
    folder = LANES / lane.name
    try:
        return run_webui(lane, build(lane, folder))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def build(lane: Lane, folder: Path) -> str:
    """Make the environment, or take the kept one of the same pins, and return its interpreter."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    lists = [ROOT / "requirements" / name for name in (lane.pins, "lane-tests.txt")]
    stamp, wanted = folder / "lane.pins", "".join(path.read_text() for path in lists)
    if stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    shutil.rmtree(folder, ignore_errors=True)
    stream([interpreter(lane.python), "-m", "venv", str(folder)], os.environ)
    command = [str(python), "-m", "pip", "install", *PIP, "--quiet", "--no-deps", "--no-compile"]
    files = [part for path in lists for part in ("-r", str(path))]
    stream([*command, "--no-cache-dir", *files], os.environ)
    stamp.write_text(wanted)
    return str(python)


def run_webui(lane: Lane, python: str) -> str:
    """Prepare the worker, train and test in a WebUI's environment, and return the tests' summary."""
    before = freeze(python)
    with tempfile.TemporaryDirectory() as elsewhere:
        stream([python, str(ROOT / "install.py")], os.environ, elsewhere)
        if freeze(python) != before:
            raise LaneError("install.py changed the packages of the WebUI.")
        environment = json.loads(output([python, "-c", ENVIRONMENT]))
        train(python, Path(elsewhere), environment)
    without = [f"--deselect={test}" for test, _ in lane.without]
    return stream([python, "-m", "pytest", *lane.tests, *without], environment)


def train(python: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Train two steps on the embedded base model in a worker of that interpreter."""
    out, demo = folder / "trained.safetensors", ROOT / "lib_lora/demo"
    files = ["--base", demo / "base.safetensors", "--data", demo / "dataset/donut", "--out", out]
    settings = ["schedule.steps=2", "schedule.batch=1", "data.size=64", "loss.validation_draws=1"]
    command = [python, "-c", COMMAND_LINE, "train", *map(str, files), "--runs", str(folder)]
    stream([*command, *(f"--set={setting}" for setting in settings)], environment)
    stream([python, "-c", COMMAND_LINE, "inspect", str(out)], environment)


def interpreter(version: str) -> str:
    """Return a Python of that version, pyenv's or one on the path; raises LaneError when there is none."""
    prefix = output(["pyenv", "prefix", version]) if shutil.which("pyenv") else ""
    for candidate in (f"{prefix}/bin/python", f"python{version}"):
        if shutil.which(candidate) and output([candidate, "-V"]).startswith(f"Python {version}."):
            return candidate
    raise LaneError(f"There is no Python {version}; `pyenv install {version}` makes one.")


def freeze(python: str) -> str:
    """Return the packages of an environment with their versions."""
    return output([python, "-m", "pip", "freeze", "--all"])


def output(command: Sequence[str]) -> str:
    """Return what a program prints, or nothing when it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def stream(
    command: Sequence[str], environment: Mapping[str, str], folder: str | Path = ROOT
) -> str:
    """Run a program, show what it prints, and return its last line; raises LaneError when it fails."""
    last = ""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as child:
        for line in child.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
    if child.returncode:
        words = " ".join(map(str, command[1:4]))
        raise LaneError(f"`{words} ...` ended with {child.returncode}: {last}")
    return last


def versions(name: str) -> str:
    """Return what a lane is made of, from its list."""
    lane = next((lane for lane in WEBUIS if lane.name == name), None)
    text = (ROOT / "requirements" / (lane.pins if lane else "standalone.txt")).read_text()
    pins = re.findall(r"^((?:torch|transformers|gradio)==\S+)", text, re.MULTILINE)
    return ", ".join(dict.fromkeys(pin.replace("==", " ") for pin in pins))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
