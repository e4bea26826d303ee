"""SIGTERM for the whole fleet, again and again."""

from __future__ import annotations

import time

import pytest

from tests.faults import checker
from tests.faults.rig import Rig

pytestmark = pytest.mark.timeout(90)

ROUNDS = 6
EVERY_SECONDS = 2.0
MIX = {"nap": 8, "doze": 6, "stumble": 4, "keyed": 4, "apart": 1}


@pytest.mark.capability("H10")
def test_rolling_restarts_lose_nothing_overlap_nothing_and_burn_no_attempt(any_rig: Rig) -> None:
    """T-term. INV-1, INV-5, INV-30."""
    rig = any_rig
    settings = {"lease_seconds": 5, "grace_seconds": 10}
    workers = [rig.worker(**settings) for _ in range(3)]
    producers = [rig.producer(MIX, rate=15) for _ in range(2)]
    slowest = 0.0
    for _ in range(ROUNDS):
        began = time.monotonic()
        former, workers = workers, [rig.worker(**settings) for _ in range(3)]
        rig.stop(*former)
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(max(0.0, began + EVERY_SECONDS - time.monotonic()))
    rig.stop(*producers)
    rig.drain()
    rig.stop(*workers)
    events, rows = rig.check()
    found = [*checker.burnt(rows), *checker.overlapping_runs(events)]
    given_back = sum(event.what == "finished" and event.how == "given_back" for event in events)
    rig.report(
        jobs=len(rows), workers=3 * (ROUNDS + 1), given_back=given_back, slowest_stop=slowest,
        machine_late=rig.pulse.worst_seconds,
    )  # fmt: skip
    assert not found, "\n".join(found[:10])
    assert any(row.failures for row in rows.values())
    assert len(rows) >= 100
