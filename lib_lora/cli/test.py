"""`test`: run the project's tests with the arguments of pytest."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command. Everything after its name is pytest's, options too, so no character starts an option of ours."""
    parser = commands.add_parser(
        "test",
        help="run the tests",
        add_help=False,
        prefix_chars="\0",
    )
    parser.add_argument("arguments", nargs="*")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run pytest at the top of the project and return its exit code."""
    import pytest

    os.chdir(ROOT)
    return int(pytest.main(args.arguments))
