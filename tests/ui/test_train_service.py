"""The Train page's answers, on a real queue and the embedded base model; no worker is started."""

import json
from pathlib import Path

import pytest

from lib_lora.errors import ConfigError, UsageError
from lib_lora.families.sizes import NATIVE_SIZE
from lib_lora.jobs.client import append_event
from lib_lora.jobs.queue import Queue
from lib_lora.train.config import TrainConfig
from lib_lora.ui.preparation import Preparation
from lib_lora.ui.request import Requests
from lib_lora.ui.train_service import TrainService
from tests.ui.hosts import FolderHost

DEMO = Path(__file__).resolve().parents[2] / "lib_lora" / "demo"
DONUTS = DEMO / "dataset" / "donut"
SMALL = {"data.size": "64", "network.rank": "4"}


@pytest.fixture
def host(tmp_path):
    return FolderHost(tmp_path, DEMO / "base.safetensors")


def service_of(host, lacking=None):
    ready = Preparation(lambda extra: lacking, lambda tell, extra: None, True)
    requests = Requests(host, host.folder)
    sizes = {host.base: 64}
    return TrainService(host, Queue(host.folder / "runs", "this"), ready, requests, sizes)


def filled(name="cat", fit=False, **settings):
    own = {"data.folder": str(DONUTS), "saving.out": name}
    return {"settings": {**SMALL, **own, **settings}, "fit": fit}


def test_the_page_knows_the_model_in_use_and_every_preset_reads(host):
    page = service_of(host).page()
    json.dumps(page, allow_nan=False)
    assert page["bases"] == [
        {"name": "base", "file": str(host.base), "loaded": True, "size": 64},
    ]
    names = [preset["id"] for preset in page["presets"]]
    assert names[0] == ""
    assert "style" in names
    requests = Requests(host, host.folder)
    for preset in page["presets"]:
        for family, settings in preset["settings"].items():
            assert requests.sketch(settings).data.size == NATIVE_SIZE[family]


def test_a_forecast_names_every_phase_against_what_is_free(host):
    plan = service_of(host).plan({"settings": SMALL, "fit": False})
    assert plan["family"] == "sd1"
    assert {"Pictures", "Captions", "Training"} <= {phase["label"] for phase in plan["phases"]}
    assert all(0 < phase["bytes"] < plan["free"] for phase in plan["phases"])
    assert plan["fits"]
    assert plan["choices"] == []
    larger = service_of(host).plan({"settings": {**SMALL, "data.size": "512"}, "fit": False})
    assert peak(larger) > peak(plan)


def peak(plan):
    return max(phase["bytes"] for phase in plan["phases"])


def test_what_is_chosen_for_the_machine_is_told_and_trained_with(host):
    service = service_of(host)
    settings = {"run.precision": "bf16"}
    plan = service.plan({"settings": {**SMALL, **settings}, "fit": True})
    assert plan["chosen"]["run.precision"] == "fp32"
    assert any("fp32" in sentence for sentence in plan["choices"])
    asked = [
        Queue(host.folder / "runs").find(service.add(filled(name, fit, **settings))["run"]).asked()
        for name, fit in (("free", False), ("fitted", True))
    ]
    assert [each["config"]["run"]["precision"] for each in asked] == ["bf16", "fp32"]


def test_a_filled_form_becomes_a_run_that_waits(host):
    service = service_of(host)
    run = service.add(filled())["run"]
    state = service.state("", 0)
    assert (state["run"]["id"], state["run"]["status"]) == (run, "queued")
    assert state["owner"] == ""
    config = TrainConfig.from_dict(Queue(host.folder / "runs").find(run).asked()["config"])
    assert config.saving.out == host.network_folder() / "cat.safetensors"
    with pytest.raises(ConfigError, match="queue"):
        service.add(filled())


def test_nothing_begins_without_the_workers_environment(host):
    service = service_of(host, "diffusers is missing.")
    with pytest.raises(UsageError, match="diffusers is missing"):
        service.add(filled())
    assert service.state("", 0)["environment"]["sentence"] == "diffusers is missing."


def test_a_run_is_asked_only_what_the_page_offers(host):
    service = service_of(host)
    run = service.add(filled())["run"]
    for wrong in ("delete", "kill", "", None):
        with pytest.raises(UsageError):
            service.command(run, {"command": wrong})
    service.command(run, {"command": "pause"})
    assert service.state(run, 0)["run"]["commands"] == ["resume", "remove"]
    service.command(run, {"command": "remove"})
    assert service.state("", 0)["runs"] == []
    with pytest.raises(UsageError, match="no run"):
        service.command(run, {"command": "pause"})


def test_the_chosen_run_is_shown_else_the_newest(host):
    service = service_of(host)
    first = service.add(filled("first"))["run"]
    second = service.add(filled("second"))["run"]
    assert service.state("", 0)["run"]["id"] == second
    assert service.state(first, 0)["run"]["id"] == first
    assert [run["name"] for run in service.state("", 0)["runs"]] == ["second", "first"]
    append_event(Queue(host.folder / "runs").find(first), "paused")
    # An unknown run is no reason to leave out what another has told before.
    assert service.state("gone", 99)["run"]["fresh"]


def test_the_report_on_pictures(host, tmp_path):
    told = service_of(host).dataset({"folder": str(DONUTS), "size": "64"})
    assert ["Pictures", "24"] in [list(pair) for pair in told["figures"]]
    assert told["problems"] == []
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"no picture")
    (tmp_path / "broken" / "b.png").write_bytes((DONUTS / "donut-01.png").read_bytes())
    told = service_of(host).dataset({"folder": str(tmp_path / "broken"), "size": "x"})
    assert len(told["problems"]) == 1
    assert told["problems"][0].startswith("a.png ")
    with pytest.raises(ConfigError):
        service_of(host).dataset({"folder": ""})


def test_settings_are_texts(host):
    for settings in ({"network.rank": 4}, {"network.rank": None}):
        with pytest.raises(ConfigError, match="Expects a text"):
            service_of(host).plan({"settings": settings})
