"""What the demo trains: the network of the new concept, or of a person's own pictures, and a second, quick one to switch to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lib_lora.demo.concepts import DONUT, STRIPED
from lib_lora.demo.make_dataset import DATASET_DIR
from lib_lora.demo.shots import SIDE
from lib_lora.train.config import TrainConfig

MODEL_DIR = Path(__file__).with_name("model")
OWN = "yours"
FIRST_STEPS, SECOND_STEPS = 200, 100
# One thread: the model is so small that two gain little, and lose much where another program needs a core. A fixed number also
# keeps the last bits of sums, so that machines with other numbers of cores write the same file.
THREADS = 1


@dataclass(frozen=True, slots=True)
class Lesson:
    """A network to train: its name, the pictures, the number of steps, and the caption of pictures that have none."""

    name: str
    folder: Path
    steps: int
    caption: str = ""


def plan_lessons(
    data: Path | None, steps: tuple[int, int] = (FIRST_STEPS, SECOND_STEPS)
) -> tuple[Lesson, Lesson]:
    """Return the two lessons; `data` is a person's folder of pictures, `None` for the bundled ones."""
    second = Lesson(STRIPED.word, DATASET_DIR / STRIPED.word, steps[1], STRIPED.word)
    if data is None:
        return Lesson(DONUT.word, DATASET_DIR / DONUT.word, steps[0], DONUT.word), second
    caption = f"a picture of {data.resolve().name}"
    return Lesson(OWN, data, steps[0], caption), second


def train_config(lesson: Lesson, base: Path, out: Path, seed: int) -> dict[str, dict[str, object]]:
    """Return the training configuration of a lesson as plain values; raises ConfigError for a seed that is not accepted."""
    raw: dict[str, dict[str, object]] = {
        "model": {"base": str(base), "config": str(MODEL_DIR)},
        "data": {"folder": str(lesson.folder), "size": SIDE, "caption": lesson.caption},
        "network": {"rank": 16, "alpha": 16.0, "conv_rank": 8},
        "optimizer": {"unet_rate": 1e-3},
        "schedule": {"steps": lesson.steps, "batch": 8, "warmup": min(20, lesson.steps - 1)},
        "loss": {"validation_draws": 64},
        "saving": {"out": str(out), "dialect": "kohya"},
        "run": {"seed": seed, "device": "cpu", "threads": THREADS},
    }
    return TrainConfig.from_dict(raw).to_dict()
