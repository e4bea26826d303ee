"""What the clock makes due, done once however many sweep."""

from __future__ import annotations

import msgspec
import pytest

from tessera.engine import finishing, operating, sweeping
from tessera.engine.finishing import Finish
from tessera.model.changes import After, PutRecord, TakeSlot
from tessera.model.job import Keep
from tessera.model.outcomes import Completed, Failed
from tessera.model.states import State
from tests.engine.lab import DAY, LEASE, Lab, need

S = State


@pytest.mark.capability("P9")
def test_a_scheduled_job_becomes_available_at_its_time_and_not_before(lab: Lab):
    """INV-13."""
    key = lab.enqueue(due=After(10_000))
    lab.advance(9_999)
    assert lab.sweep().promoted == 0
    assert lab.claim() == []
    lab.advance(1)
    assert lab.sweep().promoted == 1
    assert lab.take().id == key


@pytest.mark.capability("R4")
def test_jobs_that_became_due_are_claimed_in_the_order_of_their_times_and_then_of_their_keys(lab: Lab):
    """R4: also when one sweep brings them all."""
    late = lab.enqueue(due=After(3_000))
    early = [lab.enqueue(due=After(1_000)) for _ in range(3)]
    middle = lab.enqueue(due=After(2_000))
    lab.advance(5_000)
    lab.sweep()
    assert [job.id for job in lab.claim(n=9)] == [*early, middle, late]


def test_a_job_that_waited_long_comes_before_one_enqueued_just_now(lab: Lab):
    waited = lab.enqueue(due=After(1_000))
    lab.advance(5_000)
    lab.enqueue("fresh")
    lab.sweep()
    assert lab.take().id == waited


@pytest.mark.capability("H8")
def test_what_did_not_start_in_time_is_dead_with_the_reason(lab: Lab):
    scheduled = lab.enqueue(due=After(1_000), expires_ms=5_000)
    available = lab.enqueue(expires_ms=6_000)
    pending = lab.enqueue(pending=True, expires_ms=6_000)
    lab.advance(6_000)
    assert lab.sweep().expired == 3
    for key in (scheduled, available, pending):
        assert (lab.job(key).state, lab.job(key).reason) == (S.DEAD, "expired")


@pytest.mark.capability("H8")
def test_expiry_is_counted_from_the_due_time(lab: Lab):
    key = lab.enqueue(due=After(10_000), expires_ms=1_000)
    lab.advance(10_999)
    lab.sweep()
    assert lab.take().id == key


@pytest.mark.capability("H8")
def test_a_claim_hands_nothing_out_that_expired_before_any_sweep(lab: Lab):
    key = lab.enqueue(expires_ms=1_000)
    lab.advance(1_000)
    assert lab.claim() == []
    assert lab.state(key) is S.DEAD


def test_a_running_job_does_not_expire(lab: Lab):
    job = lab.start(expires_ms=1_000)
    lab.advance(5_000)
    assert lab.sweep().expired == 0
    assert lab.ended(job, Completed()).state is S.COMPLETED


@pytest.mark.capability("R5")
def test_rows_whose_retention_is_over_go_with_one_event_a_queue(lab: Lab):
    """INV-1: nothing vanishes unrecorded."""
    for queue, count in (("q", 3), ("r", 2)):
        for _ in range(count):
            key = lab.enqueue(queue=queue, keep=Keep(completed=60_000))
            lab.end(lab.take(key, queue), Completed())
    lab.advance(59_999)
    assert lab.sweep().evicted == 0
    lab.advance(1)
    assert lab.sweep().evicted == 5
    assert lab.everything() == []
    evicted = [(e.queue, msgspec.json.decode(e.data), e.by) for e in lab.events() if e.what == "evicted"]
    assert evicted == [("q", {"count": 3}, "sweep"), ("r", {"count": 2}, "sweep")]


