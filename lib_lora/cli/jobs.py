"""`jobs`: see the runs of a folder, follow one, and ask something of it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from lib_lora.cli.options import add_runs_folder
from lib_lora.cli.progress import ProgressLine, follow_run
from lib_lora.errors import UsageError
from lib_lora.jobs.client import POLL_SECONDS, Run
from lib_lora.jobs.queue import Queue
from lib_lora.jobs.story import RunState

EXAMPLE = "example: python3 loom.py jobs follow latest"
DONE, FAILED, STOPPED = 0, 1, 130
LOG_LINES = 20
ACTIONS = {
    "list": "all runs, the newest first",
    "show": "where a run stands, what it was asked, what it said",
    "follow": "show a run's progress until it is over",
    "stop": "let it save what was learned, and end",
    "pause": "let it keep its state and end",
    "resume": "put it in the queue again and start it when its turn comes",
    "clean": "delete the runs that are named, or else those that are done, with their saves and samples",
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    actions = "\n".join(f"  {name:<8}{about}" for name, about in ACTIONS.items())
    parser = commands.add_parser(
        "jobs",
        help="see the runs and ask something of them",
        description=actions,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument("runs", metavar="RUN", nargs="*", help="the name of a run, or latest")
    add_runs_folder(parser, "--root")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Do one thing with runs."""
    queue = Queue(args.root, "the command line")
    chosen = [_find(queue, name) for name in args.runs]
    if args.action == "list":
        return _list(chosen or queue.runs(), args.json)
    if args.action == "clean":
        return _clean(queue, chosen, args.json)
    if len(chosen) != 1:
        raise UsageError(f"jobs {args.action} takes one run: its name, or latest.")
    act = {"show": _show, "follow": _follow}.get(args.action)
    return act(chosen[0], args.json) if act else _ask(queue, chosen[0], args.action, args.json)


def _find(queue: Queue, name: str) -> Run:
    runs = queue.runs()
    return runs[0] if name == "latest" and runs else queue.find(name)


def _list(runs: Sequence[Run], as_json: bool) -> int:
    told = [_facts(run, run.state()) for run in runs]
    if as_json:
        return _print_json(told)
    for each in told:
        step = f"{each['step']}/{each['total']}" if each["total"] else ""
        sys.stdout.write(
            f"{each['run']:<28} {each['status']:<9} {each['stage']:<10} {step:<12} {each['made']}\n"
        )
    if not told:
        sys.stdout.write("There are no runs.\n")
    return DONE


def _show(run: Run, as_json: bool) -> int:
    state = run.state()
    facts = _facts(run, state)
    more = {
        "notes": list(state.notes),
        "result": dict(state.result),
        "log": run.log_tail(LOG_LINES),
    }
    if as_json:
        return _print_json({**facts, **more, "config": run.asked()["config"]})
    lines = [f"{name:<8} {value}" for name, value in facts.items() if value not in ("", None)]
    if state.silent_since:
        lines.append(f"{'silent':<8} since {_time(state.silent_since)}; its process lives")
    asked = json.dumps(run.asked()["config"], indent=2)
    sys.stdout.write("\n".join([*lines, "", *state.notes, "", asked, "", str(more["log"])]) + "\n")
    return DONE


def _follow(run: Run, as_json: bool) -> int:
    if as_json:
        for event in run.follow():
            head = {"seq": event.seq, "t": event.t, "kind": event.kind}
            sys.stdout.write(json.dumps({**head, **event.data}) + "\n")
            sys.stdout.flush()
        return _exit_code(run.state())
    state = follow_run(run, ProgressLine())
    sys.stdout.write(f"{run.id} is {state.status}. {state.message}".rstrip() + "\n")
    return _exit_code(state)


def _ask(queue: Queue, run: Run, action: str, as_json: bool) -> int:
    if run.state().at_work and action != "resume":
        id_ = run.command(action)
    else:
        id_ = queue.command(run, action)
        while action == "resume" and run.state().status == "queued":
            queue.pump()
            time.sleep(POLL_SECONDS)
    state = run.state()
    if as_json:
        return _print_json({**_facts(run, state), "command": id_})
    said = f"{run.id} was asked to {action}." if id_ else f"{run.id} is {state.status}."
    sys.stdout.write(f"{said}\n")
    return DONE


def _clean(queue: Queue, chosen: Sequence[Run], as_json: bool) -> int:
    gone = chosen or [run for run in queue.runs() if run.state().status == "done"]
    for run in gone:
        queue.command(run, "delete")
    if as_json:
        return _print_json({"deleted": [run.id for run in gone]})
    for run in gone:
        sys.stdout.write(f"{run.id} is deleted.\n")
    return DONE


def _facts(run: Run, state: RunState) -> dict[str, Any]:
    return {
        "run": run.id,
        "kind": run.asked()["kind"],
        "status": state.status,
        "stage": state.stage,
        "step": state.step,
        "total": state.total,
        "loss": state.loss,
        "seconds_left": state.seconds_left,
        "silent_since": state.silent_since,
        "message": state.message,
        "made": _time(run.made),
        "folder": str(run.folder),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")


def _exit_code(state: RunState) -> int:
    return {"done": DONE, "stopped": STOPPED, "paused": STOPPED}.get(state.status, FAILED)


def _print_json(value: Mapping[str, object] | Sequence[object]) -> int:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
    return DONE
