"""A small folder of pictures to train on."""

import random

from PIL import Image, ImageDraw


def make_pictures(folder, count=4):
    """Draw circles of different sizes; every second one has a caption beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    for number in range(count):
        image = Image.new("RGB", (50 + 9 * number, 64), rng.choice(["white", "navy", "gold"]))
        ImageDraw.Draw(image).ellipse([8, 8, 40, 40 + 3 * number], rng.choice(["red", "green"]))
        image.save(folder / f"{number}.png")
        if number % 2:
            (folder / f"{number}.txt").write_text(f"a circle, number {number}", "utf-8")
    return folder
