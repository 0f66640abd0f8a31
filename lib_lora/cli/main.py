"""The command line: which commands there are, and what becomes of their errors.

A command is a module of this package with `add_parser(commands)` and `run(args) -> int`; only the one that is asked for is imported,
so that help and errors come at once.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence

from lib_lora.errors import LoraError, UsageError, did_you_mean
from lib_lora.jobs.offline import OFFLINE

PROGRAM = "loom.py"

COMMANDS = {
    "demo": "train, schedule and merge a LoRA on the embedded base model, with pictures",
    "test": "run the tests",
    "serve": "open the pages in a browser, without a WebUI",
    "train": "train a LoRA",
    "plan": "tell how much memory a training will need",
    "jobs": "see the runs, follow one, pause, resume or stop it",
    "generate": "make a picture, with scheduled LoRAs",
    "schedule": "tell the strengths of a prompt's LoRAs at every evaluation",
    "merge": "bake LoRAs into a checkpoint",
    "inspect": "tell what is in a LoRA or a checkpoint",
    "dataset": "tell what a training would make of a folder of pictures",
    "convert": "write a LoRA in another dialect",
}
DONE, FAILED, WRONG_USAGE, STOPPED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return the exit code: 0 done, 1 failed, 2 wrong usage, 130 stopped."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    os.environ.update(OFFLINE)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names in every script come up, and a pipe on Windows is in the system's old encoding.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except UsageError as error:
        return _tell(str(error), WRONG_USAGE)
    except LoraError as error:
        return _tell(str(error), FAILED)
    except OSError as error:
        return _tell(_refused(error), FAILED)
    except KeyboardInterrupt:
        return _tell("Stopped.", STOPPED)
    except Exception:
        return _tell(f"Something unforeseen went wrong; the details are in {_log_error()}.", FAILED)


def _run(argv: list[str]) -> int:
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        sys.stdout.write(_overview())
        return DONE
    if name not in COMMANDS:
        raise UsageError(f"There is no command {name!r}. {did_you_mean(name, COMMANDS)}")
    command = importlib.import_module(f"lib_lora.cli.{name}")
    parser = argparse.ArgumentParser(prog=PROGRAM)
    command.add_parser(parser.add_subparsers(dest="command", required=True))
    try:
        args = parser.parse_args(argv)
    except SystemExit as end:  # argparse has shown its help or its complaint
        return int(end.code or 0)
    return command.run(args)


def _overview() -> str:
    lines = (f"  {name:<10}{about}\n" for name, about in COMMANDS.items())
    return (
        f"usage: python3 {PROGRAM} COMMAND [options]\n\n{''.join(lines)}\n"
        f"python3 {PROGRAM} COMMAND --help tells more, with an example.\n"
    )


def _refused(error: OSError) -> str:
    if error.filename is None:
        return error.strerror or str(error)
    return f"The system refused {str(error.filename)!r}: {error.strerror}."


def _tell(sentence: str, code: int) -> int:
    sys.stderr.write(f"{sentence}\n")
    return code


def _log_error() -> str:
    with tempfile.NamedTemporaryFile(
        "w", prefix="lora-loom-", suffix=".log", delete=False, encoding="utf-8"
    ) as file:
        file.write(traceback.format_exc())
    return file.name


if __name__ == "__main__":
    # A script that starts a command in the background lets it ignore SIGINT; ours can always be stopped.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
