"""What the WebUI runs at every start, run as it runs it: from another folder, with its own packages on the path."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.test_environment import WEBUI, wheel

ROOT = Path(__file__).resolve().parents[1]
FILES = (
    "install.py",
    "lib_lora/__init__.py",
    "lib_lora/errors.py",
    "lib_lora/jobs/__init__.py",
    "lib_lora/jobs/environment.py",
    "lib_lora/jobs/offline.py",
    "lib_lora/jobs/pip.py",
    "lib_lora/jobs/ready.py",
)
# Of the processor time of `python -c pass`, some 15 ms alone on a machine of 2020: less than 50 ms beyond it. Measured: 0.25.
TIMES_NOTHING = 1


class Extension:
    """The real install.py in an extension folder with a list of its own, and a WebUI whose torch and launch must not be imported."""

    def __init__(self, root):
        self.root, self.site, self.shelf = root / "ext", root / "site", root / "shelf"
        for name in FILES:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        self.pins = self.root / "requirements" / "worker-small.txt"
        for folder in (self.pins.parent, self.site, self.shelf):
            folder.mkdir()
        self.pins.write_text("probe_one==1.0  # a\n")
        wheel(self.shelf, "probe_one")
        for name, version in WEBUI.items():
            (self.site / f"{name}-{version}.dist-info").mkdir()
        for name in ("torch", "launch"):
            (self.site / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')\n")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
        self.env |= {
            "PYTHONPATH": str(self.site),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.shelf),
            "PIP_CONFIG_FILE": os.devnull,
        }

    def install(self):
        """Return the exit code and what was printed, errors too."""
        done = subprocess.run(
            [sys.executable, str(self.root / "install.py")],
            env=self.env,
            cwd=self.site,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout


@pytest.fixture
def extension(tmp_path):
    return Extension(tmp_path)


def test_it_prepares_once_and_says_one_line(extension):
    before = sorted(extension.site.rglob("*"))
    code, first = extension.install()
    assert code == 0
    assert first == (
        "LoRA Loom: prepared probe_one 1.0 for the worker; the WebUI's packages are as they were\n"
    )
    assert len(list((extension.root / ".worker").glob("*/probe_one.py"))) == 1
    assert extension.install() == (0, "LoRA Loom: ready\n")
    assert sorted(extension.site.rglob("*")) == before


def test_a_failure_is_one_line_and_no_error(extension):
    extension.pins.write_text("probe_one==9.0  # not there\n")
    code, said = extension.install()
    assert code == 0
    assert said.startswith("LoRA Loom: probe_one 9.0 could not be installed: ")
    assert said.count("\n") == 1


def test_a_folder_that_the_console_cannot_write_is_told_all_the_same(tmp_path):
    """A console or a pipe on Windows has the system's old encoding, which lacks most of the world's letters."""
    extension = Extension(tmp_path / "学习")
    extension.env |= {"PYTHONIOENCODING": "cp1252"}
    (extension.root / ".worker").touch()
    code, said = extension.install()
    assert code == 0, said
    assert said.startswith("LoRA Loom: The worker's packages could not be installed: ")
    assert r"\u5b66" in said


def test_what_cannot_be_helped_is_said(extension):
    shutil.rmtree(next(extension.site.glob("torch-*")))
    (extension.site / "torch-1.13.1.dist-info").mkdir()
    assert extension.install() == (
        0,
        "LoRA Loom: Training needs torch 2.1 or newer; the WebUI has 1.13.1.\n",
    )


def processor_seconds(*arguments):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_nothing_to_do_costs_next_to_nothing(extension, monkeypatch):
    extension.install()
    for name, value in extension.env.items():
        monkeypatch.setenv(name, value)
    pairs = [
        (processor_seconds("-c", "pass"), processor_seconds(str(extension.root / "install.py")))
        for _ in range(10)
    ]
    nothing, all_of_it = (min(times) for times in zip(*pairs, strict=True))
    assert all_of_it - nothing < TIMES_NOTHING * nothing, f"{nothing:.3f} s and {all_of_it:.3f} s"


def imported(env, *arguments):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_nothing_to_do_imports_nothing(extension):
    script = str(extension.root / "install.py")
    assert "lib_lora.jobs.environment" in imported(extension.env, script)
    more = imported(extension.env, script) - imported(extension.env, "-c", "pass")
    assert more == {"lib_lora", "lib_lora.jobs", "lib_lora.jobs.ready"}


def harms(extension):
    (overlay,) = (path for path in (extension.root / ".worker").iterdir() if path.is_dir())
    yield lambda: (overlay / "probe_one.py").write_text("VERS")
    yield lambda: (overlay / "installed.json").unlink()
    yield lambda: shutil.rmtree(overlay)
    yield lambda: extension.pins.write_text("probe_one==1.0  # b\n")


def test_what_has_changed_since_is_noticed(extension):
    extension.install()
    for harm in harms(extension):
        harm()
        assert "prepared probe_one 1.0" in extension.install()[1]
        assert extension.install() == (0, "LoRA Loom: ready\n")
    torch = next(extension.site.glob("torch-*"))
    torch.rename(torch.with_name("torch-1.13.1.dist-info"))
    assert "Training needs torch" in extension.install()[1]
