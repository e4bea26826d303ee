"""Who is charged for a lapse when the store, or this process, was away for a while (INV-37)."""

from __future__ import annotations

from tessera.engine.duties import Sweeper
from tessera.model.outcomes import Completed
from tessera.model.states import State
from tests.engine.lab import LEASE, Lab

S = State


def sweeper() -> Sweeper:
    return Sweeper("a", ("q",), lease_seconds=LEASE / 1_000)


def rescued(lab: Lab, who: Sweeper) -> int:
    return lab.run(who.sweep(lab.store)).rescued


def test_regular_sweeps_charge_a_lapse_as_a_crash(lab: Lab):
    job = lab.start()
    mine = sweeper()
    for _ in range(LEASE // 5_000):
        assert rescued(lab, mine) == 0
        lab.advance(5_000)
    assert rescued(lab, mine) == 1
    assert lab.job(job.id).crashes == 1


def test_the_first_sweep_of_a_process_charges(lab: Lab):
    """Else a payload that kills each worker at once would never be charged."""
    job = lab.start()
    lab.advance(10 * LEASE)
    assert rescued(lab, sweeper()) == 1
    assert lab.job(job.id).crashes == 1


def test_after_an_outage_nobody_is_taken_back_for_a_lease_and_then_without_a_charge(lab: Lab):
    """An outage of the store costs no attempt and no crash by itself."""
    lost, other = lab.start(max_crashes=1), lab.start(max_crashes=1)
    mine = sweeper()
    rescued(lab, mine)
    lab.advance(10 * LEASE)
    assert rescued(lab, mine) == 0
    lab.advance(LEASE // 2)
    assert rescued(lab, mine) == 0
    assert lab.states(lost.id, other.id) == [S.RUNNING, S.RUNNING]
    lab.advance(LEASE // 2)
    assert rescued(lab, mine) == 2
    row = lab.job(lost.id)
    assert (row.state, row.crashes, row.ends[-1].end) == (S.AVAILABLE, 0, "released")


def test_once_an_outage_is_over_lapses_are_charged_again(lab: Lab):
    """What lapsed in that span is forgiven, and nothing else."""
    lab.start()
    mine = sweeper()
    rescued(lab, mine)
    lab.advance(2 * LEASE)
    for _ in range(3):
        rescued(lab, mine)
        lab.advance(LEASE // 2)
    again = lab.take()
    for _ in range(7):
        rescued(lab, mine)
        lab.advance(LEASE // 6)
    rescued(lab, mine)
    assert lab.job(again.id).crashes == 1
    lab.end(lab.again(again.id), Completed())
