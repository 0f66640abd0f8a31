"""Files get their name whole or not at all."""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from lib_lora.errors import LoraError, NoSpaceError
from lib_lora.formats import place
from lib_lora.formats.place import (
    check_space,
    check_takes_files,
    new_file,
    put_in_place,
    remove_partial,
)
from lib_lora.jobs.protocol import EventLog, RunFolder, send_command
from lib_lora.jobs.worker import Reporter
from lib_lora.train.state import State, write_state

NOBODY = 65534


def test_a_file_has_its_name_when_it_is_whole(tmp_path):
    file = tmp_path / "a.bin"
    file.write_bytes(b"old")
    with new_file(file) as out:
        out.write(b"new")
        assert file.read_bytes() == b"old"
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


def test_what_raises_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    file = tmp_path / "a.bin"
    file.write_bytes(b"old")

    def write_half():
        with new_file(file) as out:
            out.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_someone_reads_is_replaced_when_they_are_done(tmp_path, monkeypatch):
    """Windows refuses to replace a file that is open; here that is played, since no other system does it."""
    refusals = iter([PermissionError(), PermissionError()])
    replaced = type(tmp_path).replace

    def replace(self, target):
        for error in refusals:
            raise error
        return replaced(self, target)

    (tmp_path / "new").write_bytes(b"new")
    monkeypatch.setattr(type(tmp_path), "replace", replace)
    monkeypatch.setattr(place, "REFUSED_WHILE_READ", True)
    monkeypatch.setattr(place, "RETRY_SECONDS", 0.0)
    put_in_place(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_bytes() == b"new"


def test_what_someone_reads_is_removed_when_they_are_done(tmp_path, monkeypatch):
    """A scanner looks into every new file, and Windows refuses to remove what is open; here that is played too."""
    unlinked, refused = type(tmp_path).unlink, set()

    def unlink(self, missing_ok=False):
        if self.exists() and self not in refused:
            refused.add(self)
            raise PermissionError
        unlinked(self, missing_ok)

    monkeypatch.setattr(type(tmp_path), "unlink", unlink)
    monkeypatch.setattr(place, "REFUSED_WHILE_READ", True)
    monkeypatch.setattr(place, "RETRY_SECONDS", 0.0)
    (tmp_path / ".a.bin.12ab.partial").touch()
    remove_partial(tmp_path)
    for step in (1, 2):
        write_state(tmp_path / "state", State(step, {"x": torch.zeros(1)}, {}))
    run = RunFolder(tmp_path)
    send_command(run, "save")
    reporter = Reporter(run, EventLog(run.events))
    assert reporter.asked() == "save"
    reporter.answer("Saved.")
    left = {file.name for file in tmp_path.rglob("*") if file.is_file()}
    assert left == {"0000002.safetensors", "events.jsonl"}
    assert len(refused) == 3


@contextmanager
def as_somebody():
    """Be a user whom a folder can refuse something, which none can to root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.skipif(os.name == "nt", reason="folders refuse nothing there")
@pytest.mark.parametrize("waits", [False, True])
def test_a_refusal_that_lasts_is_told(monkeypatch, waits):
    monkeypatch.setattr(place, "REFUSED_WHILE_READ", waits)
    monkeypatch.setattr(place, "RETRY_SECONDS", 0.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "new").write_bytes(b"new")
        folder.chmod(0o555)
        with as_somebody(), pytest.raises(PermissionError):
            put_in_place(folder / "new", folder / "old")
        folder.chmod(0o755)
        put_in_place(folder / "new", folder / "old")  # it was the folder that refused


@pytest.mark.skipif(os.name == "nt", reason="folders refuse nothing there")
def test_a_folder_that_takes_no_file_is_told_by_trying():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check_takes_files(folder)
        assert list(folder.iterdir()) == []
        folder.chmod(0o555)
        with as_somebody(), pytest.raises(LoraError, match="takes no new file: Permission denied"):
            check_takes_files(folder)


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path):
    for name in ("[a].bin", ".[a].bin.12ab.partial", ".a.bin.34cd.partial", "x.partial"):
        (tmp_path / name).touch()
    remove_partial(tmp_path, "[a].bin")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".a.bin.34cd.partial",
        "[a].bin",
        "x.partial",
    ]
    remove_partial(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["[a].bin", "x.partial"]


def test_a_disk_that_is_too_full_is_told_with_both_numbers(tmp_path):
    check_space(tmp_path, 1)
    with pytest.raises(NoSpaceError, match=r"MB free and \d+ MB are needed"):
        check_space(tmp_path, 1 << 60)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path, monkeypatch):
    def open_full(partial):
        partial.touch()
        return Path("/dev/full").open("wb")

    file = tmp_path / "a.bin"
    file.write_bytes(b"old")
    monkeypatch.setattr(place, "open_new", open_full)

    def write():
        with new_file(file) as out:
            out.write(b"new")

    with pytest.raises(NoSpaceError, match=r"a\.bin could not be written"):
        write()
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]
