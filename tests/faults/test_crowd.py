"""Many processes on one file: limits hold over all of them, and the books are exact."""

from __future__ import annotations

import time

import pytest

from tessera.model.states import State
from tests.faults import checker, work
from tests.faults.rig import Rig

pytestmark = [pytest.mark.store("sqlite"), pytest.mark.timeout(90)]

SECONDS = 12.0
MIX = {"nap": 3, "doze": 2, "stumble": 2, "doomed": 1, "keyed": 6, "metered": 6, "apart": 1}


@pytest.mark.capability("A1", "A4", "A15", "R2")
def test_limits_hold_and_counts_are_exact_with_seven_processes_on_one_file(rig: Rig) -> None:
    """INV-1, INV-15, INV-25, INV-26."""
    workers = [rig.worker(concurrency=8, lease_seconds=5) for _ in range(4)]
    producers = [rig.producer(MIX, rate=30, longest_ms=200) for _ in range(3)]
    time.sleep(SECONDS)
    rig.stop(*producers)
    rig.drain()
    rig.stop(*workers)
    counts = rig.counts()
    events, rows = rig.check({"doomed": State.DEAD})
    by_key = [
        (event.key, rows[event.job].ends) for event in _first_runs(events) if rows[event.job].kind == "keyed"
    ]
    metered = [end.started_at for row in rows.values() if row.kind == "metered" for end in row.ends]
    found = [
        *checker.overlapping_runs(events),
        *checker.overlapping_runs(
            (e for e in events if e.kind == "keyed" or not e.kind), work.CEILING, by="key"
        ),
        *checker.leases_above(by_key, work.CEILING),
        *checker.crowded_windows(metered, work.RATE, round(work.RATE_SECONDS * 1_000)),
        *checker.burnt({key: row for key, row in rows.items() if row.state is State.COMPLETED}),
    ]
    tally = {
        state: sum(row.state is state for row in rows.values()) for state in (State.COMPLETED, State.DEAD)
    }
    acked = sum(event.what == "acked" for event in events)
    rig.report(
        jobs=len(rows),
        jobs_a_second=len(rows) / SECONDS,
        metered=len(metered),
        busiest_window=checker.busiest_window(metered, round(work.RATE_SECONDS * 1_000)),
        keyed=len(by_key),
        machine_late=rig.pulse.worst_seconds,
    )
    assert not found, "\n".join(found[:10])
    assert acked == len(rows)
    assert {state: n for (_, state), n in counts.items() if n} == {
        state: n for state, n in tally.items() if n
    }
    assert len(metered) > 2 * work.RATE, "the rate was never reached"


def _first_runs(events):
    seen = set()
    for event in events:
        if event.what == "started" and event.job not in seen:
            seen.add(event.job)
            yield event
