"""Keeping leases, and what may be written under them."""

from __future__ import annotations

import pytest

from tessera.engine import extending
from tessera.engine.extending import Renewal
from tessera.model.errors import StaleLease
from tessera.model.job import Extras, Progress, extras_of
from tessera.model.outcomes import Completed
from tests.engine.lab import LEASE, Lab


def test_a_renewed_lease_ends_so_long_after_the_renewal(lab: Lab):
    """INV-8."""
    job = lab.start()
    lab.advance(20_000)
    assert lab.run(extending.renew(lab.store, [Renewal(job)], LEASE)) == []
    assert lab.job(job.id).lease_until == lab.now + LEASE
    lab.advance(LEASE - 1)
    assert lab.sweep().rescued == 0
    assert lab.end(job, Completed()) is not None


@pytest.mark.capability("R3")
def test_a_renewal_names_the_leases_that_were_lost_and_keeps_the_others(lab: Lab):
    """INV-7."""
    kept, lapsed = lab.start(), lab.start()
    lab.run(extending.renew(lab.store, [Renewal(kept)], 2 * LEASE))
    lab.advance(LEASE)
    assert lab.run(extending.renew(lab.store, [Renewal(kept), Renewal(lapsed)], LEASE)) == [lapsed.id]


@pytest.mark.capability("H20")
def test_a_lease_that_lapsed_cannot_be_extended(lab: Lab):
    """INV-7."""
    job = lab.start()
    lab.advance(LEASE)
    with pytest.raises(StaleLease):
        lab.run(extending.extend(lab.store, job, LEASE))
    assert lab.job(job.id) == job


@pytest.mark.capability("H20")
def test_a_lease_may_be_extended_beyond_the_usual(lab: Lab):
    job = lab.start()
    lab.run(extending.extend(lab.store, job, 10 * LEASE))
    assert lab.job(job.id).lease_until == lab.now + 10 * LEASE


def test_no_renewal_passes_the_cap_of_the_claim(lab: Lab):
    """INV-9."""
    lab.enqueue()
    [job] = lab.claim(cap_ms=40_000)
    lab.advance(20_000)
    lab.run(extending.extend(lab.store, job, LEASE))
    assert lab.job(job.id).lease_until == lab.now + 20_000


@pytest.mark.capability("H12")
def test_a_renewal_carries_what_the_handler_said(lab: Lab):
    job = lab.start()
    said = Extras(progress=Progress(1, 3, "page 1"), log=("one",), output=b"1")
    lab.run(extending.renew(lab.store, [Renewal(job, said)], LEASE))
    assert extras_of(lab.job(job.id)) == said


def test_a_stale_holder_says_nothing(lab: Lab):
    """INV-7."""
    late = lab.start()
    lab.lapse(late)
    lab.again(late.id)
    lab.run(extending.renew(lab.store, [Renewal(late, Extras(log=("late",)))], LEASE))
    assert extras_of(lab.job(late.id)).log == ()


def test_a_holder_sees_which_of_its_jobs_shall_stop(lab: Lab):
    first, second = lab.start(), lab.start()
    lab.enqueue()
    [other] = lab.claim(holder="other")
    for job in (second, other):
        lab.cancel(job.id)
    assert [job.id for job in lab.run(extending.asked_to_stop(lab.store, "h"))] == [second.id]
    assert first.id not in {job.id for job in lab.run(extending.asked_to_stop(lab.store, "h"))}


def test_a_holder_finds_all_it_holds_also_over_many_pages(lab: Lab):
    """A claim whose reply was lost is not a crash of what it took."""
    for _ in range(450):
        lab.enqueue()
    claimed = {job.id for job in lab.claim(n=430)}
    lab.claim(n=20, holder="other")
    held = lab.run(extending.held(lab.store, "h"))
    assert {job.id for job in held} == claimed
    assert len(held) == 430
