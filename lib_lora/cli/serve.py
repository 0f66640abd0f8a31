"""`serve`: open the pages in a browser, without a WebUI."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from lib_lora.cli.options import add_runs_folder
from lib_lora.errors import UsageError

EXAMPLE = "example: python3 loom.py serve --base model.safetensors --lora-dir loras"
DEMO_BASE = Path(__file__).resolve().parents[1] / "demo" / "base.safetensors"
DEMO_SIZE = 64
LAST_PORT = 65_535


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "serve", help="open the pages in a browser, without a WebUI", epilog=EXAMPLE
    )
    parser.add_argument(
        "--host",
        metavar="H",
        default="127.0.0.1",
        help="the address to serve at (default: 127.0.0.1, this machine alone); at any other, visitors cannot name files",
    )
    parser.add_argument(
        "--port",
        metavar="P",
        type=int,
        default=7861,
        help="the port (default: 7861; 0: a free one)",
    )
    parser.add_argument(
        "--base",
        metavar="FILE",
        type=Path,
        default=DEMO_BASE,
        help="the checkpoint (default: the embedded base model)",
    )
    parser.add_argument(
        "--lora-dir",
        metavar="DIR",
        type=Path,
        default=Path("out"),
        help="the folder whose LoRAs prompts can name, and where trained ones go (default: out, where the demo writes)",
    )
    add_runs_folder(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until stopped."""
    if not 0 <= args.port <= LAST_PORT:
        raise UsageError(f"--port accepts 0 to {LAST_PORT}; found {args.port}.")
    from lib_lora.hosts.diffusers import DiffusersHost
    from lib_lora.hosts.samplers import SAMPLERS
    from lib_lora.ui.server import is_loopback, serve
    from lib_lora.ui.studio import Defaults, Studio

    logging.getLogger("lib_lora").setLevel(logging.INFO)
    defaults = Defaults(
        base=args.base,
        lora_dir=args.lora_dir,
        size=DEMO_SIZE if args.base == DEMO_BASE else None,
        samplers=[sampler.label for sampler in SAMPLERS],
        fixed_files=not is_loopback(args.host),
    )
    serve(Studio(DiffusersHost, defaults), args.host, args.port, args.runs, _tell_address)
    return 0


def _tell_address(address: str) -> None:
    sys.stdout.write(f"LoRA Loom is at {address} (Ctrl-C stops it)\n")
    sys.stdout.flush()
