"""The log: what each level writes, gapless numbers, positions, and that it is written with the change."""

import json

import pytest

from tessera.model.changes import After, EditJob, Edits, LogEvent, MoveJob
from tessera.model.policy import Ceiling
from tessera.model.states import EventLevel, State
from tests.conformance.rig import LEASE, Rig, add, key_of, sweep


def a_whole_life(rig: Rig, level: EventLevel) -> None:
    """Waited for its time, failed, crashed, was snoozed, and waits to be claimed again."""
    rig.do(add("0"), add("a", due=After(10), events=level))
    other = rig.take(lease=10**9)
    rig.advance(10)
    sweep(rig)
    rig.finish(rig.take(), State.SCHEDULED, "failed", due=After(10), edits=Edits(failures=1))
    rig.advance(10)
    sweep(rig)
    rig.take()
    rig.advance(LEASE)
    sweep(rig)
    rig.finish(rig.take(), State.SCHEDULED, "snoozed", due=After(10))
    rig.advance(10)
    sweep(rig)
    assert rig.job("a").state is State.AVAILABLE
    assert other.id == key_of("0")


@pytest.mark.capability("W10")
def test_the_full_level_writes_every_transition_once(rig: Rig):
    """INV-14."""
    a_whole_life(rig, EventLevel.FULL)
    rig.complete(rig.take())
    assert rig.told("a") == [
        "enqueued", "became_available", "claimed", "failed", "became_available", "claimed", "crashed",
        "claimed", "snoozed", "became_available", "claimed", "completed",
    ]  # fmt: skip
    assert rig.job("a").event_count == 12


def test_the_odd_level_writes_what_an_operator_would_ask_about(rig: Rig):
    """INV-14."""
    a_whole_life(rig, EventLevel.ODD)
    rig.move("a", State.CANCELLED)
    rig.move("a", State.AVAILABLE)
    rig.move("a", State.DEAD)
    assert rig.told("a") == ["failed", "crashed", "cancelled", "redriven", "dead"]


def test_the_level_off_writes_nothing(rig: Rig):
    a_whole_life(rig, EventLevel.OFF)
    rig.move("a", State.CANCELLED)
    assert rig.told("a") == []


def test_setting_aside_and_waking_are_transitions_too(rig: Rig):
    """INV-14."""
    rig.declare({"c": Ceiling(1)})
    rig.do(add("0", needs="c"), add("a", needs="c"))
    job = rig.take(n=2)
    rig.complete(job)
    rig.take()
    assert rig.told("a") == ["enqueued", "set_aside", "became_available", "claimed"]


@pytest.mark.capability("W10")
def test_numbers_of_a_job_and_positions_of_the_log_have_no_gaps(rig: Rig):
    """INV-14, INV-16: refused groups leave none either."""
    rig.do(*(add(name) for name in "abc"))
    for _ in range(3):
        for job in rig.claim(n=3):
            rig.ask(LogEvent("noted", "q", job.id), MoveJob(job.id, State.RUNNING))
            rig.do(LogEvent("noted", "q", job.id, by="h"))
            rig.finish(job, State.AVAILABLE, "released")
    events = rig.events()
    assert [event.pos for event in events] == list(range(1, len(events) + 1))
    for name in "abc":
        numbers = [event.number for event in events if event.job == key_of(name)]
        assert numbers == list(range(1, 11))
        assert rig.job(name).event_count == 10


def test_an_event_says_when_where_who_and_what_became_of_it(rig: Rig):
    job = rig.start("a")
    rig.advance(7)
    rig.finish(job, State.DEAD, "aborted", reason="no use", by="h")
    event = rig.events("a")[-1]
    assert (event.at, event.queue, event.by, event.what) == (rig.now, "q", "h", "aborted")
    assert json.loads(event.data) == {
        "state": "dead",
        "attempt": 1,
        "fence": job.fence + 1,
        "reason": "no use",
    }


@pytest.mark.capability("U10")
def test_a_reader_resumes_where_it_stopped(rig: Rig):
    """INV-16."""
    rig.do(*(LogEvent(f"e{n}") for n in range(7)))
    seen: list[str] = []
    after = 0
    while batch := rig.run(rig.store.events(after, 3)):
        seen += [event.what for event in batch]
        after = batch[-1].pos
    assert seen == [f"e{n}" for n in range(7)]
    rig.do(LogEvent("late"))
    assert [event.what for event in rig.run(rig.store.events(after, 3))] == ["late"]


def test_the_log_of_one_job_is_read_without_the_others(rig: Rig):
    rig.do(add("a"), add("b"), LogEvent("x", job=key_of("a")), LogEvent("y", job=key_of("b")))
    assert rig.told("b") == ["enqueued", "y"]
    [last] = rig.run(rig.store.events(1, 1, key_of("b")))
    assert last.what == "enqueued"


def test_an_event_of_an_ended_job_is_counted_in_its_row(rig: Rig):
    """INV-14."""
    rig.bury("a")
    rig.do(LogEvent("looked_at", job=key_of("a"), by="ada"))
    assert rig.events("a")[-1].number == rig.job("a").event_count == 3


def test_edits_are_no_transitions(rig: Rig):
    rig.do(add("a"), EditJob(key_of("a"), Edits(priority=3)))
    assert rig.told("a") == ["enqueued"]


def test_the_log_folds_to_the_counts(rig: Rig):
    """INV-15: on a queue that logs all, the last event of each job says where it is."""
    a_whole_life(rig, EventLevel.FULL)
    rig.do(add("late", due=After(99)))
    last = {event.job: json.loads(event.data)["state"] for event in rig.events() if event.job is not None}
    folded: dict[tuple[str, State], int] = {}
    for state in last.values():
        folded["q", State(state)] = folded.get(("q", State(state)), 0) + 1
    assert folded == rig.counts()
