"""What the tests ask a WebUI to draw, and what it drew."""

import base64
import io
import json
import urllib.request
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

PROMPT = "a blue donut on a beige background"
DEFAULTS = {
    "prompt": PROMPT,
    "negative_prompt": "",
    "width": 64,
    "height": 64,
    "steps": 4,
    "sampler_name": "Euler",
    "scheduler": "Automatic",
    "cfg_scale": 5,
    "seed": 3,
    "save_images": False,
    # An option that a request overrides stays so where it was never set before: every request says all that any changes.
    "override_settings": {
        "batch_cond_uncond": True,
        "pad_cond_uncond": False,
        "skip_early_cond": 0.0,
        "always_discard_next_to_last_sigma": False,
        "use_old_scheduling": False,
        "CLIP_stop_at_last_layers": 1,
        "token_merging_ratio": 0.0,
        "hypertile_enable_unet": False,
        "hypertile_swap_size_unet": 3,
        "hires_fix_use_firstpass_conds": False,
        "persistent_cond_cache": True,
    },
}
# A constant schedule acts beside the weights, the WebUI's own tag inside of them: the two differ by rounding alone, which may move a
# pixel to the next of 256 values.
ROUNDING = (0.01, 1)  # mean and largest difference, of 255
CLEARLY = 1.0  # mean difference, of 255


@dataclass(frozen=True)
class Drawn:
    """Pictures in 0..255, (count, height, width, 3), the infotext of the first, and what was seen of the model's calls, if it was."""

    pixels: np.ndarray
    infotext: str
    seen: dict = field(default_factory=dict)

    def differs(self, other):
        """Return the mean and the largest difference of a pixel."""
        difference = np.abs(self.pixels - other.pixels)
        return float(difference.mean()), float(difference.max())

    @property
    def as_input(self):
        """The first picture as the API takes one."""
        file = io.BytesIO()
        Image.fromarray(self.pixels[0].astype(np.uint8)).save(file, "png")
        return base64.b64encode(file.getvalue()).decode()


def close(pair):
    return pair[0] <= ROUNDING[0] and pair[1] <= ROUNDING[1]


def asked(tags="", **changes):
    """Return the default request with these tags at the end of its prompt, or with other settings."""
    options = {**DEFAULTS["override_settings"], **changes.pop("override_settings", {})}
    return {**DEFAULTS, "prompt": f"{PROMPT} {tags}", **changes, "override_settings": options}


def drawn_of(answer, seen):
    """Return what the API's answer to a request for a picture holds."""
    info = json.loads(answer["info"])
    count = len(info["infotexts"])
    pictures = [decoded(text) for text in answer["images"][-count:]]
    # A grid comes before the pictures.
    alike = [picture for picture in pictures if picture.shape == pictures[-1].shape]
    return Drawn(np.stack(alike), info["infotexts"][0], seen)


def decoded(text):
    """Return the pixels of a picture that the API sent, (height, width, 3)."""
    image = Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")
    return np.asarray(image, dtype=np.float64)


def over_http(url):
    """Return a function that posts to a WebUI's API."""

    def post(path, body):
        request = urllib.request.Request(
            url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.load(response)

    return post


class WebUI:
    """One WebUI; equal requests are made once. post: what takes a path of its API and a body and returns the answer."""

    def __init__(self, post):
        self.post, self._drawn = post, {}

    def draw(self, tags="", page="txt2img", **changes):
        request = asked(tags, **changes)
        key = page + json.dumps(request, sort_keys=True)
        if key not in self._drawn:
            self._drawn[key] = self.draw_anew(page, request)
        return self._drawn[key]

    def draw_anew(self, page, request):
        return drawn_of(self.post(f"/sdapi/v1/{page}", request), {})