@pytest.mark.capability("R5")
def test_the_dead_letter_is_kept_for_ever_unless_told_otherwise(lab: Lab):
    kept = lab.enqueue()
    lab.bury(kept)
    gone = lab.enqueue(keep=Keep(dead=60_000))
    lab.bury(gone)
    lab.advance(1_000 * DAY)
    lab.sweep()
    assert lab.states(kept, gone) == [S.DEAD, None]


def test_a_slot_with_a_time_of_its_own_is_free_when_that_is_over(lab: Lab):
    key = lab.enqueue()
    lab.do(TakeSlot("t:window", key, After(5_000)))
    lab.advance(5_000)
    lab.sweep()
    assert "t:window" not in lab.world.slots


@pytest.mark.capability("A1")
def test_a_rate_wakes_who_waits_for_it_by_one_timer(lab: Lab):
    """INV-26, INV-28."""
    lab.rate("api", 2, per_ms=10_000)
    for _ in range(5):
        lab.enqueue(needs=need("api"))
    assert len(lab.claim(n=9)) == 2
    assert lab.used("api") == (2, 3)
    lab.advance(4_999)
    lab.sweep()
    assert lab.claim(n=9) == []
    lab.advance(1)
    lab.sweep()
    assert len(lab.claim(n=9)) == 1


def test_a_parent_with_thousands_of_dependants_is_settled_in_several_commits(lab: Lab):
    """INV-20, INV-31."""
    parent = lab.enqueue()
    children = [lab.enqueue(after=[parent]) for _ in range(2_300)]
    lab.end(lab.take(parent), Completed())
    sizes: list[int] = []
    while (waiting := sum(lab.state(key) is S.PENDING for key in children)) and len(sizes) < 9:
        sizes.append(waiting)
        lab.sweep()
    assert sizes == [1_300, 300]
    assert {lab.state(key) for key in children} == {S.AVAILABLE}


def test_a_record_that_expired_is_removed(lab: Lab):
    lab.do(PutRecord("~request", "one", b"x", expires=After(1_000)), PutRecord("~request", "two", b"y"))
    lab.advance(1_000)
    lab.sweep()
    assert [key for space, key in lab.world.records if space == "~request"] == ["two"]


def test_a_record_written_anew_after_it_expired_survives_a_sweep_that_saw_the_old_one(lab: Lab):
    lab.do(PutRecord("~request", "one", b"old", expires=After(1_000)))
    lab.advance(1_000)
    store = lab.between("commit", lambda: lab.do(PutRecord("~request", "one", b"new")))
    lab.run(sweeping.sweep(store))
    [record] = lab.run(lab.store.get([("~request", "one")]))
    assert record is not None
    assert record.value == b"new"


def test_a_sweep_of_some_queues_leaves_the_others_alone(lab: Lab):
    mine, other = lab.enqueue(due=After(1_000)), lab.enqueue(queue="r", due=After(1_000))
    lab.advance(1_000)
    assert lab.sweep(queues=["q"]).promoted == 1
    assert lab.states(mine, other) == [S.AVAILABLE, S.SCHEDULED]


def test_a_full_list_says_that_another_sweep_is_worth_it(lab: Lab):
    for _ in range(3):
        lab.enqueue(due=After(1_000))
    lab.advance(1_000)
    first = lab.sweep(limit=2)
    assert (first.promoted, first.more) == (2, True)
    second = lab.sweep(limit=2)
    assert (second.promoted, second.more) == (1, False)


def test_a_sweep_says_when_the_next_job_is_due(lab: Lab):
    lab.enqueue(due=After(7_000))
    swept = lab.sweep()
    assert (swept.now, swept.next_due) == (lab.now, lab.now + 7_000)


def test_a_sweep_with_nothing_to_do_writes_nothing(lab: Lab):
    lab.enqueue()
    store = lab.between("commit", lambda: pytest.fail("a commit"))
    swept = lab.run(sweeping.sweep(store))
    assert (swept.promoted, swept.rescued, swept.expired, swept.evicted) == (0, 0, 0, 0)


