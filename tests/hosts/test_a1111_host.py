"""The WebUI's files and GPU as the pages see them, on the stand-in that tests/host_contract.py binds to v1.10.1."""

import threading

import networks
import pytest
import torch
from modules import call_queue, sd_models, sd_unet, sd_vae, shared
from webui_host import unet_modules
from webui_model import Model

from lib_lora.errors import LoraError, UsageError
from lib_lora.formats.stream import write_tensors
from lib_lora.hosts import a1111_gpu
from lib_lora.hosts.a1111_gpu import REFUSED, HandOver
from lib_lora.hosts.a1111_host import A1111Host
from lib_lora.jobs.client import create
from lib_lora.jobs.owner import this_process
from lib_lora.jobs.protocol import EventLog, RunFolder


@pytest.fixture
def webui(tmp_path, monkeypatch):
    """Two checkpoints in a folder, the second of which is loaded."""
    monkeypatch.setattr(shared, "opts", shared.Options())
    monkeypatch.setattr(sd_models, "model_data", sd_models.ModelData())
    monkeypatch.setattr(sd_models, "checkpoints_list", {})
    monkeypatch.setattr(shared.cmd_opts, "lora_dir", str(tmp_path / "lora"))
    (tmp_path / "lora").mkdir()
    for name in ("first", "second"):
        file = tmp_path / f"{name}.safetensors"
        write_tensors(file, Model(file).checkpoint(), {})
        info = sd_models.register(file)
    sd_models.load_model(info)
    yield sd_models.model_data
    sd_vae.clear_loaded_vae()
    networks.available_networks.clear()
    networks.available_network_aliases.clear()


@pytest.fixture
def hand_over():
    hand_over = HandOver()
    yield hand_over
    hand_over.restore()


def output(model):
    return model.apply_model(
        torch.ones(1, 4, 2, 2).double(), torch.ones(1).double(), torch.ones(1, 8).double()
    )


def test_released_models_leave_the_device_and_nothing_loads_them(webui, hand_over):
    taken = webui.sd_model
    hand_over.release(refuse=False)
    assert {tensor.device.type for tensor in taken.parameters()} == {"meta"}
    assert (webui.loaded_sd_models, webui.get_sd_model()) == ([], None)


def test_pictures_wait_until_the_gpu_is_back(webui, hand_over):
    hand_over.release(refuse=False)
    assert not call_queue.queue_lock.acquire(blocking=False)
    hand_over.restore()
    with call_queue.queue_lock:
        assert not hand_over.lent


def test_the_restored_model_computes_what_it_did(webui, hand_over):
    before = output(webui.sd_model)
    hand_over.release(refuse=False)
    hand_over.restore()
    assert webui.sd_model.sd_checkpoint_info.title == "second.safetensors"
    assert torch.equal(output(webui.sd_model), before)


def test_pictures_are_refused_in_a_sentence_where_that_is_set(webui, hand_over):
    hand_over.release(refuse=True)
    for ask in (sd_models.load_model, sd_models.reload_model_weights):
        with pytest.raises(LoraError, match=REFUSED[:20]), call_queue.queue_lock:
            ask()
    hand_over.restore()
    assert sd_models.reload_model_weights() is webui.sd_model


def test_the_release_waits_for_the_picture_that_is_being_made(webui, hand_over):
    call_queue.queue_lock.acquire()
    release = threading.Thread(target=hand_over.release, args=(False,))
    release.start()
    release.join(0.1)
    assert release.is_alive()
    assert webui.sd_model is not None
    call_queue.queue_lock.release()
    release.join(10)
    assert webui.sd_model is None


def test_twice_is_once(webui, hand_over):
    for _ in range(2):
        hand_over.release(refuse=False)
    for _ in range(2):
        hand_over.restore()
    assert len(webui.loaded_sd_models) == 1
    assert call_queue.queue_lock.acquire(blocking=False)
    call_queue.queue_lock.release()


def test_a_checkpoint_chosen_meanwhile_is_the_one_that_is_loaded(webui, hand_over):
    hand_over.release(refuse=False)
    shared.opts.data["sd_model_checkpoint"] = "first.safetensors"
    hand_over.restore()
    assert webui.sd_model.sd_checkpoint_info.title == "first.safetensors"


def test_the_autoencoder_that_was_set_comes_back(webui, hand_over):
    sd_vae.reload_vae_weights(webui.sd_model, "other.vae.safetensors")
    hand_over.release(refuse=False)
    assert sd_vae.loaded_vae_file is None
    hand_over.restore()
    assert sd_vae.loaded_vae_file == "other.vae.safetensors"


def test_without_a_loaded_model_none_is_loaded_afterwards(webui, hand_over):
    webui.sd_model = None
    webui.loaded_sd_models.clear()
    hand_over.release(refuse=False)
    assert webui.get_sd_model() is None
    hand_over.restore()
    assert webui.sd_model is None
    assert webui.get_sd_model() is not None


