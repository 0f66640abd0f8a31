"""The WebUI as a process of the tests' own: `inside/main.py` runs in its interpreter and answers what is asked.

Nothing is assembled but a folder of data: a checkout (`LOOM_WEBUI_DIR`) and its interpreter (`LOOM_WEBUI_PYTHON`) are taken as they are,
and nothing is written into them.
"""

import json
import os
import subprocess
from pathlib import Path

from tests.real_host.pictures import asked, drawn_of

DIR, PYTHON = os.environ.get("LOOM_WEBUI_DIR"), os.environ.get("LOOM_WEBUI_PYTHON")
ROOT = Path(__file__).parents[2]
MAIN = Path(__file__).with_name("inside") / "main.py"
INNER_PASS = Path(__file__).with_name("inner_pass")
FLAGS = (
    *("--nowebui", "--skip-prepare-environment", "--skip-install", "--skip-version-check"),
    *("--skip-torch-cuda-test", "--no-half", "--use-cpu", "all"),
    *("--do-not-download-clip", "--no-download-sd-model", "--disable-console-progressbars"),
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "CUDA_VISIBLE_DEVICES": "",
    "COMMANDLINE_ARGS": "",
}


class HostProcess:
    """folder: the data folder, new; models: that of checkpoints and networks; extension: whether ours is there."""

    def __init__(self, folder, models, *flags, extension=True):
        (folder / "extensions").mkdir(parents=True)
        there = {"inner-pass": INNER_PASS, **({"lora-loom": ROOT} if extension else {})}
        for name, source in there.items():
            (folder / "extensions" / name).symlink_to(source, target_is_directory=True)
        self._log = folder / "log.txt"
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [
                    *(PYTHON, str(MAIN), str(models / "sd1.yaml"), *FLAGS, *flags),
                    *("--data-dir", str(folder), "--ckpt-dir", str(models / "checkpoints")),
                    *("--lora-dir", str(models / "networks")),
                ],
                cwd=DIR,
                env={**os.environ, **ENVIRONMENT, "MPLCONFIGDIR": str(folder / "matplotlib")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ask(self, do, **arguments):
        """Ask for what `inside/requests_of_tests.py` has a method for."""
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the WebUI ended:\n{self.log()[-4000:]}")
        return json.loads(line)

    def post(self, path, body):
        """Return the API's answer; raises RuntimeError when it is an error."""
        return checked(self.ask("post", path=path, body=body))

    def watch(self, tags="", page="txt2img", plan=None, at=None, **changes):
        """Draw anew; plan: what every call of the model is compared with; at: what happens as an evaluation begins, by its index."""
        path = f"/sdapi/v1/{page}"
        answer = self.ask("watch", path=path, body=asked(tags, **changes), plan=plan, at=at)
        return drawn_of(checked(answer), answer["seen"])

    def log(self):
        return self._log.read_text(encoding="utf-8", errors="replace")

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)


def checked(answer):
    if answer["status"] != 200:
        raise RuntimeError(answer["body"])
    return answer["body"]
