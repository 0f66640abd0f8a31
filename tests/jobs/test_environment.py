"""The worker's packages: which host needs which list, and what pip really puts where, from wheels made here.

The sets of versions that work and that fail with torch 2.1.2 were tried one by one with Python 3.10.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from types import SimpleNamespace

import pytest

from lib_lora.errors import LoraError, UsageError
from lib_lora.jobs import environment

WEBUI = {
    "torch": "2.1.2+cu121",
    "transformers": "4.30.2",
    "accelerate": "0.21.0",
    "huggingface_hub": "0.20.3",
    "safetensors": "0.4.2",
}
FORGE = {
    "torch": "2.3.1+cu121",
    "transformers": "4.46.1",
    "huggingface_hub": "0.26.2",
    "safetensors": "0.4.2",
    "diffusers": "0.31.0",
}
NEWEST = {
    "torch": "2.13.0",
    "transformers": "5.24.0",
    "huggingface_hub": "2.4.0",
    "diffusers": "0.42.1",
}
SMALL, LARGE = "worker-small", "worker-large"


def wheel(folder, name, version="1.0"):
    """Make a wheel of one module that tells its version."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


class Host:
    """An interpreter's packages, by the folders that pip leaves, in a project with lists of its own."""

    def __init__(self, root, monkeypatch):
        self.site, self.shelf, self.lists = root / "site", root / "shelf", root / "requirements"
        self.home = root / ".worker"
        for folder in (self.site, self.shelf, self.lists):
            folder.mkdir()
        for name in ("probe_one", "probe_two"):
            wheel(self.shelf, name)
        for name in (SMALL, LARGE):
            self.pin(name, "probe_one==1.0  # a\nprobe_two==1.0  # b\n")
        for torch in ("2.1", "2.6"):
            self.pin(f"bitsandbytes-torch-{torch}", "probe_two==1.0  # c\n")
        for name in ("lion-pytorch", "prodigyopt"):
            self.pin(name, "probe_one==1.0  # d\n")
        monkeypatch.setattr(environment, "HOME", self.home)
        monkeypatch.setattr(environment, "LISTS", self.lists)
        others = [entry for entry in sys.path if "site-packages" not in entry]
        monkeypatch.setattr(sys, "path", [str(self.site), *others])
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(self.shelf))
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)

    def has(self, packages):
        for name, version in packages.items():
            (self.site / f"{name}-{version}.dist-info").mkdir()

    def pin(self, name, text):
        (self.lists / f"{name}.txt").write_text(text)


@pytest.fixture
def host(tmp_path, monkeypatch):
    return Host(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("packages", "pins"),
    [
        (WEBUI, SMALL),
        (WEBUI | {"torch": "2.7.1+cu128"}, LARGE),
        (WEBUI | {"diffusers": "0.25.0"}, SMALL),
        (WEBUI | {"diffusers": "0.31.0"}, SMALL),
        (WEBUI | {"diffusers": "0.31.0", "huggingface_hub": "0.23.5"}, None),
        (WEBUI | {"diffusers": "0.32.2", "huggingface_hub": "0.23.5"}, SMALL),
        (FORGE, None),
        (FORGE | {"diffusers": "0.36.0"}, SMALL),
        (FORGE | {"transformers": "4.56.2"}, LARGE),
        (NEWEST, None),
        (NEWEST | {"torch": "2.3.1"}, LARGE),
        ({"torch": "2.1.2", "safetensors": "0.4.2"}, LARGE),
    ],
)
def test_which_list_a_host_needs(host, packages, pins):
    host.has(packages)
    overlay = environment.needed().overlay
    assert (overlay and overlay.pins.stem) == pins


@pytest.mark.parametrize(
    ("packages", "words"),
    [
        ({}, ["torch", "none"]),
        (WEBUI | {"torch": "1.13.1+cu117"}, ["2.1 or newer", "1.13.1"]),
    ],
)
def test_a_host_that_no_list_helps_is_told_why(host, packages, words):
    host.has(packages)
    plan = environment.needed()
    assert plan.overlay is None
    assert all(word in plan.problem for word in words)
    assert environment.status() == plan.problem
    with pytest.raises(LoraError, match=words[0]):
        environment.prepare(lambda step: None)
    assert not host.home.exists()


