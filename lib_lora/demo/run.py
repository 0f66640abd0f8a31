"""The demo: train two networks, schedule them over a generation, merge one, and write down what was measured."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from PIL.Image import Image

from lib_lora.cli.progress import ProgressLine
from lib_lora.demo.album import read_album
from lib_lora.demo.descriptor import distance_to
from lib_lora.demo.detector import HOLE_SHARE_THRESHOLD
from lib_lora.demo.gallery import as_panel, draw_many, draw_panels
from lib_lora.demo.lessons import (
    FIRST_STEPS,
    MODEL_DIR,
    SECOND_STEPS,
    Lesson,
    plan_lessons,
    train_config,
)
from lib_lora.demo.measure import hole_share
from lib_lora.demo.memory import PeakMemory
from lib_lora.demo.outputs import whole
from lib_lora.demo.plot import draw_losses
from lib_lora.demo.report import Concept, Likeness, Report, difference, told_figures
from lib_lora.demo.sheet import Pair, Panel, Sheet, draw_sheet
from lib_lora.demo.shots import (
    COMPARED,
    MAIN_PROMPT,
    MERGED_STRENGTH,
    SIDE,
    donut_prompts,
    live_shot,
    prompts_from,
    scheduled_shots,
)
from lib_lora.demo.teach import Taught, teach
from lib_lora.demo.webui import write_webui_folder
from lib_lora.formats.hashes import file_sha256
from lib_lora.host import Generated
from lib_lora.hosts.diffusers import DiffusersHost
from lib_lora.jobs.client import new_folder
from lib_lora.merge.bake import bake
from lib_lora.merge.plan import LoraChoice, plan_merge

BASE = Path(__file__).with_name("base.safetensors")
SEED_STRIDE = 1000
SHOWN = (12, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    """What is asked of the demo. data: a person's own pictures, `None` for the bundled ones; steps: of the two trainings."""

    out: Path
    data: Path | None = None
    seed: int = 0
    base: Path = BASE
    steps: tuple[int, int] = (FIRST_STEPS, SECOND_STEPS)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The pictures of the live networks: the main prompt's panels, and those of the pairs without and with the first network."""

    panels: list[Panel]
    without: list[Image]
    having: list[Image]
    live: list[Image]


