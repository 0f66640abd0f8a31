"""The checkpoints on disk and the models in memory."""

import threading
from types import SimpleNamespace

from webui_model import Model

from modules import sd_vae, shared


class ModelData:
    def __init__(self):
        self.sd_model, self.loaded_sd_models = None, []
        self.was_loaded_at_least_once = False
        self.lock = threading.Lock()

    def get_sd_model(self):
        if not self.was_loaded_at_least_once:
            with self.lock:
                load_model()
        return self.sd_model


model_data = ModelData()
checkpoints_list = {}


def register(file):
    """Put a checkpoint on the list, as `list_models` does for every file of a folder."""
    title = file.name
    checkpoints_list[title] = SimpleNamespace(
        filename=str(file), title=title, name_for_extra=file.stem
    )
    return checkpoints_list[title]


def select_checkpoint():
    chosen = shared.opts.data.get("sd_model_checkpoint")
    return checkpoints_list.get(chosen) or next(iter(checkpoints_list.values()))


def list_models():
    pass


def load_model(checkpoint_info=None, already_loaded_state_dict=None):
    info = checkpoint_info or select_checkpoint()
    model = Model(info.filename)
    model.sd_checkpoint_info = info
    shared.opts.data["sd_model_checkpoint"] = info.title
    sd_vae.delete_base_vae()
    sd_vae.clear_loaded_vae()
    sd_vae.loaded_vae_file = sd_vae.resolve_vae(info.filename).vae
    model_data.sd_model = model
    model_data.loaded_sd_models.insert(0, model)
    model_data.was_loaded_at_least_once = True
    return model


def reload_model_weights(sd_model=None, info=None, forced_reload=False):
    return model_data.sd_model or load_model(info)


def send_model_to_trash(model):
    model.to(device="meta")