def test_the_lists_of_the_project_are_those_that_are_chosen():
    names = {
        pinned.name
        for lists in (environment.BASE, *environment.EXTRAS.values())
        for pinned in lists
    }
    there = {path.stem for path in environment.LISTS.glob("*.txt")}
    assert names <= there
    others = ("lane-", "standalone", "test")
    assert {name for name in there if not name.startswith(others)} == names


def test_preparing_puts_the_packages_first_on_the_workers_path_alone(host):
    host.has(WEBUI)
    (host.site / "probe_one.py").write_text("VERSION = 'of the host'\n")
    before = sorted(host.site.rglob("*"))
    said = environment.status()
    assert "probe_one 1.0 and probe_two 1.0" in said
    assert "Prepare" in said
    told = []
    environment.prepare(told.append)
    assert any("probe_two" in step for step in told)
    assert environment.status() is None
    subprocess.check_call([sys.executable, "-m", "compileall", "-q", str(host.home)])
    assert environment.needed().missing == (), "what Python compiles is no damage"
    assert sorted(host.site.rglob("*")) == before
    variables = environment.worker_environment()
    assert variables["HF_HUB_OFFLINE"] == "1"
    path = variables["PYTHONPATH"].split(os.pathsep)
    assert path[:2] == [str(environment.needed().overlay.folder), str(environment.PACKAGE_ROOT)]
    code = "import probe_one, probe_two, lib_lora; print(probe_one.VERSION)"
    worker = {**variables, "PYTHONPATH": os.pathsep.join([*path[:2], str(host.site)])}
    assert subprocess.check_output([sys.executable, "-c", code], env=worker, text=True) == "1.0\n"


def test_without_packages_of_its_own_the_path_is_the_package(host, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    host.has(FORGE)
    path = environment.worker_environment()["PYTHONPATH"]
    assert path == os.pathsep.join([str(environment.PACKAGE_ROOT), "/mine"])


def harms(folder):
    yield (folder / "probe_two.py").unlink
    yield lambda: (folder / "probe_two.py").write_text("VERS")
    yield (folder / environment.RECORD).unlink
    yield lambda: (folder / environment.RECORD).write_text('{"files": [1')
    yield lambda: shutil.rmtree(folder / "probe_one-1.0.dist-info")


def test_what_is_damaged_or_unfinished_is_made_again(host, tmp_path):
    host.has(WEBUI)
    environment.prepare(lambda step: None)
    folder = environment.needed().overlay.folder
    whole = sorted(path.name for path in folder.iterdir())
    shutil.copytree(folder, tmp_path / "whole")
    made = (folder / environment.RECORD).stat().st_mtime_ns
    environment.prepare(lambda step: None)
    assert (folder / environment.RECORD).stat().st_mtime_ns == made, "nothing was to do"
    for harm in harms(folder):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "whole", folder)
        assert environment.needed().missing == ()
        harm()
        assert environment.needed().missing == ("probe_one==1.0", "probe_two==1.0")
        assert str(folder) not in environment.worker_environment()["PYTHONPATH"]
    environment.prepare(lambda step: None)
    assert sorted(path.name for path in folder.iterdir()) == whole
    assert environment.status() is None


def test_another_list_is_another_folder_and_an_old_one_goes_in_a_month(host):
    host.has(WEBUI)
    before = environment.needed().overlay.folder
    host.pin(SMALL, "probe_one==1.0  # alone\n")
    assert environment.needed().missing == ("probe_one==1.0",)
    now = environment.needed().overlay.folder
    assert now != before
    before.mkdir(parents=True)
    old = before.with_name("worker-small-00000000")
    old.mkdir()
    other = before.with_name("bitsandbytes-torch-2.1-00000000")
    other.mkdir()
    month_ago = time.time() - environment.MONTH - 60
    for folder in (old, other):
        os.utime(folder, (month_ago, month_ago))
    environment.prepare(lambda step: None)
    there = {path for path in host.home.iterdir() if path.is_dir()}
    assert there == {before, now, other}, "a worker may still run from a young one"


def test_a_package_that_cannot_be_had_is_a_sentence_and_leaves_nothing(host):
    host.has(WEBUI)
    host.pin(SMALL, "probe_one==1.0  # there\nprobe_three==3.0  # not there\n")
    with pytest.raises(
        LoraError, match=r"probe_three 3\.0 could not be installed: .*probe_three==3\.0"
    ):
        environment.prepare(lambda step: None)
    assert [path.name for path in host.home.iterdir()] == ["lock"]
    assert "probe_three" in environment.status()


