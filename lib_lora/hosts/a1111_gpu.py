"""Lending the WebUI's GPU to a training run: its models leave the device, and come back as they were.

While the GPU is lent, pictures either wait in the WebUI's own queue or are refused in a sentence; a model that something asks for in
passing is not loaded.
"""

from __future__ import annotations

import gc
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules import devices, lowvram, patches, sd_models, sd_unet, sd_vae, shared
from modules.call_queue import queue_lock

from lib_lora.errors import LoraError
from lib_lora.hosts.a1111 import REFUSE_DURING_RUN, CutIn
from lib_lora.jobs.client import Run
from lib_lora.jobs.recent import recent_runs

log = logging.getLogger(__name__)

REFUSED = (
    "LoRA Loom is training on the GPU; pictures can be made again when the run is over or paused."
)
_LOADERS = ("load_model", "reload_model_weights")


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The model that the WebUI had. asked: the checkpoint that its settings named at that time."""

    checkpoint: Any
    asked: Any
    vae: Any


class HandOver:
    """The GPU of this process; several threads may ask for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent, self._refuses = False, False
        self._loaded: _Loaded | None = None

    @property
    def lent(self) -> bool:
        """Tell whether the GPU is lent."""
        return self._lent

    def release(self, refuse: bool) -> None:
        """Take every model off the device, once the picture that is being made is done; harmless when it is lent already.

        refuse: pictures asked for from now on are refused; otherwise they wait until `restore`.
        """
        with self._lock:
            if self._lent:
                return
            queue_lock.acquire()
            self._lent, self._refuses = True, refuse
            try:
                self._loaded = _take_off()
            except BaseException:
                self._refuses = False
                self._give_back()
                raise
            if refuse:
                for name in _LOADERS:
                    patches.patch(__name__, sd_models, name, _refuse)
                queue_lock.release()

    def restore(self) -> None:
        """Let pictures be made again and load the model that was taken off; harmless when nothing is lent."""
        with self._lock:
            if not self._lent:
                return
            if self._refuses:
                queue_lock.acquire()
                for name in _LOADERS:
                    patches.undo(__name__, sd_models, name)
            self._give_back()

    def _give_back(self) -> None:
        loaded, self._loaded = self._loaded, None
        try:
            # From here on the WebUI loads by itself when a model is asked for, whatever becomes of our own loading.
            sd_models.model_data.was_loaded_at_least_once = False
            if loaded is not None:
                _load(loaded)
        except Exception:
            log.exception(
                "the WebUI's model could not be loaded again; it loads with the next picture"
            )
        finally:
            self._lent = False
            queue_lock.release()


HAND_OVER = HandOver()
"""Of this process: it outlives a reload of the WebUI's scripts."""


def begin_lent(runs: Path) -> None:
    """Lend the GPU from the start when a run in this folder has it already, and let the WebUI load no model."""
    if any(Run(folder).state().at_work for folder in recent_runs(runs)):
        shared.cmd_opts.skip_load_model_at_start = True
        HAND_OVER.release(refuse=shared.opts.data.get(REFUSE_DURING_RUN, False))


def _take_off() -> _Loaded | None:
    """Free the device of every loaded model, and return which was in use."""
    if CutIn.installed is not None:
        CutIn.installed.close()  # the networks of the last picture are on the device too
    data = sd_models.model_data
    loaded, models = None, list(data.loaded_sd_models)
    if data.sd_model is not None:
        models.append(data.sd_model)
        asked = shared.opts.data.get("sd_model_checkpoint")
        loaded = _Loaded(data.sd_model.sd_checkpoint_info, asked, sd_vae.loaded_vae_file)
        sd_unet.apply_unet("None")
    # A module that lowvram keeps on the device would be moved again by the next model.
    lowvram.send_everything_to_cpu()
    for model in models:
        sd_models.send_model_to_trash(model)
    data.loaded_sd_models.clear()
    data.sd_model = None
    sd_vae.delete_base_vae()
    sd_vae.clear_loaded_vae()
    data.was_loaded_at_least_once = True  # or asking for the model would load it
    gc.collect()
    devices.torch_gc()
    return loaded


def _load(loaded: _Loaded) -> None:
    # Another checkpoint may have been chosen in the meantime.
    same = shared.opts.data.get("sd_model_checkpoint") == loaded.asked
    with sd_models.model_data.lock:
        if sd_models.model_data.sd_model is None:
            sd_models.load_model(loaded.checkpoint if same else None)
    if same and sd_vae.loaded_vae_file != loaded.vae:
        sd_vae.reload_vae_weights(sd_models.model_data.sd_model, loaded.vae)


def _refuse(*_: object, **__: object) -> None:
    raise LoraError(REFUSED)
