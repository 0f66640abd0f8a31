"""The registration script in the stand-in of the WebUI: what it loads at the start, and that "Reload UI" leaves one of everything."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from modules import script_callbacks, shared
from webui_host import Host

ROOT = Path(__file__).parents[2]
HEAVY = (
    *("diffusers", "transformers", "accelerate", "peft", "gradio", "fastapi", "safetensors"),
    *("PIL", "numpy.testing", "lib_lora.train", "lib_lora.merge", "lib_lora.ui"),
)
BEHIND_THE_TAB = (
    *("diffusers", "transformers", "accelerate", "peft", "safetensors", "PIL", "psutil"),
    *(
        "lib_lora.train",
        "lib_lora.merge",
        "lib_lora.apply",
        "lib_lora.families",
        "lib_lora.formats",
    ),
    *("lib_lora.networks", "lib_lora.hosts.a1111_host", "lib_lora.hosts.a1111_gpu"),
    *("lib_lora.jobs.client", "lib_lora.jobs.queue", "lib_lora.jobs.environment"),
    *("lib_lora.ui.train_service", "lib_lora.ui.form"),
)
NEVER = ("diffusers", "transformers", "accelerate", "peft")
# Of the time that importing torch takes, which is some 2 s where the WebUI allows 0.15 s for all together.
OF_TORCH = {"script": 0.05, "all": 0.075}
RAMP = "a fox <lora:a:te=1:unet=0@0,1@1>"

LOADING = """
import json, runpy, sys, time
start = time.process_time()
import torch
taken = {"torch": time.process_time() - start}
import modules.processing, modules.sd_samplers_kdiffusion, modules.sd_samplers_timesteps, modules.sd_unet, networks
there = set(sys.modules)
start = time.process_time()
runpy.run_path(sys.argv[1])
taken["script"] = time.process_time() - start
loaded = sorted(set(sys.modules) - there)
import fastapi, gradio
from modules.script_callbacks import registered
app, there = fastapi.FastAPI(), set(sys.modules)
start = time.process_time()
(((tab, _, name),),) = [callback() for callback in registered["ui_tabs"]]
for callback in registered["app_started"]:
    callback(None, app)
taken["all"] = taken["script"] + time.process_time() - start
with gradio.Blocks() as page, gradio.Tabs(), gradio.TabItem("LoRA Loom", id=name):
    tab.render()
shown = json.dumps(page.get_config_file()["components"], default=str)
print(json.dumps({
    "taken": taken, "loaded": loaded, "with the tab": sorted(set(sys.modules) - there),
    "routes": sorted(app.openapi()["paths"]), "shown": "lora_loom_train" in shown,
}))
"""
DRAWING = """
import json, sys, tempfile
from pathlib import Path
from webui_host import Host
with tempfile.TemporaryDirectory() as folder:
    host = Host(Path(folder))
    host.load_extension()
    plain, drawn = host.draw("a fox"), host.draw("a fox <lora:a:te=1:unet=0@0,1@1>")
print(json.dumps({"same": bool((plain == drawn).all()), "loaded": sorted(sys.modules)}))
"""


def in_new_process(program, *arguments):
    """Run a program as the WebUI's process is: our folder and the host's on its path."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "stand_in")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def among(names, loaded):
    return [one for one in loaded if any(one == n or one.startswith(f"{n}.") for n in names)]


def test_a_start_takes_little_time_and_nothing_heavy(tmp_path):
    """The script, and then the tab and its routes; what is behind them is opened by the page's first question."""
    script = tmp_path / "scripts" / "lora_loom.py"  # beside which there are no runs
    script.parent.mkdir()
    shutil.copy(ROOT / "scripts" / script.name, script)
    starts = [
        in_new_process(LOADING, str(script)) for _ in range(2)
    ]  # the first may have to compile
    for start in starts:
        assert among(HEAVY, start["loaded"]) == []
        assert "lib_lora.hosts.a1111" in start["loaded"]
        assert among(BEHIND_THE_TAB, start["with the tab"]) == []
        assert "lib_lora.ui.webui" in start["with the tab"]
        assert "/lora_loom/state" in start["routes"]
        assert start["shown"]
    for part, limit in OF_TORCH.items():
        assert min(start["taken"][part] / start["taken"]["torch"] for start in starts) < limit


def test_a_picture_with_a_schedule_loads_no_library_of_training():
    run = in_new_process(DRAWING)
    assert not run["same"]
    assert "lib_lora.apply.session" in run["loaded"]
    assert among(NEVER, run["loaded"]) == []


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path)
    host.load_extension()
    yield host
    host.unload_extension()
    host.forget()


def test_after_every_reload_everything_is_there_once(host):
    first = host.draw(RAMP)
    hooks, ours = host.model.hooks(), modules_of_ours()
    counts = {event: len(callbacks) for event, callbacks in script_callbacks.registered.items()}
    for _ in range(3):
        host.unload_extension()
        assert host.model.hooks() == 0
        assert script_callbacks.swallowed == []
        plain = host.draw("a fox ")
        host.load_extension()
        assert {e: len(c) for e, c in script_callbacks.registered.items()} == counts
        assert torch.equal(host.draw("a fox "), plain)
        again = host.draw(RAMP)
        # Twice the network would not be the same picture.
        assert torch.equal(again, first)
        assert not torch.equal(again, plain)
        assert host.model.hooks() == hooks
    assert modules_of_ours() == ours


@pytest.mark.parametrize("api", [False, True])
def test_the_api_is_imported_before_the_webui_listens(host, monkeypatch, api):
    """v1.10.1 imports it afterwards, and ends where an open page has been answered before the API adds its middleware."""
    monkeypatch.delitem(sys.modules, "modules.api.api", raising=False)
    monkeypatch.setattr(shared.cmd_opts, "api", api)
    for callback in script_callbacks.registered["ui_tabs"]:
        callback()
    assert ("modules.api.api" in sys.modules) == api


def modules_of_ours():
    return {name: id(one) for name, one in sys.modules.items() if name.startswith("lib_lora.")}
