"""Draw the demo's training pictures again: `python3 -m lib_lora.demo.make_dataset`.

The pictures differ in side and file format on purpose, as a person's own do. The same seed gives the same files.
"""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from lib_lora.demo import scenes
from lib_lora.demo.concepts import DONUT, STRIPED, Concept

Word = TypeVar("Word")

log = logging.getLogger(__name__)

DATASET_DIR = Path(__file__).with_name("dataset")
PICTURES = {DONUT: 24, STRIPED: 16}
SIDES = (96, 128, 160, 192, 256)
SEED = 7


def make(concept: Concept, count: int, folder: Path) -> None:
    """Write `count` pictures with captions beside them; every word of the grammar gets its fair share."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(SEED)
    colours = _evenly(list(scenes.COLOURS), count, rng)
    backgrounds = _evenly(list(scenes.BACKGROUNDS), count, rng)
    positions = _evenly(list(scenes.POSITIONS), count, rng)
    shapes = _evenly(list(scenes.SHAPES), count, rng)
    for k in range(count):
        scene = concept.random_scene(rng)
        scene = replace(
            scene,
            shape=scene.shape if scene.shape not in scenes.SHAPES else shapes[k],
            colour=colours[k],
            background=backgrounds[k],
            position=positions[k],
        )
        picture = concept.draw(scene, rng, SIDES[k % len(SIDES)])
        stem = folder / f"{concept.word}-{k + 1:02d}"
        if k % 3 == 2:
            picture.save(stem.with_suffix(".jpg"), quality=93, subsampling=0)
        else:
            picture.save(stem.with_suffix(".png"), optimize=True)
        stem.with_suffix(".txt").write_text(concept.caption(scene, rng) + "\n", encoding="utf-8")


def _evenly(words: list[Word], count: int, rng: random.Random) -> list[Word]:
    """Return `count` words in random order, each as often as the others or once more."""
    rounds = [rng.sample(words, len(words)) for _ in range(-(-count // len(words)))]
    return [word for words_of_round in rounds for word in words_of_round][:count]


def main() -> None:
    """Draw both datasets into the package."""
    logging.basicConfig(level=logging.INFO)
    for concept, count in PICTURES.items():
        folder = DATASET_DIR / concept.word
        make(concept, count, folder)
        size = sum(file.stat().st_size for file in folder.iterdir())
        log.info("%s: %d pictures, %d kB", folder, count, size // 1000)


if __name__ == "__main__":
    main()
