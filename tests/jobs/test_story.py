"""What events tell: the state that follows from them, read on from where it was."""

import json
import time

import pytest

from lib_lora.jobs.protocol import Event, EventLog
from lib_lora.jobs.story import RunState, Story, derive_state


def events_of(*kinds):
    return [Event(n, float(n), kind, data) for n, (kind, data) in enumerate(kinds, 1)]


HELLO = ("hello", {"pid": 7, "started": "a"})
STEP = ("step", {"step": 3, "total": 10, "loss": 0.5, "rate": 1e-4, "seconds_left": 7.0})


def test_the_state_follows_from_the_events():
    assert derive_state([]).status == "queued"
    assert derive_state(events_of(HELLO)).status == "starting"
    state = derive_state(
        events_of(HELLO, ("stage", {"name": "training", "total": 10}), STEP, ("beat", {}))
    )
    assert (state.status, state.stage, state.step, state.total) == ("running", "training", 3, 10)
    assert (state.loss, state.rate, state.seconds_left) == (0.5, 1e-4, 7.0)
    assert (state.pid, state.started, state.beat, state.seq) == (7, "a", 4.0, 4)


@pytest.mark.parametrize("ending", ["done", "paused", "stopped", "failed"])
def test_an_ending_ends_and_a_new_hello_begins_again(ending):
    story = [HELLO, STEP, (ending, {"message": "why", "step": 3})]
    state = derive_state(events_of(*story))
    assert (state.status, state.message, state.over) == (ending, "why", True)
    assert state.result["step"] == 3
    again = derive_state(events_of(*story, HELLO))
    assert (again.status, again.message, again.over) == ("starting", "", False)


def test_what_is_queued_again_keeps_what_it_reached_until_a_worker_is_started():
    paused = [HELLO, STEP, ("paused", {"step": 3})]
    queued = derive_state(events_of(*paused, ("queued", {})))
    assert (queued.status, queued.over, queued.queued) == ("queued", False, 4.0)
    assert queued.result == {"step": 3}
    starting = derive_state(
        events_of(*paused, ("queued", {}), ("starting", {"pid": 9, "started": "b"}))
    )
    assert (starting.status, starting.result, starting.stage) == ("starting", {}, "")
    assert (starting.pid, starting.launcher) == (None, (9, "b"))


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


LONG = 20_000


@pytest.fixture
def long_file(tmp_path):
    """The events of a long run, one line each."""
    file = tmp_path / "events.jsonl"
    head = [{"kind": "hello", "pid": 7, "started": "a"}, {"kind": "stage", "name": "training"}]
    steps = [{"kind": "step", "step": n, "total": LONG, "loss": 0.1} for n in range(LONG)]
    lines = (
        json.dumps({"v": 1, "seq": n, "t": 1.0, **event}) for n, event in enumerate(head + steps, 1)
    )
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file


def test_asking_often_costs_what_is_new_and_not_what_was_read(long_file):
    story = Story(long_file)
    begin = time.process_time()
    assert story.state().seq == LONG + 2
    first = time.process_time() - begin
    log = EventLog(long_file)
    polls = []
    for n in range(20):
        log.write("step", {"step": LONG + n})
        begin = time.process_time()
        assert story.state().step == LONG + n
        (new,) = story.events(after=LONG + 2 + n)
        assert new.seq == LONG + 3 + n
        assert story.events(after=new.seq) == []
        polls.append(time.process_time() - begin)
    assert min(polls) < first / 20, (first, polls)


def test_a_story_gives_all_events_whatever_was_asked_before(tmp_path):
    log, story = EventLog(tmp_path / "events.jsonl"), Story(tmp_path / "events.jsonl")
    assert story.events() == []
    for n in range(1000):
        log.write("step", {"step": n})
        if n % 7 == 0:
            assert story.state() == derive_state(story.events())
    whole = Story(tmp_path / "events.jsonl")
    for after in (0, 1, 199, 200, 201, 777, 999, 1000):
        for each in (story, whole):
            assert [e.seq for e in each.events(after)] == list(range(after + 1, 1001))
            assert [e.seq for e in each.events(after, 2)] == list(range(after + 1, 1001))[:2]
    assert whole.state() == story.state() != RunState()


def test_a_step_is_passed_over_for_a_later_one_and_never_for_another_kind(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    told = (HELLO, STEP, ("note", {"text": '"kind": "step"'}), STEP, ("stage", {"name": "b"}))
    for kind, data in told:
        log.write(kind, data)
    state = Story(tmp_path / "events.jsonl").state()
    assert (state.stage, state.step, state.loss, state.notes) == ("b", 0, 0.5, ('"kind": "step"',))
    log.write("beat")
    log.write("step", {"step": 4})
    assert Story(tmp_path / "events.jsonl").state().step == 4
