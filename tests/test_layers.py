"""The one rule of the architecture: imports go downward only. Read from the source, so that nothing has to be importable."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lib_lora"

# What each part of the library may import of the others; a part may always import itself and what its own parts may.
CORE = {"errors", "host", "networks", "schedule"}
FORMATS = CORE | {"families", "formats"}
SIBLINGS = {"apply", "merge", "train"}
EVERYTHING = FORMATS | SIBLINGS | {"jobs", "hosts", "ui"}
MAY_IMPORT = {
    "errors": set(),
    "host": set(),
    "networks": {"errors"},
    "schedule": {"errors"},
    "families": {"errors", "networks"},
    "formats": {"errors", "networks", "families"},
    "apply": FORMATS,
    "merge": FORMATS,
    "train": FORMATS,
    "jobs": FORMATS | SIBLINGS,
    "hosts": EVERYTHING - {"ui"},
    "ui": EVERYTHING,
    "demo": EVERYTHING | {"cli"},
    "cli": EVERYTHING | {"demo"},
}

# Who may import a library, by the beginning of the file's path; a file not named here may not.
HOST_OF_MODELS = ("train/", "merge/export", "demo/", "hosts/diffusers", "hosts/samplers")
LIBRARIES = {
    "diffusers": HOST_OF_MODELS,
    "transformers": HOST_OF_MODELS,
    "accelerate": HOST_OF_MODELS,
    "gradio": ("ui/",),
    "fastapi": ("ui/",),
    "modules": ("hosts/a1111",),
    "networks": ("hosts/a1111",),
}
PLAIN_TRAIN = ("config", "memory", "dataset", "captions", "buckets")
STANDARD_ONLY = ("errors.py", "schedule/")
TORCH_AND_STANDARD = ("networks/",)


def imported(tree):
    """Return the dotted names that a module imports anywhere, inside functions too; relative imports count as wrong."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def problems_of(path, names):
    """Return what is wrong with the imports of a file, given by its path inside the package."""
    part = path.split("/")[0].removesuffix(".py")
    wrong = []
    for name in names:
        top, _, rest = name.partition(".")
        if top == "lib_lora":
            other = rest.split(".")[0]
            if other != part and other not in MAY_IMPORT[part]:
                wrong.append(f"{part} may not import {other}")
        elif top in LIBRARIES and not path.startswith(LIBRARIES[top]):
            wrong.append(f"{top} may not be imported here")
        elif top in ("diffusers", "transformers", "accelerate") and path.startswith(
            tuple(f"train/{name}" for name in PLAIN_TRAIN)
        ):
            wrong.append(f"{top} may not be imported by a plain part of train")
        standard = top in sys.stdlib_module_names or top == "lib_lora"
        if path.startswith(STANDARD_ONLY) and not standard:
            wrong.append(f"{top} is not of the standard library")
        if path.startswith(TORCH_AND_STANDARD) and not standard and top != "torch":
            wrong.append(f"{top} is neither torch nor of the standard library")
    return wrong


SOURCES = sorted(path for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_go_downward_only(file):
    names = imported(ast.parse(file.read_text(encoding="utf-8")))
    assert problems_of(file.relative_to(PACKAGE).as_posix(), names) == []


def test_package_inits_are_empty():
    full = [str(p) for p in SOURCES if p.name == "__init__.py" and p.read_text().strip()]
    assert full == []


def test_every_part_of_the_library_has_a_place():
    parts = {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in SOURCES}
    assert parts - {"__init__"} <= set(MAY_IMPORT)


def test_loom_itself_needs_the_standard_library_only():
    """Run with `-S`, which leaves installed packages out, as before the environment exists."""

    def run(code):
        return subprocess.run(
            [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True
        )

    done = run("import loom, sys; sys.exit(loom.main(['--help']))")
    assert done.returncode == 0, done.stderr
    assert "No module named 'torch'" in run("import torch").stderr


@pytest.mark.parametrize(
    ("path", "name", "problem"),
    [
        ("networks/lora.py", "lib_lora.formats.header.read_header", "may not import formats"),
        ("networks/lora.py", "numpy", "neither torch"),
        ("schedule/curve.py", "torch", "not of the standard library"),
        ("apply/session.py", "lib_lora.train.loop.train", "may not import train"),
        ("merge/bake.py", "diffusers.UNet2DConditionModel", "may not be imported here"),
        ("train/config.py", "diffusers.DDPMScheduler", "plain part of train"),
        ("cli/serve.py", "gradio", "may not be imported here"),
        ("hosts/diffusers.py", "modules.shared", "may not be imported here"),
        ("hosts/diffusers.py", "lib_lora.ui.page", "may not import ui"),
    ],
)
def test_the_rules_find_what_they_are_for(path, name, problem):
    (found,) = problems_of(path, [name])
    assert problem in found
