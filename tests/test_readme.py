"""Every command of the README is one that the real parsers accept; those that cost nothing are run."""

import argparse
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lib_lora.cli.main import COMMANDS
from lib_lora.schedule.grammar import parse_prompt

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands():
    """Return every line of every shell block."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.S)
    return [line for block in blocks for line in block.splitlines()]


def loom_commands():
    return [shlex.split(line)[2:] for line in commands() if line.startswith("python3 loom.py ")]


def parse(arguments):
    parser = argparse.ArgumentParser()
    module = importlib.import_module(f"lib_lora.cli.{arguments[0]}")
    module.add_parser(parser.add_subparsers(required=True))
    return parser.parse_args(arguments)


def test_there_are_no_other_commands_than_ours():
    others = [line for line in commands() if not line.startswith("python3 loom.py ")]
    assert others == [
        "python3 tools/lanes.py v1.10.1",
        "python3 tools/lanes.py forge",
        "bash .ci/run",
    ]
    assert {arguments[0] for arguments in loom_commands()} == set(COMMANDS)


@pytest.mark.parametrize("arguments", loom_commands(), ids=" ".join)
def test_each_command_is_accepted(arguments):
    parse(arguments)
    if arguments[0] != "test":  # whose options are pytest's
        with pytest.raises(SystemExit):
            parse([*arguments, "--no-such-option"])


def test_inputs_of_the_commands_are_in_the_repository_or_made_by_the_demo():
    made = set(re.findall(r"`([\w.]+)`", README.split("| file |")[1].split("\n\n")[0]))
    for arguments in loom_commands():
        options = vars(parse(arguments))
        if options.get("base"):
            assert Path(options["base"]).as_posix().endswith("lib_lora/demo/base.safetensors")
        named = [*(options.get("lora") or ()), str(options.get("file", ""))]
        for text in filter(None, named):
            folder, _, name = text.partition("=")[0].partition("/")
            assert folder == "out"
            assert name in made
        if options.get("data") and str(options["data"]) != "my-pictures":
            assert (ROOT / options["data"]).is_dir()


def test_the_tests_named_are_there():
    (named,) = (a for a in loom_commands() if a[0] == "test" and len(a) > 1)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", *named[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_every_tag_is_read_without_error():
    tags = re.findall(r"<lora:[^>]+>", README.replace("\\|", "|"))
    assert len(tags) > 5
    for tag in tags:
        parsed = parse_prompt(tag)
        assert (len(parsed.uses), parsed.errors) == (1, ()), tag


def test_the_ci_runs_every_lane_and_the_readmes_test_command_last():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[-1] == "exec python3 tools/lanes.py"
    lanes = (ROOT / "tools" / "lanes.py").read_text(encoding="utf-8")
    assert 'stream([sys.executable, str(ROOT / "loom.py"), "test"]' in lanes
    assert ["test"] in loom_commands()


def test_pictures_and_files_of_the_readme_exist():
    for name in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / name).is_file(), name
    for room in ("cli", "demo", "hosts", "ui", "jobs", "apply", "merge", "train", "families"):
        assert (ROOT / "lib_lora" / room).is_dir()
