"""What the tests ask of the WebUI besides its API."""

import gc
import hashlib
import runpy

import open_clip
import torch
from cost import SECONDS, callbacks_of_ours, counted
from fastapi import FastAPI
from fastapi.testclient import TestClient
from modules import initialize, script_callbacks, sd_hijack, sd_models, sd_unet, shared
from modules.api.api import Api
from modules.call_queue import queue_lock
from watch import Watch
from webui_host import Host, kept


def lending():
    """Return our lending of the GPU; the extension is not there in every process of the tests."""
    from lib_lora.hosts.a1111_gpu import HAND_OVER

    return HAND_OVER


def held():
    """Return the bytes of all memory that some tensor has."""
    gc.collect()
    tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]
    memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(memory.values())


def serve():
    """Return a client of the API, in this process."""
    app = FastAPI()
    script_callbacks.before_ui_callback()
    Api(app, queue_lock)
    script_callbacks.app_started_callback(None, app)
    return TestClient(app, raise_server_exceptions=False)


class Requests:
    """Every method answers one request; arguments and answers are JSON."""

    def __init__(self):
        self._client, self._watch = serve(), Watch()

    def post(self, path, body):
        """Ask the API; returns the status and the body of its answer."""
        response = self._client.post(path, json=body)
        return {"status": response.status_code, "body": response.json()}

    def watch(self, path, body, plan=None, at=None):
        """Ask the API for a picture and tell every call of the model; `at`: mishaps by the index of their evaluation."""
        mishaps = {int(index): getattr(self, f"_{name}") for index, name in (at or {}).items()}
        self._watch.begin(plan, mishaps)
        answer = self.post(path, body)
        return {**answer, "seen": self._watch.end()}

    def apply(self):
        """Call the model directly, twice alike; returns a hash of what it answers and the number of hooks on its modules."""
        model = shared.sd_model
        draw = torch.Generator().manual_seed(1)
        x = torch.randn(2, 4, 8, 8, generator=draw).to(shared.device)
        times = torch.tensor([100.0, 900.0]).to(shared.device)
        width = model.cond_stage_model.wrapped.transformer.config.hidden_size
        words = torch.randn(2, 77, width, generator=draw).to(shared.device)
        with torch.no_grad():
            answer = model.apply_model(x, times, {"c_crossattn": [words], "c_concat": []})
        hooks = sum(
            len(module._forward_hooks) + len(module._forward_pre_hooks)
            for module in model.modules()
        )
        return {"hash": digest(answer), "hooks": hooks}

    def state(self):
        """Tell how the WebUI computes."""
        model = shared.sd_model  # waits until one is loaded, and only that sets the optimizer
        optimizer = sd_hijack.current_optimizer
        return {
            "attention": optimizer.name if optimizer else "none",
            "device": str(shared.device),
            "lowvram": bool(model.lowvram),
            "checkpoint": model.sd_checkpoint_info.model_name,
            "torch": torch.__version__,
        }

    def copies(self):
        """Count the modules of the model of which the WebUI keeps a copy."""
        name = "network_weights_backup"
        held = [getattr(module, name, None) for module in shared.sd_model.modules()]
        return sum(one is not None for one in held)

    def lend(self, refuse=False):
        """Take the models off the device; returns how many tensors of them are there yet, and whether asking for one loads it."""
        models = list(sd_models.model_data.loaded_sd_models)
        lending().release(refuse)
        there = [tensor for model in models for tensor in model.parameters()]
        return {
            "on the device": sum(tensor.device.type != "meta" for tensor in there),
            "asked for": shared.sd_model is not None,
        }

    def take_back(self):
        """Give the device back."""
        lending().restore()

    def choose(self, checkpoint):
        """Choose a checkpoint as the settings hold it, which loads nothing yet."""
        info = sd_models.get_closet_checkpoint_match(checkpoint)
        shared.opts.data["sd_model_checkpoint"] = info.title

    def differing_layers(self, shifted=False):
        """Tell which layers are found to differ from the file; shifted: while every weight of the UNet is another."""
        from lib_lora.hosts.a1111_host import A1111Host

        weights = [
            tensor
            for module in shared.sd_model.model.diffusion_model.modules()
            for tensor in (
                getattr(module, "weight", None),
                getattr(module, "network_weights_backup", None),
            )
            if tensor is not None and shifted
        ]
        kept = [tensor.detach().clone() for tensor in weights]
        for tensor in weights:
            tensor.data += 0.01
        found = list(A1111Host().differing_layers())
        for tensor, before in zip(weights, kept, strict=True):
            tensor.data.copy_(before)
        return found

    def memory(self, tags):
        """Draw a picture; returns the comments below it, and what tensors take more at an evaluation than in one without tags."""
        host, seen = Host(), []
        script_callbacks.on_cfg_denoised(lambda params: seen.append(held()))
        try:
            host.draw("a fox", steps=1)
            picture = host.picture(f"a fox {tags}", steps=1)
            host.make(picture)
        finally:
            host.forget()
        without, taken = seen
        return {"comments": list(picture.comments), "bytes": taken - without}

    def begin_pages(self):
        """Build our tab and add its routes, as the WebUI does with a page; returns what our start and importing torch have cost."""
        (tabs,), (started,) = (callbacks_of_ours(event) for event in ("ui_tabs", "app_started"))
        app = FastAPI()
        with counted("tab"):
            tabs()
        with counted("routes"):
            started(None, app)
        tabs.__self__.close()
        return SECONDS

    def contract(self, file):
        """Run the tests of a file on this WebUI; returns what each raised by its name."""
        tests = runpy.run_path(file)
        return {name: kept(test) for name, test in tests.items() if name.startswith("test_")}

    def add_architectures(self, folder):
        """Let open_clip know the models of a folder."""
        open_clip.add_model_config(folder)

    def compile_unet(self, name):
        """Offer a UNet that answers zeros, under a name."""

        class Compiled(sd_unet.SdUnet):
            def forward(self, x, timesteps, context, *args, **kwargs):
                return torch.zeros_like(x)

        option = sd_unet.SdUnetOption()
        option.label, option.create_unet = name, Compiled
        script_callbacks.on_list_unets(lambda unets: unets.append(option))
        sd_unet.list_unets()

    def reload_ui(self):
        """Do what the button does, without the server: unload the scripts and load them again."""
        script_callbacks.app_reload_callback()
        script_callbacks.script_unloaded_callback()
        initialize.initialize_rest(reload_script_modules=True)
        self._client = serve()
        self._watch.attend()

    def _raise(self):
        middle = shared.sd_model.model.diffusion_model.middle_block

        def hook(module, inputs):
            handle.remove()
            raise RuntimeError("out of memory")

        handle = middle.register_forward_pre_hook(hook)

    def _interrupt(self):
        shared.state.interrupt()

    def _skip(self):
        shared.state.skip()


def digest(tensor):
    return hashlib.sha256(tensor.contiguous().cpu().numpy().tobytes()).hexdigest()
