"""Leases that lapse: who is charged, what waits, and what is quarantined."""

from __future__ import annotations

import pytest

from tessera.model.changes import After
from tessera.model.job import Terms, encode_terms
from tessera.model.outcomes import Completed, Crashed, Failed
from tessera.model.states import State
from tessera.model.views import view
from tests.engine.lab import DAY, HOUR, LEASE, Lab, need

S = State


@pytest.mark.capability("R1")
def test_a_lapse_is_a_crash_and_no_failure(lab: Lab):
    """INV-11."""
    row = lab.lapse(lab.start())
    assert (row.failures, row.crashes, row.attempt, row.ends[0].end) == (0, 1, 1, "crashed")
    assert row.ends[0].error == "the lease lapsed"
    assert lab.events(row.id)[-1].by == "sweep"


def test_a_live_lease_is_never_taken_back(lab: Lab):
    """INV-8: not before its expiry."""
    job = lab.start()
    lab.advance(LEASE - 1)
    assert lab.sweep().rescued == 0
    lab.advance(1)
    assert lab.sweep().rescued == 1
    assert lab.state(job.id) is S.SCHEDULED


@pytest.mark.capability("R9")
@pytest.mark.parametrize("dice", [0.0, 0.999])
def test_a_suspect_waits_longer_after_each_crash_so_that_its_siblings_pass_it(lab: Lab, dice: float):
    lab.seam.dice = dice
    job = lab.start("suspect", max_crashes=0)
    sibling = lab.enqueue("sibling")
    waits = []
    for _ in range(3):
        row = lab.lapse(job)
        waits.append(row.due - lab.now)
        if len(waits) == 1:
            lab.end(lab.take(sibling), Completed())
        job = lab.again(job.id)
    for wait, longest in zip(waits, (1_000, 2_000, 4_000), strict=True):
        assert longest * (1 - 0.5 * dice) <= wait <= longest


def test_the_wait_after_a_crash_is_an_hour_at_most(lab: Lab):
    job = lab.start(max_crashes=0)
    for _ in range(12):
        lab.lapse(job)
        job = lab.again(job.id)
    row = lab.lapse(job)
    assert row.due - lab.now == HOUR


@pytest.mark.capability("A10")
def test_crashes_up_to_the_limit_within_a_day_are_quarantine(lab: Lab):
    """INV-12: and nothing but a person's act lets it run again."""
    job = lab.start()
    assert lab.lapse(job).state is S.SCHEDULED
    assert lab.lapse(lab.again(job.id)).state is S.SCHEDULED
    row = lab.lapse(lab.again(job.id))
    assert (row.state, row.reason, row.crashes) == (S.QUARANTINED, "crashes_used", 3)
    lab.advance(30 * DAY)
    lab.sweep()
    assert lab.claim() == []


@pytest.mark.capability("A10")
def test_crashes_spread_over_more_than_a_day_condemn_nobody(lab: Lab):
    job = lab.start()
    for _ in range(4):
        row = lab.lapse(job)
        assert row.state is S.SCHEDULED
        lab.advance(DAY)
        lab.sweep()
        job = lab.take(job.id)
    assert job.crashes == 4


@pytest.mark.capability("A10")
def test_the_window_slides(lab: Lab):
    job = lab.start()
    for hours in (
        20,
        5,
        3,
    ):  # the third crash is over a day after the first, the fourth 8 hours after the second
        assert lab.lapse(job).state is S.SCHEDULED
        lab.advance(hours * HOUR)
        lab.sweep()
        job = lab.take(job.id)
    assert lab.lapse(job).state is S.QUARANTINED


def test_a_limit_of_none_is_no_quarantine(lab: Lab):
    job = lab.start(max_crashes=0)
    for _ in range(11):
        assert lab.lapse(job).state is S.SCHEDULED
        job = lab.again(job.id)


def test_a_limit_above_the_ends_that_are_kept_still_holds(lab: Lab):
    job = lab.start(max_crashes=12)
    lab.edit_row(job.id, body=encode_terms(Terms(crash_backoff_ms=1)))
    for _ in range(11):
        assert lab.lapse(job).state is S.SCHEDULED
        job = lab.again(job.id)
    assert lab.lapse(job).state is S.QUARANTINED


@pytest.mark.capability("A10")
def test_on_crashes_dead_leaves_the_fingerprint_alone(lab: Lab):
    job = lab.start("poison", max_crashes=1, terms={"on_crashes": "dead"})
    row = lab.lapse(job)
    assert (row.state, row.reason) == (S.DEAD, "crashes_used")
    sibling = lab.enqueue("poison")
    assert lab.take().id == sibling


