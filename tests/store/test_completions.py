"""The short way of a plain completion writes what the long way writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tessera.model.changes import Edits, Group, Held, MoveJob
from tessera.model.ids import JobId
from tessera.model.job import NEVER, End, Job, Keep, Need
from tessera.model.states import EventLevel, State
from tessera.store import completions, evaluator
from tessera.store.memory import World
from tessera.store.working import Net, Row, Working

NOW = 1_800_000_000_000
KEY = JobId(b"k" * 16)
END = End(3, "completed", NOW - 5, 0, "h")


def running(**fields) -> Job:
    values: dict[str, Any] = {
        "id": KEY,
        "kind": "k",
        "queue": "q",
        "state": State.RUNNING,
        "fence": 7,
        "attempt": 3,
        "holder": "h",
    }
    return Job(**values | {"lease_until": NOW + 1, "claimed_at": NOW - 5} | fields)


@dataclass
class Written:
    """What a group wrote, by one of the two ways."""

    answer: object
    jobs: list
    archive: list
    counts: dict
    events: list
    slots: list


def written(job: Job, change: MoveJob, monkeypatch, *, short: bool) -> tuple[Written, bool]:
    """The effect of a finish, and whether the short way was taken."""
    taken = []
    real = completions.complete_plainly

    def watched(work, guard, change) -> bool:
        taken.append(short and real(work, guard, change))
        return taken[-1]

    monkeypatch.setattr(completions, "complete_plainly", watched)
    world = World(bytes(16), lambda: NOW)
    world.write(Net(jobs=[Row(job.id, None, job)]))
    work = Working(world, NOW)
    answer = evaluator.apply_group(work, Group((Held(job.id, job.fence, "completed"),), (change,)))
    monkeypatch.setattr(completions, "complete_plainly", real)
    counts = {key: n for key, n in work.counts.items() if n}
    return Written(
        answer, work.jobs.net(), work.archive.net(), counts, list(work.events), work.slots.net()
    ), taken == [True]


PLAIN = [
    (running(), MoveJob(KEY, State.COMPLETED, end=END)),
    (running(), MoveJob(KEY, State.COMPLETED, end=END, edits=Edits(result=b"1", ext=b"2"), reason="why")),
    (running(), MoveJob(KEY, State.COMPLETED, end=END, edits=Edits(result=None))),
    (running(ends=(END,) * 10, needs=(Need("c"),)), MoveJob(KEY, State.COMPLETED, end=END)),
    (running(cancel_requested=True, cap_at=NOW + 9, reason="old"), MoveJob(KEY, State.COMPLETED, end=END)),
    (running(keep=Keep(NEVER), events=EventLevel.OFF), MoveJob(KEY, State.COMPLETED, end=END)),
    (running(parent=JobId(b"p" * 16), tags=("t",), watched=True), MoveJob(KEY, State.COMPLETED, end=END)),
]
NOT_PLAIN = [
    (running(events=EventLevel.FULL), MoveJob(KEY, State.COMPLETED, end=END)),
    (running(holds=(Need("c"),)), MoveJob(KEY, State.COMPLETED, end=END)),
    (running(slots=("u:1",)), MoveJob(KEY, State.COMPLETED, end=END)),
    (running(heirs=1), MoveJob(KEY, State.COMPLETED, end=END)),
    (running(keep=Keep(0)), MoveJob(KEY, State.COMPLETED, end=END)),
    (running(), MoveJob(KEY, State.COMPLETED)),
    (running(), MoveJob(KEY, State.COMPLETED, end=END, edits=Edits(failures=1))),
    (running(), MoveJob(KEY, State.COMPLETED, end=END, refund=True)),
    (running(), MoveJob(KEY, State.COMPLETED, end=End(3, "failed", 1, 0))),
    (running(), MoveJob(KEY, State.DEAD, end=END)),
    (running(), MoveJob(KEY, State.AVAILABLE, end=END)),
    (running(lease_until=NOW), MoveJob(KEY, State.COMPLETED, end=END)),
]


@pytest.mark.parametrize("job,change", PLAIN)
def test_a_plain_completion_takes_the_short_way_to_the_same_rows(job, change, monkeypatch):
    short, was_short = written(job, change, monkeypatch, short=True)
    long, was_long_short = written(job, change, monkeypatch, short=False)
    assert (was_short, was_long_short) == (True, False)
    assert short == long


@pytest.mark.parametrize("job,change", NOT_PLAIN)
def test_any_other_finish_takes_the_long_way(job, change, monkeypatch):
    assert not written(job, change, monkeypatch, short=True)[1]
