"""A fork while the store is in use."""

from __future__ import annotations

import sys

import pytest

from tests.faults import forking
from tests.faults.rig import Rig

pytestmark = [pytest.mark.store("sqlite"), pytest.mark.timeout(90)]


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="not offered: open files are counted in /proc"
)
@pytest.mark.capability("P1")
def test_after_a_fork_parent_and_child_go_on_with_connections_of_their_own(rig: Rig) -> None:
    """T-fork. INV-1. Two threads of the parent are writing all the while."""
    scenario = rig.start("forking", forking.Plan(rig.url, str(rig.database)))
    assert scenario.wait() == 0, rig.log_of(scenario)
    events, rows = rig.events(), rig.rows()
    marked = {
        how: [e.number for e in events if e.what == "marked" and e.how == how]
        for how in ("inherited", "own", "left")
    }
    acked = [event for event in events if event.what == "acked"]
    of_children = [event for event in acked if event.pid != scenario.pid]
    rig.report(acked=len(acked), of_children=len(of_children), open_files=marked)
    assert [event.number for event in events if event.how == "statuses"] == [0]
    assert marked["inherited"] == [0] * forking.CHILDREN
    assert all(number >= 1 for number in marked["own"])
    assert len(marked["own"]) == forking.CHILDREN
    assert marked["left"] == [0] * forking.CHILDREN
    assert len(of_children) == forking.CHILDREN * forking.PER_CHILD
    assert len(acked) - len(of_children) >= 20
    assert sorted(event.job for event in acked) == sorted(rows)
    worker = rig.worker()
    rig.drain()
    rig.stop(worker)
    rig.check()
