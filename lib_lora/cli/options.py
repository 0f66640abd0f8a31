"""Options that several commands have."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_runs_folder(parser: argparse.ArgumentParser, name: str = "--runs") -> None:
    """Add the option that names the folder of runs."""
    parser.add_argument(
        name,
        metavar="DIR",
        type=Path,
        default=Path("runs"),
        help="where runs are kept (default: runs)",
    )