def test_no_source_is_built(host):
    """A package that has no wheel would run its own code to be installed."""
    host.has(WEBUI)
    source = host.shelf / "probe_four-1.0"
    source.mkdir()
    (source / "setup.py").write_text(f"open({str(host.shelf / 'ran')!r}, 'w')")
    shutil.make_archive(str(source), "gztar", host.shelf, source.name)
    host.pin(SMALL, "probe_four==1.0  # a source alone\n")
    with pytest.raises(LoraError, match="probe_four"):
        environment.prepare(lambda step: None)
    assert not (host.shelf / "ran").exists()


def test_a_full_disk_is_told_before_anything_is_fetched(host, monkeypatch):
    host.has(WEBUI)
    need = shutil.disk_usage(host.lists).free // 2**20 + 10_000
    huge = tuple(pinned._replace(megabytes=need) for pinned in environment.BASE)
    monkeypatch.setattr(environment, "BASE", huge)
    with pytest.raises(LoraError, match=f"{need} MB .* are free"):
        environment.prepare(lambda step: None)
    assert not list(host.home.glob("worker-*"))


def test_the_mirror_that_the_webui_is_told_is_asked(host, monkeypatch, tmp_path):
    host.has(WEBUI)
    index = tmp_path / "mirror" / "probe-one"
    index.mkdir(parents=True)
    wheel(index, "probe_one", "7.0")
    (index / "index.html").write_text('<a href="probe_one-7.0-py3-none-any.whl">wheel</a>')
    host.pin(SMALL, "probe_one==7.0  # only the mirror has it\n")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("INDEX_URL", index.parent.as_uri())
    # Settings of pip that do not go with a folder of our own do no harm.
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    environment.prepare(lambda step: None)
    assert environment.status() is None


def test_two_that_prepare_at_once_wait_for_each_other(host, tmp_path):
    host.has(WEBUI)
    code = (
        "import sys; from pathlib import Path; from lib_lora.jobs import environment as e;"
        f"e.HOME, e.LISTS = Path({str(host.home)!r}), Path({str(host.lists)!r});"
        f"sys.path.insert(0, {str(host.site)!r}); e.prepare(print); print(e.needed().missing)"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=environment.PACKAGE_ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [text.splitlines()[-1] for text in said] == ["()", "()"]
    assert sum("Installing" in text for text in said) == 1


def test_on_windows_too_it_is_waited_for_as_long_as_it_takes(host, monkeypatch):
    """Its lock is tried for ten seconds and then refused; here that is played, since no other system does it."""
    refusals = iter([OSError(errno.EDEADLK, "Resource deadlock avoided")])

    def locking(descriptor, mode, count):
        for error in refusals:
            raise error

    host.home.mkdir()
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(LK_LOCK=1, locking=locking))
    monkeypatch.setattr(sys, "platform", "win32")
    said = []
    with environment._alone(said.append):
        said.append("alone")
    assert said == [environment.WAITING, "alone"]


def test_optional_packages_come_when_they_are_asked_for(host):
    host.has(WEBUI)
    environment.prepare(lambda step: None)
    assert environment.status() is None
    assert "probe_two 1.0" in environment.status("bitsandbytes")
    plan = environment.needed_for("bitsandbytes")
    assert plan.overlay.pins.stem == "bitsandbytes-torch-2.1"
    environment.prepare(lambda step: None, "bitsandbytes")
    assert environment.needed_for("bitsandbytes").missing == ()
    assert environment.status("bitsandbytes") is None
    path = environment.worker_environment()["PYTHONPATH"].split(os.pathsep)
    base = str(environment.needed().overlay.folder)
    assert path[:3] == [base, str(plan.overlay.folder), str(environment.PACKAGE_ROOT)]
    record = json.loads((plan.overlay.folder / environment.RECORD).read_text())
    assert record["pins"] == ["probe_two==1.0"]
    host.has({"bitsandbytes": "0.44.1"})
    assert environment.needed_for("bitsandbytes").overlay is None, "the host's own serves"
    with pytest.raises(UsageError, match="bitsandbytes"):
        environment.prepare(lambda step: None, "bitsandbites")
