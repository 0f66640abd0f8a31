"""The run folder: events that survive a torn line, a state that follows from them, commands that are whole or not there."""

import errno
import json
import os
import threading

import pytest

from lib_lora.jobs.protocol import (
    EventLog,
    EventReader,
    RunFolder,
    pending_commands,
    read_events,
    send_command,
    write_json,
)


def test_events_are_lines_with_version_number_and_time(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.write("hello", {"pid": 1})
    log.write("note", {"text": "Grüße"})
    lines = [
        json.loads(line) for line in (tmp_path / "events.jsonl").read_text("utf-8").splitlines()
    ]
    assert [(line["v"], line["seq"], line["kind"]) for line in lines] == [
        (1, 1, "hello"),
        (1, 2, "note"),
    ]
    assert all(isinstance(line["t"], float) for line in lines)
    assert read_events(tmp_path / "events.jsonl")[1].data == {"text": "Grüße"}


def test_a_file_name_that_is_no_text_comes_through(tmp_path):
    """A system without an encoding of names lets them hold any bytes; Python keeps them as lone surrogates."""
    told = {"text": os.fsdecode(b"bad\xff.png")}
    log = EventLog(tmp_path / "events.jsonl")
    log.write("note", told)
    write_json(tmp_path / "config.json", told)
    assert read_events(tmp_path / "events.jsonl")[0].data == told
    assert json.loads((tmp_path / "config.json").read_text("utf-8")) == told


def test_a_torn_line_is_ignored_and_numbers_go_on_after_it(tmp_path):
    file = tmp_path / "events.jsonl"
    log = EventLog(file)
    log.write("hello")
    log.write("note")
    log.close()
    file.write_bytes(file.read_bytes()[:-9])
    assert [event.seq for event in read_events(file)] == [1]
    log = EventLog(file)
    log.write("hello")
    log.close()
    assert [(event.seq, event.kind) for event in read_events(file)] == [(1, "hello"), (2, "hello")]


@pytest.mark.parametrize(
    "line",
    [
        b'{"v": 1, "seq": 1e999, "t": 0, "kind": "x"}',
        b'{"v": 1, "seq": 1, "t": 1' + b"0" * 400 + b', "kind": "x"}',
        b"[" * 100_000,
        b"\0" * 100,
        b'{"v": 1, "seq": null, "t": 0, "kind": "x"}',
        b"[]",
        b"\xff",
    ],
    ids=["endless", "too large", "deep", "zeros", "no number", "no object", "no text"],
)
def test_a_line_that_is_no_event_is_passed_over_whatever_it_is(tmp_path, line):
    """One of them would keep every run of the folder from being listed."""
    file = tmp_path / "events.jsonl"
    file.write_bytes(line + b'\n{"v": 1, "seq": 2, "t": 0.0, "kind": "hello"}\n')
    assert [event.seq for event in read_events(file)] == [2]


def test_a_reader_returns_each_event_once_and_waits_for_the_end_of_a_line(tmp_path):
    file = tmp_path / "events.jsonl"
    reader = EventReader(file)
    assert reader.read() == []
    log = EventLog(file)
    log.write("one")
    assert [event.kind for event in reader.read()] == ["one"]
    with file.open("a") as out:
        out.write('{"v": 1, "seq": 2, ')
        out.flush()
        assert reader.read() == []
        out.write('"t": 0, "kind": "two"}\n')
    assert [event.kind for event in reader.read()] == ["two"]
    assert reader.read() == []


def test_threads_do_not_mix_their_lines(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    threads = [
        threading.Thread(target=lambda: [log.write("beat", {"text": "x" * 500}) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.seq for event in read_events(tmp_path / "events.jsonl")] == list(range(1, 201))


def test_commands_wait_in_order_and_half_written_ones_are_not_seen(tmp_path):
    folder = RunFolder(tmp_path)
    assert pending_commands(folder) == []
    ids = [send_command(folder, name) for name in ("save", "stop")]
    (folder.commands / ".x.json.1234.partial").write_text('{"comm')
    (folder.commands / "zz.json").write_text("[]")
    assert [(c.id, c.name) for c in pending_commands(folder)] == [
        (ids[0], "save"),
        (ids[1], "stop"),
        ("zz", ""),
    ]


def test_a_json_file_is_written_once(tmp_path):
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(FileExistsError):
        write_json(tmp_path / "a.json", {"a": 2})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_numbers_go_on_after_an_end_that_is_longer_than_what_is_looked_at_first(tmp_path):
    file = tmp_path / "events.jsonl"
    log = EventLog(file)
    log.write("hello")
    log.close()
    with file.open("ab") as out:
        out.write(b"x" * 100_000 + b"\n")
    log = EventLog(file)
    log.write("note")
    assert [event.seq for event in read_events(file)] == [1, 2]


class FullDisk:
    """A file whose disk takes so many bytes and no more."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self.file.write(data[: self.room])
        self.room -= taken
        return taken

    def close(self):
        self.file.close()


@pytest.mark.parametrize("room", [0, 1, 40, 70])
def test_a_full_disk_delays_events_and_tears_none(tmp_path, room):
    file = tmp_path / "events.jsonl"
    log = EventLog(file)
    log._file = full = FullDisk(log._file, room)
    log.write("one")
    log.write("two")
    assert len(read_events(file)) < 2
    full.room = 1 << 20
    log.write("three")
    log.close()
    assert [event.kind for event in read_events(file)] == ["one", "two", "three"]
    assert file.read_bytes().count(b"\n") == 3


def test_what_is_no_full_disk_is_not_hidden(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log._file.close()
    with pytest.raises(ValueError, match="closed file"):
        log.write("one")
