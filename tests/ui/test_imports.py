"""The pages know no model library and no WebUI: they can be imported where none of them can."""

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("diffusers", "transformers", "accelerate", "modules"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker())
import lib_lora.ui
for module in pkgutil.walk_packages(lib_lora.ui.__path__, "lib_lora.ui."):
    importlib.import_module(module.name)
    print(module.name)
try:
    import lib_lora.hosts.diffusers
except ImportError:
    print("control: blocked")
"""


def test_pages_import_without_model_libraries():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "lib_lora.ui.server" in done.stdout
    assert "control: blocked" in done.stdout
