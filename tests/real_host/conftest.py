"""The WebUI that these tests speak to, over its API, and what it draws."""

import base64
import io
import json
import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lib_lora.formats.checkpoint import open_checkpoint
from lib_lora.formats.network_file import write_network
from lib_lora.networks.contract import CreateOptions, LayerShape
from lib_lora.networks.lora import LORA

URL = os.environ.get("LOOM_WEBUI_URL")
LORA_DIR = os.environ.get("LOOM_WEBUI_LORA_DIR")
FIGURES = os.environ.get("LOOM_WEBUI_FIGURES")
STOCK_URL = os.environ.get("LOOM_WEBUI_STOCK_URL")
MISSING = (
    "NOT TESTED IN A REAL WEBUI: LOOM_WEBUI_URL is not set (the address of a WebUI v1.10.1 with --api, with this extension, the"
    " embedded base model and the demo's donut.safetensors and striped.safetensors; LOOM_WEBUI_STOCK_URL: one without it;"
    " LOOM_WEBUI_LORA_DIR: the folder of its LoRA, into which the tests put one for the text encoder)"
)
BASE = Path(__file__).parents[2] / "lib_lora" / "demo" / "base.safetensors"
PROMPT = "a blue donut on a beige background"
DEFAULTS = {
    "prompt": PROMPT,
    "negative_prompt": "",
    "width": 64,
    "height": 64,
    "steps": 8,
    "sampler_name": "Euler",
    "scheduler": "Automatic",
    "cfg_scale": 5,
    "seed": 3,
    "save_images": False,
    # An option that a request overrides may stay so.
    "override_settings": {"batch_cond_uncond": True},
}


@dataclass(frozen=True)
class Drawn:
    """Pictures in 0..255, (count, height, width, 3), and the infotext of the first."""

    pixels: np.ndarray
    infotext: str

    def differs(self, other):
        """Return the mean and the largest difference of a pixel."""
        difference = np.abs(self.pixels - other.pixels)
        return difference.mean(), difference.max()


class WebUI:
    """The API of one WebUI; equal requests are made once."""

    def __init__(self, url):
        self.url, self._drawn = url, {}

    def draw(self, tags="", page="txt2img", **changes):
        """Draw the default picture with these tags at the end of its prompt, or with other settings."""
        asked = self.asked(tags, **changes)
        key = page + json.dumps(asked, sort_keys=True)
        if key not in self._drawn:
            self._drawn[key] = self.draw_anew(page, asked)
        return self._drawn[key]

    def asked(self, tags="", **changes):
        return {**DEFAULTS, "prompt": f"{PROMPT} {tags}", **changes}

    def draw_anew(self, page, asked):
        answer = self.post(f"/sdapi/v1/{page}", asked)
        info = json.loads(answer["info"])
        count = len(info["infotexts"])
        images = [Image.open(io.BytesIO(base64.b64decode(text))) for text in answer["images"]]
        pixels = np.stack([np.asarray(image.convert("RGB")) for image in images[-count:]])
        return Drawn(pixels.astype(np.float64), info["infotexts"][0])

    def post(self, path, body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.load(response)


@pytest.fixture(scope="session")
def webui():
    if not URL:
        pytest.skip(MISSING)
    return WebUI(URL)


@pytest.fixture(scope="session")
def stock():
    if not URL or not STOCK_URL:
        pytest.skip(MISSING)
    return WebUI(STOCK_URL)


@pytest.fixture(scope="session")
def text_lora():
    """Return the name of a LoRA on the text encoder alone, which the demo's have nothing on."""
    if not URL or not LORA_DIR:
        pytest.skip(MISSING)
    checkpoint = open_checkpoint(BASE)
    draw = torch.Generator().manual_seed(1)
    tensors = {}
    for layer_id, layer in checkpoint.layers.items():
        if layer.component == "te1" and layer.path.endswith(("q_proj", "v_proj", "fc1", "fc2")):
            created = LORA.create(LayerShape(layer.shape), CreateOptions(4, 4.0), draw)
            up = created["lora_up.weight"]
            tensors[layer_id] = {
                **created,
                "lora_up.weight": 0.2 * torch.randn(up.shape, generator=draw),
            }
    file = Path(LORA_DIR) / "loom_test_text.safetensors"
    write_network(file, tensors, checkpoint.layers, checkpoint.family.components)
    yield file.stem
    file.unlink()


@pytest.fixture
def figures(record_property, request):
    """Return a function that keeps a pair of differences for the report of the run."""

    def keep(name, pair):
        record_property(name, pair)
        if FIGURES:
            with Path(FIGURES).open("a", encoding="utf-8") as file:
                file.write(f"{request.node.name}\t{name}\t{pair[0]:.5f}\t{pair[1]:.0f}\n")
        return pair

    return keep


def pytest_terminal_summary(terminalreporter):
    if not URL:
        terminalreporter.write_line(MISSING, yellow=True, bold=True)