class Demo:
    """One run of the demo; `run` does everything.

    Raises LoraError for pictures that cannot be read and for a training that fails, KeyboardInterrupt when a person stops it.
    """

    def __init__(self, asked: DemoRequest, line: ProgressLine) -> None:
        self._asked, self._line = asked, line
        self._out = asked.out.absolute()
        self._lessons = plan_lessons(asked.data, asked.steps)
        self._albums = [read_album(each.folder, each.caption, SIDE) for each in self._lessons]
        captions = self._albums[0].captions
        self._prompts = donut_prompts(captions) if asked.data is None else prompts_from(captions)
        self._prompt = MAIN_PROMPT if asked.data is None else self._prompts[0]
        first_seed = asked.seed * SEED_STRIDE
        self._seed, *self._seeds = range(first_seed, first_seed + 1 + len(self._prompts))
        self._seconds: dict[str, float] = {}
        self._notes: dict[str, None] = {}

    def run(self) -> Report:
        """Train, draw, merge, compare and write everything into the output folder; the report appears last, or not at all."""
        self._out.mkdir(parents=True, exist_ok=True)
        (self._out / "report.json").unlink(missing_ok=True)
        with PeakMemory() as peak, self._stage("total"):
            taught = {lesson.name: self._train(lesson) for lesson in self._lessons}
            drawn = self._draw()
            self._merge()
            merged = self._draw_merged()
            report = self._measured(taught, drawn, merged)
            with self._stage("contact sheet"):
                report = replace(report, peak_memory_bytes=peak.bytes)
                self._write_pictures(report, taught, drawn, merged)
                write_webui_folder(self._asked.base, self._out / "webui")
        report = replace(report, peak_memory_bytes=peak.bytes, sha256=self._hashes())
        with whole(self._out / "report.json") as part:
            part.write_text(report.to_json(), encoding="utf-8")
        return report

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._seconds[name] = round(time.monotonic() - began, 2)

    def _network(self, lesson: Lesson) -> Path:
        return self._out / f"{lesson.name}.safetensors"

    @property
    def _merged(self) -> Path:
        return self._out / "merged.safetensors"

    def _train(self, lesson: Lesson) -> Taught:
        count = len(self._albums[self._lessons.index(lesson)].pictures)
        noun = "picture" if count == 1 else "pictures"
        self._line.tell(f"Teaching {lesson.name}: {lesson.steps} steps on {count} {noun}")
        out, seed = self._network(lesson), self._asked.seed
        config = train_config(lesson, self._asked.base, out, seed)
        with self._stage(f"train {lesson.name}"):
            return teach(config, new_folder(self._out / "runs", lesson.name), self._line)

    def _draw(self) -> Drawn:
        self._line.tell("Drawing with the LoRA live, scheduled over the steps")
        first, second = self._lessons
        shots = scheduled_shots(first.name, second.name)
        with self._stage("pictures"):
            host = DiffusersHost(self._asked.base, config=MODEL_DIR)
            for lesson in self._lessons:
                host.add_network(self._network(lesson))
            panels = draw_panels(host, shots, self._prompt, self._seed, self._progress)
            without, having = (
                draw_many(host, self._prompts, self._seeds, tags)
                for tags in ((), (f"<lora:{first.name}:1>",))
            )
            live = draw_many(host, *self._compared(), live_shot(first.name).tags)
        self._line.close()
        self._note([*having, *live])
        panels.append(as_panel(live_shot(first.name), live[0]))
        return Drawn(panels, images(without), images(having), images(live))

    def _progress(self, done: int, total: int) -> None:
        self._line.show("pictures", done, total)

    def _compared(self) -> tuple[Sequence[str], Sequence[int]]:
        """Return the prompts and seeds of the pictures by which merged and live are compared; the main prompt is the first."""
        prompts, seeds = [self._prompt, *self._prompts], [self._seed, *self._seeds]
        return prompts[:COMPARED], seeds[:COMPARED]

    def _note(self, pictures: Sequence[Generated]) -> None:
        self._notes.update(dict.fromkeys(note for each in pictures for note in each.notes))

    def _merge(self) -> None:
        self._line.tell(f"Merging the LoRA into the base at {MERGED_STRENGTH}")
        choice = LoraChoice(self._network(self._lessons[0]), MERGED_STRENGTH)
        with self._stage("merge"):
            bake(plan_merge(self._asked.base, [choice]), self._merged)

    def _draw_merged(self) -> list[Image]:
        with self._stage("merged pictures"):
            host = DiffusersHost(self._merged, config=MODEL_DIR)
            return images(draw_many(host, *self._compared()))

    def _measured(
        self, taught: Mapping[str, Taught], drawn: Drawn, merged: Sequence[Image]
    ) -> Report:
        """Return the report of everything but what is still to be written."""
        own = self._asked.data
        return Report(
            data="bundled" if own is None else own.resolve().name,
            seed=self._asked.seed,
            seconds=self._seconds,
            peak_memory_bytes=0,
            validation_loss={name: each.validation for name, each in taught.items()},
            concept=self._concept(drawn) if own is None else None,
            likeness=None if own is None else self._likeness(drawn),
            merged_versus_live=difference(drawn.live, merged),
            sha256={},
            notes=tuple(self._notes),
        )

    def _concept(self, drawn: Drawn) -> Concept:
        return Concept(
            measure="share of the hole in the filled outline",
            threshold=HOLE_SHARE_THRESHOLD,
            prompts=self._prompts,
            seeds=self._seeds,
            without=[hole_share(picture) for picture in drawn.without],
            having=[hole_share(picture) for picture in drawn.having],
        )

    def _likeness(self, drawn: Drawn) -> Likeness:
        known = self._albums[0].pictures
        return Likeness(distance_to(known, drawn.without), distance_to(known, drawn.having))

    def _write_pictures(
        self,
        report: Report,
        taught: Mapping[str, Taught],
        drawn: Drawn,
        merged: Sequence[Image],
    ) -> None:
        albums = zip(self._lessons, self._albums, SHOWN, strict=True)
        last = Panel(f"Merged at {MERGED_STRENGTH}", (), merged[0], {})
        sheet = Sheet(
            headline="A LoRA trained, scheduled over the steps of a generation and merged into its base.",
            figures=told_figures(report),
            taught={lesson.name: album.pictures[:count] for lesson, album, count in albums},
            prompt=self._prompt,
            panels=[*drawn.panels, last],
            pairs=self._pairs(report, drawn),
        )
        with whole(self._out / "contact_sheet.png") as part:
            draw_sheet(sheet).save(part)
        with whole(self._out / "loss.png") as part:
            draw_losses({name: each.losses for name, each in taught.items()}).save(part)

    def _pairs(self, report: Report, drawn: Drawn) -> list[Pair]:
        found: list[tuple[bool, bool] | None] = [None] * len(self._prompts)
        if (concept := report.concept) is not None:
            found = list(
                zip(concept.found(concept.without), concept.found(concept.having), strict=True)
            )
        rows = zip(self._prompts, drawn.without, drawn.having, found, strict=True)
        return [Pair(*row) for row in rows]

    def _hashes(self) -> dict[str, str]:
        files = [
            *(self._network(lesson) for lesson in self._lessons),
            *(self._merged, self._out / "contact_sheet.png", self._out / "loss.png"),
            *sorted((self._out / "webui").iterdir()),
        ]
        return {str(file.relative_to(self._out).as_posix()): file_sha256(file) for file in files}


def images(generated: Sequence[Generated]) -> list[Image]:
    """Return the pictures alone."""
    return [each.image for each in generated]
