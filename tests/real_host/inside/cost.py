"""What a start of the WebUI costs in processor time: importing torch, and of our extension its script, its tab and its routes."""

import time
from contextlib import contextmanager
from pathlib import Path

OURS = "lora_loom.py"
SECONDS = {}


@contextmanager
def counted(part):
    """Count what the body takes."""
    begin = time.thread_time()
    yield
    SECONDS[part] = time.thread_time() - begin


def count_our_script():
    """Let the WebUI count the loading of our script."""
    from modules import script_loading

    original = script_loading.load_module

    def load_module(path):
        if Path(path).name != OURS:
            return original(path)
        with counted("script"):
            return original(path)

    script_loading.load_module = load_module


def callbacks_of_ours(event):
    """Return what our extension has registered for an event."""
    from modules import script_callbacks

    registered = script_callbacks.callback_map[f"callbacks_{event}"]
    return [each.callback for each in registered if Path(each.script).name == OURS]
