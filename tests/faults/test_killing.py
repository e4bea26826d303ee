"""kill -9 of workers under load."""

from __future__ import annotations

import time

import pytest

from tessera.model.states import State
from tests.faults import checker
from tests.faults.rig import Process, Rig

pytestmark = pytest.mark.timeout(90)

LEASE = 1.5
MIX = {"nap": 6, "doze": 4, "stumble": 2, "doomed": 1}
LOAD_SECONDS = 12.0
KILL_EVERY = 0.3


@pytest.mark.capability("R1", "R2", "R3")
def test_no_acknowledged_job_is_lost_and_none_runs_after_completion_when_workers_are_killed(
    any_rig: Rig,
) -> None:
    """T-kill. INV-1, INV-2, INV-5, INV-6, INV-7, INV-11."""
    rig = any_rig
    workers = [_worker(rig) for _ in range(4)]
    producers = [rig.producer(MIX, rate=9) for _ in range(3)]
    kills = 0
    end = time.monotonic() + LOAD_SECONDS
    while (now := time.monotonic()) < end:
        busy = [worker for worker in workers if _is_busy(worker)]
        if busy:
            victim = rig.random.choice(busy)
            rig.kill(victim)
            workers[workers.index(victim)] = _worker(rig)
            kills += 1
        time.sleep(max(0.0, now + KILL_EVERY - time.monotonic()))
    rig.stop(*producers)
    rig.drain()
    rig.stop(*workers)
    events, rows = rig.check({"doomed": State.DEAD})
    again = checker.recoveries(events)
    forgiven = sum(event.what == "rescued" and event.how == "released" for event in events)
    rig.report(
        jobs=len(rows),
        kills=kills,
        crashes_counted=sum(row.crashes for row in rows.values()),
        lapses_forgiven=forgiven,
        runs_cut_short=len(again),
        rerun_median=checker.percentile(again, 0.5),
        rerun_p99=checker.percentile(again, 0.99),
        machine_late=rig.pulse.worst_seconds,
    )
    assert len(again) >= 20, f"{len(again)} runs were cut short: too few to say anything"
    if rig.url.startswith("sqlite"):
        # A worker takes longer to start on a server, and is often killed with jobs that it has claimed and
        # not begun: each time these wait for another lease, so that there the figure is only reported.
        assert checker.percentile(again, 0.99) <= LEASE + 2 + rig.pulse.worst_seconds
    assert any(row.crashes for row in rows.values())
    assert any(row.failures for row in rows.values())


def _worker(rig: Rig) -> Process:
    return rig.worker(lease_seconds=LEASE)


def _is_busy(worker: Process) -> bool:
    """Whether it runs something just now: an idle one that is killed shows nothing."""
    events = worker.events()
    started = sum(event.what == "started" for event in events)
    return started > sum(event.what in ("returned", "raised", "stopped") for event in events)
