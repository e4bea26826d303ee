"""The checker finds what it is there to find: each history here is good but for one thing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tessera.model.ids import JobId
from tessera.model.job import End, Job
from tessera.model.states import State
from tests.faults import checker, history
from tests.faults.history import Event, History

pytestmark = pytest.mark.store("sqlite")

S = 1_000_000_000


def event(at: float, what: str, job: str = "j", fence: int = 0, attempt: int = 0, **more: Any) -> Event:
    return Event(at=round(at * S), what=what, job=job, fence=fence, attempt=attempt, **more)


def row(**fields: Any) -> Job:
    usual: dict[str, Any] = {
        "id": JobId(bytes(16)),
        "kind": "nap",
        "queue": "work",
        "state": State.COMPLETED,
        "attempt": 2,
        "crashes": 1,
        "fence": 20,
        "last_fence": 20,
        "result": b"20",
        "ends": (
            End(1, "crashed", 1_000, 3_000, "A", checker.LAPSED),
            End(2, "completed", 3_100, 4_000, "B"),
        ),
    }
    return Job(**{**usual, **fields})


def good() -> list[Event]:
    """A job that is run by A, which is killed, and then by B."""
    return [
        event(0.0, "lives", "", pid=1, holder="A"),
        event(0.0, "lives", "", pid=2, holder="B"),
        event(0.9, "acked"),
        event(1.0, "claimed", fence=10, attempt=1, holder="A", claimed_at=1_000, until=2_000),
        event(1.1, "started", fence=10, attempt=1, pid=1),
        event(1.5, "renewed", fence=10, until=2_900),
        event(1.6, "killed", "", pid=1),
        event(3.0, "rescued", fence=10, how="crashed"),
        event(3.1, "claimed", fence=20, attempt=2, holder="B", claimed_at=3_100, until=4_100),
        event(3.2, "started", fence=20, attempt=2, pid=2),
        event(3.9, "returned", fence=20, attempt=2, pid=2),
        event(4.0, "finished", fence=20, how="completed"),
    ]


def test_a_good_history_has_no_problem() -> None:
    assert checker.problems(good(), {"j": row()}) == []


Change = Callable[[list[Event]], Sequence[Event]]


def plus(*more: Event) -> Change:
    return lambda events: sorted([*events, *more], key=lambda one: one.at)


def without(what: str, fence: int = 0) -> Change:
    return lambda events: [one for one in events if not (one.what == what and fence in (0, one.fence))]


def same(events: list[Event]) -> Sequence[Event]:
    return events


ENDS = row().ends
BAD: dict[str, tuple[Change, Job | None, str]] = {
    "an acknowledged job is gone": (same, None, "was acknowledged and is gone"),
    "an acknowledged job never ended": (same, row(state=State.AVAILABLE), "acknowledged and is available"),
    "a job died unplanned": (same, row(state=State.DEAD, reason="attempts_used"), "is dead (attempts_used)"),
    "a run after the completion": (
        plus(
            event(4.1, "claimed", fence=30, attempt=3, holder="B", claimed_at=4_100, until=5_000),
            event(4.2, "started", fence=30, attempt=3, pid=2),
        ),
        row(),
        "after its completion was acknowledged",
    ),
    "a late start under the same fence": (
        plus(event(4.1, "started", fence=20, attempt=2)),
        row(),
        "after its completion",
    ),
    "a run under a later fence than the one that completed": (
        lambda events: [one for one in events if one.what != "finished"],
        row(last_fence=15, result=b"15"),
        "after 15 completed it",
    ),
    "two completions": (plus(event(4.5, "finished", fence=10, how="completed")), row(), "completed twice"),
    "one fence for two holders": (
        plus(event(3.15, "claimed", fence=20, attempt=2, holder="C", claimed_at=3_150, until=4_000)),
        row(),
        "claimed twice under 20",
    ),
    "a fence that goes back": (
        lambda events: [
            replace(one, fence=5)
            if one.what == "claimed" and one.fence == 20
            else one
            for one in events
        ],
        row(),
        "before the lower 5",
    ),
    "a row whose fence is behind": (same, row(fence=15), "its row has 15"),
    "a run that nobody claimed": (without("claimed", 20), row(), "which nobody claimed"),
    "two runs under one fence": (
        plus(event(1.2, "started", fence=10, attempt=1, pid=1)),
        row(),
        "ran twice under 10",
    ),
    "a lease taken back early": (
        plus(event(1.55, "renewed", fence=10, until=3_300)),
        row(),
        "200 ms before its lease was over",
    ),
    "two leases at once in the row": (
        same,
        row(ends=(ENDS[0], End(2, "completed", 2_500, 4_000, "B"))),
        "leased before attempt 1 ended",
    ),
    "an attempt not counted": (same, row(attempt=1), "counts 1 attempts, its ends are [1, 2]"),
    "an attempt too many": (same, row(attempt=3), "counts 3 attempts"),
    "a crash not counted": (same, row(crashes=0), "counts 0 crashes, its ends say 1"),
    "a failure that was none": (same, row(failures=1), "counts 1 failures, its ends say 0"),
    "a crash charged to one who lived": (without("killed"), row(), "charged as a crash to A, which lived on"),
    "an end that nobody ran to": (without("started", 20), row(), "attempt 2 completed, and nobody ran it"),
    "one attempt run twice": (
        plus(event(3.3, "started", fence=20, attempt=1, pid=2)),
        row(),
        "ran attempt 1 twice",
    ),
    "an acknowledged end that was overwritten": (
        plus(event(1.55, "finished", fence=10, how="failed")),
        row(),
        "failed of attempt 1 was acknowledged, the row says ['crashed']",
    ),
    "an end in another's name": (
        same,
        row(ends=(ENDS[0], End(2, "completed", 3_100, 4_000, "C"))),
        "completed of attempt 2 was acknowledged",
    ),
    "the result of a stale run": (same, row(result=b"10"), "holds the result of b'10'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_found(name: str) -> None:
    change, of, told = BAD[name]
    found = checker.problems(change(good()), {} if of is None else {"j": of})
    assert any(told in line for line in found), found


def test_a_give_back_is_counted_nowhere() -> None:
    events = [
        event(0.5, "claimed", fence=5, attempt=1, holder="C", claimed_at=500, until=1_500),
        event(0.6, "finished", fence=5, how="given_back"),
        *good(),
    ]
    assert checker.problems(events, {"j": row()}) == []


def test_what_is_planned_to_die_may_be_dead_and_nothing_else() -> None:
    planned = {"nap": State.DEAD}
    ends = (ENDS[0], End(2, "failed", 3_100, 4_000, "B"))
    events = [
        *good()[:-2],
        event(3.9, "raised", fence=20, attempt=2),
        event(4.0, "finished", fence=20, how="failed"),
    ]
    dead = row(state=State.DEAD, failures=1, ends=ends, result=None)
    assert checker.problems(events, {"j": dead}, planned) == []
    assert list(checker.lost(good(), {"j": row()}, planned)) == [
        "j (nap) was acknowledged and is completed (no reason)"
    ]


@pytest.mark.parametrize(
    "of, is_burnt", [(row(attempt=1, crashes=0), False), (row(crashes=0), True), (row(crashes=1), True)]
)
def test_burnt_attempts_are_found(of: Job, is_burnt: bool) -> None:
    assert bool(list(checker.burnt({"j": of}))) is is_burnt


def run(job: str, fence: int, begins: float, ends: float, how: str = "returned", **more: Any) -> list[Event]:
    return [event(begins, "started", job, fence, **more), event(ends, how, job, fence, **more)]


def test_overlapping_runs_are_found_and_a_kill_ends_a_run() -> None:
    apart = [*run("a", 1, 0, 1), *run("a", 2, 1.5, 2), *run("b", 3, 0.5, 2)]
    assert list(checker.overlapping_runs(sorted(apart, key=lambda one: one.at))) == []
    at_once = sorted([*run("a", 1, 0, 1), *run("a", 2, 0.9, 2)], key=lambda one: one.at)
    assert list(checker.overlapping_runs(at_once)) == ["2 runs of a at once at 0.900"]
    killed = [event(0, "started", "a", 1, pid=7), event(0.5, "killed", "", pid=7), *run("a", 2, 0.9, 2)]
    assert list(checker.overlapping_runs(killed)) == []


def test_more_runs_of_a_key_than_its_ceiling_are_found() -> None:
    runs = [
        *run("a", 1, 0, 2, key="k"),
        *run("b", 2, 0.5, 2, key="k"),
        *run("c", 3, 1, 2, key="k"),
        *run("d", 4, 1, 2, key="m"),
    ]
    events = sorted(runs, key=lambda one: one.at)
    assert list(checker.overlapping_runs(events, 3, by="key")) == []
    assert list(checker.overlapping_runs(events, 2, by="key")) == ["3 runs of k at once at 1.000"]


def test_more_leases_of_a_key_than_its_ceiling_are_found() -> None:
    leases = [
        ("k", (End(1, "completed", 0, 10),)),
        ("k", (End(1, "completed", 10, 20),)),
        ("k", (End(1, "failed", 9, 15),)),
    ]
    assert list(checker.leases_above(leases, 2)) == []
    assert list(checker.leases_above(leases, 1)) == [
        "2 leases of k at once at 9",
        "2 leases of k at once at 10",
    ]


@pytest.mark.parametrize(
    "instants, crowded",
    [([0, 10, 20], False), ([0, 10, 19], False), ([0, 5, 9], True), ([100, 0, 109, 105], True)],
)
def test_a_window_that_is_too_full_is_found_wherever_it_begins(instants: list[int], crowded: bool) -> None:
    """At most two starts in any half-open window of 10 ms."""
    assert bool(list(checker.crowded_windows(instants, 2, 10))) is crowded
    assert (checker.busiest_window(instants, 10) > 2) is crowded


def test_a_recovery_is_the_time_from_a_kill_to_the_next_run() -> None:
    assert checker.recoveries(good()) == pytest.approx([1.6])
    assert checker.recoveries([one for one in good() if one.fence != 20]) == [math.inf]
    killed_again = [
        *[one for one in good() if one.what != "started" or one.fence == 10],
        event(3.15, "killed", "", pid=2),
    ]
    assert checker.recoveries(killed_again) == pytest.approx([1.5])


def test_a_percentile_is_a_value_of_the_list() -> None:
    assert checker.percentile([3, 1, 2], 0.5) == 2
    assert checker.percentile(range(100), 0.99) == 99
    assert math.isnan(checker.percentile([], 0.5))


def test_a_history_is_read_back_in_the_order_of_time(tmp_path: Path) -> None:
    first, second = History(tmp_path / "a.history", "a"), History(tmp_path / "b.history", "b")
    first.note("started", job="j", fence=3)
    second.note_all([("claimed", {"job": "j"}), ("acked", {})])
    first.note("returned", job="j")
    for one in (first, second):
        one.close()
    events = history.read(tmp_path)
    assert [(one.who, one.what) for one in events] == [
        ("a", "started"),
        ("b", "claimed"),
        ("b", "acked"),
        ("a", "returned"),
    ]
    assert events[0].fence == 3
