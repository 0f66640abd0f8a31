"""Callbacks of extensions; what one of them raises is swallowed."""

from types import SimpleNamespace

registered = {}
swallowed = []


class _Callbacks:
    """The callbacks of every event, by the host's name of their list."""

    def __getitem__(self, name):
        return registered.setdefault(name.removeprefix("callbacks_"), [])


callback_map = _Callbacks()


def add_callback(callbacks, fun, *, name=None, category="unknown", filename=None):
    callbacks.append(fun)


def _registrar(event):
    return lambda callback, *, name=None: registered.setdefault(event, []).append(callback)


on_cfg_denoiser = _registrar("cfg_denoiser")
on_cfg_after_cfg = _registrar("cfg_after_cfg")
on_ui_tabs = _registrar("ui_tabs")
on_app_started = _registrar("app_started")
on_script_unloaded = _registrar("script_unloaded")


def call(event, *arguments):
    for callback in registered.get(event, ()):
        try:
            callback(*arguments)
        except Exception as error:
            swallowed.append(error)


def cfg_denoiser_callback(denoiser, x, sigma, cond, uncond):
    params = SimpleNamespace(
        denoiser=denoiser, x=x, sigma=sigma, text_cond=cond, text_uncond=uncond
    )
    call("cfg_denoiser", params)
    return params


def cfg_after_cfg_callback(denoised):
    call("cfg_after_cfg", SimpleNamespace(x=denoised))