def test_a_model_that_cannot_be_loaded_again_leaves_the_queue_open(
    webui, hand_over, monkeypatch, caplog
):
    hand_over.release(refuse=False)
    monkeypatch.setattr(sd_models, "load_model", lambda info=None: 1 / 0)
    hand_over.restore()
    assert "could not be loaded again" in caplog.text
    assert call_queue.queue_lock.acquire(blocking=False)
    call_queue.queue_lock.release()
    assert not webui.was_loaded_at_least_once


def test_a_unet_of_another_program_is_put_away(webui, hand_over, monkeypatch):
    monkeypatch.setattr(sd_unet, "current_unet", object())
    hand_over.release(refuse=False)
    assert sd_unet.current_unet is None


def test_a_webui_that_starts_beside_a_run_at_work_loads_no_model(webui, tmp_path, monkeypatch):
    monkeypatch.setattr(shared.cmd_opts, "skip_load_model_at_start", False)
    run = create("train", {}, tmp_path / "runs" / "one")
    a1111_gpu.begin_lent(tmp_path / "runs")
    assert (shared.cmd_opts.skip_load_model_at_start, a1111_gpu.HAND_OVER.lent) == (False, False)
    # This process will do for a worker that lives.
    me = this_process("worker")
    EventLog(RunFolder(run.folder).events).write("hello", {"pid": me.pid, "started": me.started})
    a1111_gpu.begin_lent(tmp_path / "runs")
    assert (shared.cmd_opts.skip_load_model_at_start, a1111_gpu.HAND_OVER.lent) == (True, True)
    a1111_gpu.HAND_OVER.restore()


def test_the_loaded_checkpoint_comes_first_with_its_sidecar_and_vae(webui, tmp_path, monkeypatch):
    (tmp_path / "second.yaml").write_text("model: {}\n")
    monkeypatch.setattr(sd_vae, "resolved", str(tmp_path / "other.vae.safetensors"))
    first, second = A1111Host().checkpoints()
    assert (first.name, first.config, first.vae) == (
        "second",
        tmp_path / "second.yaml",
        tmp_path / "other.vae.safetensors",
    )
    assert (second.name, second.config) == ("first", None)


def test_asking_for_checkpoints_loads_none(webui):
    webui.sd_model, webui.was_loaded_at_least_once = None, False
    assert [info.name for info in A1111Host().checkpoints()] == ["second", "first"]
    assert webui.sd_model is None


def test_a_loaded_model_is_as_its_file(webui):
    assert A1111Host().differing_layers() == []


def test_a_merge_that_was_not_saved_is_named(webui):
    proj_in = unet_modules(webui.sd_model)[1]
    proj_in.weight.data += 0.01
    assert A1111Host().differing_layers() == ["unet.down_blocks.0.attentions.0.proj_in"]
    proj_in.network_weights_backup = proj_in.weight - 0.01
    proj_in.network_weights_backup = (
        Model("").model.diffusion_model.input_blocks[1][1].proj_in.weight
    )
    assert A1111Host().differing_layers() == []


def test_half_of_a_wider_file_is_the_same_model(webui):
    for module in webui.sd_model.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.half()
    assert A1111Host().differing_layers() == []


@pytest.mark.parametrize("name", ["lowvram", "medvram", "medvram_sdxl"])
def test_memory_switches_are_told(webui, monkeypatch, name):
    monkeypatch.setattr(shared.cmd_opts, name, True)
    assert A1111Host().flags().memory == name.replace("_", "-")


def test_no_half_is_no_half_of_the_vae_either(webui, monkeypatch):
    monkeypatch.setattr(shared.cmd_opts, "no_half", True)
    flags = A1111Host().flags()
    assert (flags.memory, flags.half, flags.half_vae) == ("normal", False, False)


@pytest.mark.parametrize(("name", "value"), [("precision", "full"), ("upcast_sampling", True)])
def test_computing_in_full_is_no_half(webui, monkeypatch, name, value):
    monkeypatch.setattr(shared.cmd_opts, name, value)
    flags = A1111Host().flags()
    assert (flags.half, flags.half_vae) == (False, True)


def test_a_network_in_the_folder_is_made_known(webui, tmp_path):
    (tmp_path / "lora" / "mine.safetensors").write_bytes(b"")
    A1111Host().add_network(tmp_path / "lora" / "mine.safetensors")
    assert A1111Host().networks() == [tmp_path / "lora" / "mine.safetensors"]


def test_a_network_from_elsewhere_is_copied_but_over_no_other(webui, tmp_path):
    file = tmp_path / "mine.safetensors"
    file.write_bytes(b"1")
    A1111Host().add_network(file)
    assert (tmp_path / "lora" / "mine.safetensors").read_bytes() == b"1"
    with pytest.raises(UsageError, match="already"):
        A1111Host().add_network(file)