# Two at once ------------------------------------------------------------------------------------------------


def _everything_due(lab: Lab) -> None:
    lab.enqueue("done", keep=Keep(completed=10_000))
    lab.end(lab.take(), Completed())
    lab.enqueue("scheduled", due=After(1_000))
    lab.start("leased")
    lab.enqueue("expiring", expires_ms=1_000)
    lab.rate("api", 1, per_ms=1_000)
    lab.enqueue(needs=need("api"), queue="r")
    lab.enqueue(needs=need("api"), queue="r")
    assert len(lab.claim("r", n=2)) == 1
    lab.do(PutRecord("~request", "one", b"x", expires=After(1_000)))
    lab.advance(LEASE)


def test_two_sweeps_at_once_do_everything_once(lab: Lab):
    """INV-2, INV-14: the second writes what it read before the first wrote."""
    _everything_due(lab)
    first: list[sweeping.Swept] = []
    store = lab.between("commit", lambda: first.append(lab.sweep()))
    second = lab.run(sweeping.sweep(store))
    assert (first[0].promoted, first[0].rescued, first[0].expired, first[0].evicted) == (1, 2, 1, 1)
    assert (second.promoted, second.rescued, second.expired, second.evicted) == (0, 0, 0, 0)
    told = lab.told()
    assert [told.count(what) for what in ("evicted", "crashed", "dead")] == [1, 2, 1]


def test_a_job_that_failed_after_the_sweep_read_it_waits_for_its_new_time(lab: Lab):
    """INV-13: it is scheduled once more, and not yet due."""
    key = lab.enqueue(due=After(1_000))
    lab.advance(1_000)

    def run_and_fail() -> None:
        lab.sweep()
        lab.end(lab.take(key), Failed("x"))

    swept = lab.run(sweeping.sweep(lab.between("commit", run_and_fail)))
    assert swept.promoted == 0
    assert (lab.state(key), lab.job(key).due) == (S.SCHEDULED, lab.now + 15_000)


def test_a_job_that_was_put_off_after_the_sweep_read_it_waits_for_its_new_time(lab: Lab):
    """INV-13."""
    key = lab.enqueue(due=After(1_000))
    lab.advance(1_000)
    store = lab.between("commit", lambda: lab.run(operating.edit(lab.store, key, due=After(60_000))))
    lab.run(sweeping.sweep(store))
    assert (lab.state(key), lab.job(key).due) == (S.SCHEDULED, lab.now + 60_000)


def test_a_row_that_was_redriven_and_ended_again_is_not_evicted_for_its_former_end(lab: Lab):
    """INV-1: its retention began anew."""
    key = lab.enqueue(keep=Keep(dead=60_000))
    lab.bury(key)
    lab.advance(60_000)

    def redrive_and_bury() -> None:
        lab.retry(key)
        lab.bury(key)

    lab.run(sweeping.sweep(lab.between("commit", redrive_and_bury)))
    assert lab.state(key) is S.DEAD


def test_a_job_that_was_renewed_after_the_sweep_read_it_is_not_taken_back(lab: Lab):
    """INV-5: nobody can renew a lapsed lease, but a finish of the last moment stands."""
    job = lab.start()
    lab.advance(LEASE - 1)
    [answer] = lab.run(finishing.finish(lab.store, [Finish(job, Completed(b"1"))]))
    assert answer is None
    lab.advance(1)
    assert lab.sweep().rescued == 0
    assert lab.job(job.id).result == b"1"


def test_a_dead_job_that_was_retried_after_the_sweep_read_it_does_not_expire_again(lab: Lab):
    key = lab.enqueue(expires_ms=1_000)
    lab.advance(1_000)

    def bury_and_retry() -> None:
        lab.sweep()
        lab.retry(key)

    lab.run(sweeping.sweep(lab.between("commit", bury_and_retry)))
    assert lab.state(key) is S.AVAILABLE
