"""What stands behind the Train page and knows no web: forms read, runs put into the queue and asked things, and their views."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib_lora.errors import ConfigError, UsageError
from lib_lora.host import Host
from lib_lora.jobs import environment
from lib_lora.jobs.client import Run
from lib_lora.jobs.queue import Queue
from lib_lora.jobs.story import RunState
from lib_lora.train.config_learning import OPTIMIZER_PACKAGES
from lib_lora.train.dataset_report import report
from lib_lora.ui.attendant import will_be_delivered
from lib_lora.ui.forecast_view import Forecaster
from lib_lora.ui.form import describe_form
from lib_lora.ui.preparation import Preparation
from lib_lora.ui.presets_view import describe_presets
from lib_lora.ui.request import Requests
from lib_lora.ui.run_view import Watched, list_entry, run_view, sample_file

SHOWN_RUNS = 50
USUAL_SIZE = 512
PICTURES = "loom_pictures"
ASKABLE = {name: name for name in ("pause", "save", "stop", "resume")} | {"remove": "delete"}
Body = Mapping[str, Any]


class TrainService:
    """host: the program that owns the loaded model; queue: the runs; preparation: the worker's environment; requests: the forms.

    sizes: of pictures, by base model, where its family does not tell. Threads may share it; nothing here waits for a model or a worker.
    """

    def __init__(
        self,
        host: Host,
        queue: Queue,
        preparation: Preparation,
        requests: Requests,
        sizes: Mapping[Path, int] | None = None,
    ) -> None:
        self._host, self._queue = host, queue
        self._preparation, self._requests = preparation, requests
        self._sizes = sizes or {}
        self._forecaster = Forecaster(host)
        self._looked_at: dict[Path, Watched] = {}

    def page(self) -> dict[str, Any]:
        """Return what the page is built from."""
        return {
            "host": self._host.info().name,
            "names_files": self._requests.names_files,
            "network_folder": str(self._host.network_folder()),
            "form": describe_form(),
            "presets": describe_presets(),
            **self.bases(),
        }

    def bases(self) -> dict[str, Any]:
        """Return the base models, the one that the host uses first."""
        return {
            "bases": [
                {
                    "name": base.name,
                    "file": str(base.file),
                    "loaded": number == 0,
                    "size": self._sizes.get(base.file),
                }
                for number, base in enumerate(self._host.checkpoints())
            ]
        }

    def state(self, run: str, after: int) -> dict[str, Any]:
        """Return all that changes: the runs, and of the one that is looked at what its events told after that number."""
        states = {each: each.state() for each in self._queue.runs()[:SHOWN_RUNS]}
        shown = _shown(run, states)
        seen = after if shown is not None and shown.id == run else 0
        owner = self._queue.owner()
        watched = owner is not None and not owner.is_me
        return {
            "environment": self._preparation.view(),
            "owner": f"These runs belong to {owner.name} (process {owner.pid}); from here they can only be watched."
            if owner and watched
            else "",
            "runs": [list_entry(each, state) for each, state in states.items()],
            "run": shown and run_view(self._watched(shown), states[shown], seen, watched),
        }

    def dataset(self, body: Body) -> dict[str, Any]:
        """Return the report on a folder of pictures: figures, what cannot be trained on, and advice. Raises LoraError."""
        size = str(body.get("size", ""))
        pixels = int(size) if re.fullmatch("[1-9][0-9]{1,3}", size) else USUAL_SIZE
        folder = self._requests.folder(str(body.get("folder", "")))
        found = report(folder, pixels, caption=str(body.get("caption", "")))
        figures = [
            ("Pictures", str(found.pictures)),
            ("Captions", str(found.captioned)),
            ("Per epoch", str(found.samples)),
            ("Sizes", _sizes(found.smallest, found.largest)),
        ]
        problems = [f"{each.file} {each.reason}." for each in found.left_out]
        return {"figures": figures, "problems": problems, "advice": list(found.advice)}

    def plan(self, body: Body) -> dict[str, Any]:
        """Return the forecast of memory for a form that may still lack its folder and name; raises ConfigError."""
        settings, fit = _settings(body)
        return self._forecaster.view(self._requests.sketch(settings), fit)

    def add(self, body: Body) -> dict[str, Any]:
        """Put the run that a form asks for into the queue and return its id; raises ConfigError with all problems."""
        self._preparation.check()
        settings, fit = _settings(body)
        config = self._requests.read(settings, self._taken())
        if fit:
            config = self._forecaster.fitted(config)
        self._preparation.check(OPTIMIZER_PACKAGES.get(config.optimizer.type, ""))
        run = self._queue.add("train", config.to_dict())
        will_be_delivered(run)
        return {"run": run.id}

    def prepare(self, body: Body) -> dict[str, Any]:
        """Begin to prepare the worker's environment; raises UsageError."""
        self._preparation.begin()
        return {}

    def command(self, run: str, body: Body) -> dict[str, Any]:
        """Ask something of a run, which answers in its events; raises UsageError."""
        asked = str(body.get("command", ""))
        if asked not in ASKABLE:
            raise UsageError(f"There is no command {asked!r}.")
        if asked == "resume":
            asked_for = self._queue.find(run).asked()["config"].get("optimizer", {})
            self._preparation.check(OPTIMIZER_PACKAGES.get(asked_for.get("type", ""), ""))
        self._queue.command(self._queue.find(run), ASKABLE[asked])
        return {}

    def sample(self, run: str, name: str) -> Path | None:
        """Return a sample picture of a run, `None` when there is none of that name; raises UsageError for an unknown run."""
        return sample_file(self._queue.find(run), name)

    def _watched(self, run: Run) -> Watched:
        return self._looked_at.setdefault(run.folder, Watched(run))

    def _taken(self) -> set[Path]:
        waiting = (run for run in self._queue.runs() if run.state().status != "done")
        outs = (run.asked()["config"].get("saving", {}).get("out") for run in waiting)
        return {Path(out) for out in outs if out}


def open_service(
    host: Host, runs: Path, name: str, sizes: Mapping[Path, int] | None = None
) -> TrainService:
    """Return what stands behind the Train page of a host; name: what other processes are told of this one."""
    info = host.info()
    preparation = Preparation(environment.status, environment.prepare, not info.restricted)
    requests = Requests(host, info.root / PICTURES)
    return TrainService(host, Queue(runs, name), preparation, requests, sizes)


def _shown(asked: str, states: Mapping[Run, RunState]) -> Run | None:
    """Return the run that is asked for, else the one at work, else the newest."""
    runs = list(states)
    named = (run for run in runs if run.id == asked)
    working = (run for run in runs if states[run].at_work)
    return next(named, None) or next(working, None) or next(iter(runs), None)


def _settings(body: Body) -> tuple[dict[str, str], bool]:
    """Return a form's settings and whether they are to be fitted to the machine; raises ConfigError for any that is no text."""
    raw = body.get("settings")
    settings = raw if isinstance(raw, dict) else {}
    wrong = [
        (str(n), "Expects a text.") for n, text in settings.items() if not isinstance(text, str)
    ]
    if wrong:
        raise ConfigError(wrong)
    return dict(settings), body.get("fit") is True


def _sizes(smallest: tuple[int, int] | None, largest: tuple[int, int] | None) -> str:
    if smallest is None or largest is None:
        return "none"
    names = [f"{width} x {height}" for width, height in (smallest, largest)]
    return names[0] if names[0] == names[1] else " to ".join(names)
