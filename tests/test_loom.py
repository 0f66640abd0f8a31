"""The bootstrap, run for real: a copy of `loom.py` in an empty project whose only requirement is a wheel made here.

pip finds the wheel through its own environment variables, which is also the proof that its configuration is honoured.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from lib_lora.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
INSPECT = """
import time
ENTERED = time.time()
def add_parser(commands):
    commands.add_parser("inspect").add_argument("file")
def run(args):
    import loom_probe
    print(loom_probe.__file__, args.file, f"entered={ENTERED}")
    return 7
"""
REAL = (
    "lib_lora/jobs/__init__.py",
    "lib_lora/jobs/offline.py",
    "lib_lora/jobs/pip.py",
    "loom.py",
    "lib_lora/__init__.py",
    "lib_lora/errors.py",
    "lib_lora/cli/__init__.py",
    "lib_lora/cli/main.py",
)


def wheel(folder, version):
    name = folder / f"loom_probe-{version}-py3-none-any.whl"
    info = f"loom_probe-{version}.dist-info"
    with zipfile.ZipFile(name, "w") as archive:
        archive.writestr("loom_probe.py", "")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: loom-probe\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


class Project:
    """The real `loom.py` and command line in a project whose only command is a stub that tells that it was reached."""

    def __init__(self, root):
        self.root, self.venv = root / "project", root / "project" / ".venv"
        shelf = root / "shelf"
        for folder in (
            self.root / "requirements",
            self.root / "lib_lora/cli",
            self.root / "lib_lora/jobs",
            shelf,
        ):
            folder.mkdir(parents=True)
        for name in REAL:
            shutil.copy(ROOT / name, self.root / name)
        (self.root / "lib_lora" / "cli" / "inspect.py").write_text(INSPECT)
        wheel(shelf, "1.0")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
        self.env |= {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(shelf),
            "PIP_CONFIG_FILE": os.devnull,
        }

    def require(self, text, name="standalone"):
        (self.root / "requirements" / f"{name}.txt").write_text(text)

    def start(self, *arguments):
        command = [sys.executable, str(self.root / "loom.py"), *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command,
            env=self.env,
            cwd=self.root.parent,
            stdout=pipe,
            stderr=pipe,
            text=True,
            # A shell that runs the tests in the background ignores SIGINT, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def run(self, *arguments):
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            raise
        return process.returncode, out, err


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_help_lists_every_command_and_installs_nothing(project):
    code, out, _ = project.run("--help")
    assert (code, project.run()[:2]) == (0, (0, out))
    assert all(re.search(rf"^  {name} ", out, re.M) for name in COMMANDS)
    assert not project.venv.exists()


def test_an_unknown_command_is_wrong_usage_and_installs_nothing(project):
    code, _, err = project.run("mrege")
    assert code == 2
    assert "'mrege'" in err
    assert "'merge'" in err
    assert not project.venv.exists()


def seconds_to_start_python(project):
    began = time.time()
    subprocess.run([sys.executable, "-c", "pass"], env=project.env, check=True)
    return time.time() - began


def test_first_run_installs_second_run_is_quick_and_a_changed_pin_is_noticed(project):
    project.require("loom-probe==1.0\n")
    code, out, err = project.run("inspect", "a b.safetensors")
    assert code == 7, err
    assert str(project.venv) in out
    assert "a b.safetensors" in out
    assert "Installing" not in out, "set-up must not write to stdout, which is the command's"
    assert "setting up" in err

    def seconds_to_enter():
        began = time.time()
        code, out, err = project.run("inspect", "x")
        assert (code, err) == (7, "")
        return float(re.search(r"entered=([\d.]+)", out)[1]) - began

    # Python's own start takes some 20 ms alone on a machine of 2020. Measured: 9 times that, and 35 times with a start of pip.
    turns = [(seconds_to_start_python(project), seconds_to_enter()) for _ in range(7)]
    python, entering = (min(seconds) for seconds in zip(*turns, strict=True))
    assert entering < 16 * python, (python, entering)

    # An interrupted set-up that nobody could clean up after, and a list that has changed since.
    (project.venv / "loom.unfinished").touch()
    project.require("loom-probe==2.0\n")
    code, _, err = project.run("inspect", "x")
    assert code == 1
    assert "made again" in err
    assert not project.venv.exists()


def test_a_failed_install_names_the_package_and_leaves_nothing(project):
    project.require("loom-probe==1.0\nno-such-thing==9.9\n")
    code, out, err = project.run("demo")
    assert (code, out) == (1, "")
    assert "No matching distribution found for no-such-thing==9.9" in err
    assert "Traceback" not in err
    assert not project.venv.exists()


def test_tests_bring_their_own_requirements_and_a_failure_keeps_the_environment(project):
    project.require("loom-probe==1.0\n")
    project.require("-r standalone.txt\nno-such-thing==9.9\n", "test")
    assert project.run("inspect", "x")[0] == 7
    code, _, err = project.run("test")
    assert code == 1
    assert "no-such-thing" in err
    assert project.run("inspect", "x")[0] == 7


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_set_up_leaves_nothing(project, stop):
    project.require("loom-probe==1.0\n")
    process = project.start("demo")
    deadline = time.monotonic() + 60
    while not (project.venv / "bin").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(stop)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    time.sleep(0.5)
    assert not project.venv.exists()


def test_an_environment_whose_python_was_upgraded_is_made_again(project):
    """Its packages lie in a folder named by the old version, and the new one finds none of them."""
    project.require("loom-probe==1.0\n")
    assert project.run("inspect", "x")[0] == 7
    settings = project.venv / "pyvenv.cfg"
    settings.write_text(re.sub(r"(?m)^version = .*$", "version = 3.9.2", settings.read_text()))
    code, _, err = project.run("inspect", "x")
    assert code == 7, err
    assert "made again" in err
    assert project.run("inspect", "x")[2] == ""


def test_an_environment_of_someone_else_is_left_alone(project):
    project.require("loom-probe==1.0\n")
    project.venv.mkdir()
    (project.venv / "precious").touch()
    code, _, err = project.run("demo")
    assert code == 1
    assert "not made by loom.py" in err
    assert (project.venv / "precious").exists()


def test_every_requirement_is_pinned_and_has_a_reason():
    for path in (ROOT / "requirements").glob("*.txt"):
        for line in path.read_text().splitlines():
            if line and not line.startswith(("#", "-r ")):
                assert re.fullmatch(
                    r"[a-z0-9-]+==[\w.]+( ; [a-z_]+ [<>=]+ \"[\w.]+\")?  # .+", line
                )
