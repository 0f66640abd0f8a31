"""The run folder: events that survive a torn line, a state that follows from them, commands that are whole or not there."""

import json
import os
import threading

import pytest

from lib_lora.jobs.protocol import (
    Event,
    EventLog,
    EventReader,
    RunFolder,
    derive_state,
    pending_commands,
    read_events,
    send_command,
    write_json,
)


def events_of(*kinds):
    return [Event(n, float(n), kind, data) for n, (kind, data) in enumerate(kinds, 1)]


HELLO = ("hello", {"pid": 7, "started": 1.5})
STEP = ("step", {"step": 3, "total": 10, "loss": 0.5, "rate": 1e-4, "seconds_left": 7.0})


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


def test_the_state_follows_from_the_events():
    assert derive_state([]).status == "waiting"
    state = derive_state(
        events_of(HELLO, ("stage", {"name": "training", "total": 10}), STEP, ("beat", {}))
    )
    assert (state.status, state.stage, state.step, state.total) == ("running", "training", 3, 10)
    assert (state.loss, state.rate, state.seconds_left) == (0.5, 1e-4, 7.0)
    assert (state.pid, state.started, state.beat, state.seq) == (7, 1.5, 4.0, 4)


@pytest.mark.parametrize("ending", ["done", "paused", "stopped", "failed"])
def test_an_ending_ends_and_a_new_hello_begins_again(ending):
    story = [HELLO, STEP, (ending, {"message": "why", "step": 3})]
    state = derive_state(events_of(*story))
    assert (state.status, state.message, state.over) == (ending, "why", True)
    assert state.result["step"] == 3
    again = derive_state(events_of(*story, HELLO))
    assert (again.status, again.message, again.over) == ("running", "", False)


def test_unknown_kinds_and_keys_change_nothing():
    known = derive_state(events_of(HELLO, STEP))
    more = derive_state(
        events_of(HELLO, (*STEP[:1], {**STEP[1], "new": 1}), ("later", {"status": "x"}))
    )
    assert (more.status, more.step, more.loss) == (known.status, known.step, known.loss)


def test_a_state_goes_on_from_an_earlier_one():
    story = events_of(HELLO, ("note", {"text": "a"}), STEP, ("note", {"text": "b"}))
    assert derive_state(story[2:], derive_state(story[:2])) == derive_state(story)
    assert derive_state(story).notes == ("a", "b")


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