@pytest.mark.capability("A10")
def test_jobs_of_a_quarantined_fingerprint_are_set_apart_at_claim_and_never_at_enqueue(lab: Lab):
    """A producer's transaction must not fail because a worker ran out of memory."""
    lab.lapse(lab.start("poison", max_crashes=1))
    sibling, other = lab.enqueue("poison"), lab.enqueue("harmless")
    assert lab.take().id == other
    assert lab.claim() == []
    row = lab.job(sibling)
    assert (row.state, row.reason, row.crashes) == (S.QUARANTINED, "fingerprint", 0)


@pytest.mark.capability("A10")
def test_the_same_payload_of_another_kind_is_not_suspected(lab: Lab):
    lab.lapse(lab.start("poison", max_crashes=1))
    other = lab.enqueue("poison", kind="other")
    assert lab.take().id == other


@pytest.mark.capability("A10")
def test_a_retry_trusts_the_fingerprint_again(lab: Lab):
    job = lab.lapse(lab.start("poison", max_crashes=1))
    lab.retry(job.id)
    sibling = lab.enqueue("poison")
    assert [job.id for job in lab.claim(n=9)] == [job.id, sibling]


@pytest.mark.capability("A10")
def test_cancelling_a_quarantined_job_does_not_let_its_siblings_loose(lab: Lab):
    """INV-12: only a retry says that the payload is trusted."""
    job = lab.lapse(lab.start("poison", max_crashes=1))
    lab.cancel(job.id)
    sibling = lab.enqueue("poison")
    assert lab.claim() == []
    assert lab.state(sibling) is S.QUARANTINED


def test_a_redriven_job_has_all_its_chances_again(lab: Lab):
    job = lab.start(max_crashes=2)
    lab.lapse(job)
    assert lab.lapse(lab.again(job.id)).state is S.QUARANTINED
    lab.retry(job.id)
    job = lab.take(job.id)
    assert (job.crashes, job.attempt) == (0, 1)
    assert lab.lapse(job).state is S.SCHEDULED


@pytest.mark.capability("R1")
def test_a_crash_that_the_worker_saw_counts_with_those_that_lapsed(lab: Lab):
    job = lab.start(max_crashes=2)
    lab.lapse(job)
    row = lab.ended(lab.again(job.id), Crashed("signal 11"))
    assert (row.state, row.crashes) == (S.QUARANTINED, 2)


def test_failures_do_not_lead_to_quarantine(lab: Lab):
    job = lab.start(max_crashes=2)
    for _ in range(4):
        assert lab.ended(job, Failed("x")).state is S.SCHEDULED
        job = lab.again(job.id)


@pytest.mark.capability("R15")
def test_a_job_that_was_orphaned_once_says_so_after_its_success(lab: Lab):
    job = lab.start()
    lab.lapse(job)
    assert view(lab.ended(lab.again(job.id), Completed())).orphaned
    assert not view(lab.ended(lab.start(), Failed("x"))).orphaned


def test_an_uncharged_lapse_is_a_release(lab: Lab):
    """INV-37: an outage of the store is nobody's crash."""
    row = lab.lapse(lab.start(max_crashes=1), charged=False)
    assert (row.state, row.crashes, row.failures, row.ends[0].end) == (S.AVAILABLE, 0, 0, "released")


def test_a_sweep_may_leave_lapsed_leases_alone(lab: Lab):
    """INV-37: while their holders still have a lease's time to renew."""
    job = lab.start()
    lab.advance(LEASE)
    assert lab.sweep(rescue=False).rescued == 0
    assert lab.state(job.id) is S.RUNNING


@pytest.mark.parametrize("charged", [True, False])
def test_a_job_that_was_asked_to_stop_is_cancelled_when_its_lease_lapses(lab: Lab, charged: bool):
    job = lab.start(max_crashes=1)
    lab.cancel(job.id)
    row = lab.lapse(job, charged=charged)
    assert (row.state, row.reason, row.crashes) == (S.CANCELLED, "cancelled", 0)


def test_a_lapsed_lease_gives_its_units_back(lab: Lab):
    """INV-25: counted by live leases, so that no semaphore leaks."""
    lab.ceiling("one", 1)
    lab.lapse(lab.start(needs=need("one")))
    assert lab.used("one") == (0, 0)


def test_a_lapse_keeps_the_deadline(lab: Lab):
    row = lab.lapse(lab.start(expires_ms=10, deadline=After(DAY)))
    assert row.expires_at == row.deadline > 0
