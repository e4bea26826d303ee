"""Workers that are stopped for longer than their leases, and then go on as if nothing had been."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pytest

from tests.faults.history import Event
from tests.faults.rig import Process, Rig

pytestmark = pytest.mark.timeout(90)

LEASE = 1.2
STALE_WRITES = 50
FENCED = 10
LONGEST_SECONDS = 25.0


@pytest.mark.capability("R2", "R3")
def test_every_write_of_a_worker_that_was_stopped_beyond_its_leases_is_refused(any_rig: Rig) -> None:
    """T-pause. INV-5, INV-6, INV-7, INV-10."""
    rig = any_rig
    workers = [rig.worker(lease_seconds=LEASE, concurrency=16, prefetch=0) for _ in range(3)]
    producers = [
        rig.producer({"nap": 3, "doze": 2, "deaf": 1, "stubborn": 3}, rate=24, longest_ms=1_400)
        for _ in range(2)
    ]
    rig.until(lambda: all(_running(worker) >= 3 for worker in workers), "every worker has work")
    end = time.monotonic() + LONGEST_SECONDS
    pauses = 0
    while pauses < 4 or (_shows_too_little(rig.events()) and time.monotonic() < end):
        victim = rig.random.choice(workers)
        rig.pause(victim, LEASE * rig.random.uniform(1.3, 2.0))
        pauses += 1
        time.sleep(LEASE / 2)
    rig.stop(*producers)
    rig.drain()
    rig.stop(*workers)
    events, rows = rig.check()
    stale = _stale(events)
    fenced = _fenced_after_pause(events)
    rig.report(
        jobs=len(rows),
        pauses=pauses,
        stale_writes_refused=len(stale),
        of_them_renewals=sum(event.how == "renewal" for event in stale),
        handlers_fenced=fenced,
        crashes_counted=sum(row.crashes for row in rows.values()),
        lapses_forgiven=sum(event.what == "rescued" and event.how == "released" for event in events),
        machine_late=rig.pulse.worst_seconds,
    )
    assert len(stale) >= STALE_WRITES, "too few stale writes were tried: this run shows nothing"
    assert any(event.how == "completed" for event in stale), "no stale end was tried, renewals only"
    assert fenced >= FENCED, "handlers of a stopped worker went on under leases that were over"


@pytest.mark.capability("R1")
def test_a_lock_that_outlasts_every_lease_costs_nobody_a_crash(rig: Rig) -> None:
    """INV-37: whoever could not renew because nobody could write is not to blame."""
    workers = [rig.worker(lease_seconds=LEASE, concurrency=8) for _ in range(3)]
    producers = [rig.producer({"nap": 1, "doze": 1}, rate=8, longest_ms=1_500) for _ in range(2)]
    rig.until(lambda: all(_running(worker) >= 3 for worker in workers), "every worker has work")
    for _ in range(2):
        with closing(sqlite3.connect(rig.database, isolation_level=None, timeout=10)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(LEASE * 2)
            connection.execute("ROLLBACK")
        time.sleep(LEASE * 1.5)
    rig.stop(*producers)
    rig.drain()
    rig.stop(*workers)
    events, rows = rig.check()
    forgiven = sum(event.what == "rescued" and event.how == "released" for event in events)
    rig.report(jobs=len(rows), lapses_forgiven=forgiven, machine_late=rig.pulse.worst_seconds)
    assert forgiven >= 5, "no lease lapsed under the lock: this run shows nothing"


def _stale(events: list[Event]) -> list[Event]:
    return [event for event in events if event.what == "stale"]


def _shows_too_little(events: list[Event]) -> bool:
    return len(_stale(events)) < STALE_WRITES or _fenced_after_pause(events) < FENCED


def _fenced_after_pause(events: list[Event]) -> int:
    """Handlers that were stopped within a second after their process went on."""
    went_on: dict[int, int] = {}
    fenced = 0
    for event in events:
        if event.what == "continued":
            went_on[event.pid] = event.at
        elif event.what == "stopped" and 0 <= event.at - went_on.get(event.pid, event.at + 1) < 1_000_000_000:
            fenced += 1
    return fenced


def _running(worker: Process) -> int:
    ends = ("returned", "raised", "stopped")
    return sum((event.what == "started") - (event.what in ends) for event in worker.events())
