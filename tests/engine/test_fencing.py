"""Who may write the end of an attempt, and how often."""

from __future__ import annotations

import msgspec
import pytest

from tessera.engine import finishing
from tessera.engine.finishing import Finish
from tessera.model.errors import Conflict, StaleLease
from tessera.model.outcomes import (
    Aborted,
    Cancelled,
    Completed,
    Crashed,
    Discarded,
    Failed,
    GivenBack,
    Outcome,
    Released,
    Snoozed,
    Split,
)
from tessera.model.states import State
from tests.engine.lab import LEASE, Lab

S = State


@pytest.mark.capability("R3")
@pytest.mark.parametrize(
    "outcome",
    [
        Completed(b"1"),
        Failed("x"),
        Crashed("x"),
        Snoozed(1),
        Released(),
        GivenBack(),
        Aborted("x"),
        Cancelled("x"),
    ],
    ids=lambda case: type(case).__name__,
)
def test_an_end_that_is_written_twice_is_answered_as_the_first_time(lab: Lab, outcome: Outcome):
    """INV-3: the first reply was lost."""
    job = lab.start()
    row = lab.ended(job, outcome)
    assert lab.finish(job, outcome) is None
    assert lab.job(job.id) == row


def test_a_repeated_split_makes_no_second_set_of_children(lab: Lab):
    """INV-3, INV-21."""
    job = lab.start()
    outcome = Split((lab.child(job, 0), lab.child(job, 1)))
    lab.ended(job, outcome)
    assert lab.finish(job, outcome) is None
    assert len(lab.everything()) == 3


@pytest.mark.capability("R3")
def test_another_end_of_the_same_lease_is_refused(lab: Lab):
    """INV-2."""
    job = lab.start()
    lab.ended(job, Completed(b"1"))
    assert isinstance(lab.finish(job, Failed("x")), StaleLease)
    assert lab.job(job.id).result == b"1"


@pytest.mark.capability("R3")
def test_a_late_worker_cannot_complete_a_reclaimed_job(lab: Lab):
    """INV-7."""
    late = lab.start()
    lab.lapse(late)
    now_held = lab.again(late.id)
    error = lab.finish(late, Completed(b"late"))
    assert isinstance(error, StaleLease)
    assert f"another lease has it (fence {now_held.fence})" in str(error)
    assert lab.job(late.id).state is S.RUNNING


@pytest.mark.parametrize(
    "outcome", [Completed(b"1"), Failed("x"), Snoozed(1), GivenBack()], ids=lambda case: type(case).__name__
)
def test_a_lapsed_lease_writes_nothing_even_before_anybody_noticed(lab: Lab, outcome: Outcome):
    """INV-7: expired by the store's clock is expired."""
    job = lab.start()
    lab.advance(LEASE + 250)
    error = lab.finish(job, outcome)
    assert isinstance(error, StaleLease)
    assert error.fence == job.fence
    assert "the lease lapsed 250 ms ago" in str(error)
    assert lab.job(job.id) == job


def test_the_last_millisecond_of_a_lease_still_counts(lab: Lab):
    job = lab.start()
    lab.advance(LEASE - 1)
    assert lab.ended(job, Completed()).state is S.COMPLETED


def test_a_job_that_is_gone_answers_so(lab: Lab):
    job = lab.start()
    lab.end(job, Discarded())
    assert "the job is gone" in str(lab.finish(job, Completed()))


@pytest.mark.capability("R3")
def test_one_stale_lease_is_no_trouble_for_its_neighbours(lab: Lab):
    first, stale, last = (lab.start(name) for name in "abc")
    lab.ended(stale, Failed("x"))
    answers = lab.run(
        finishing.finish(lab.store, [Finish(job, Completed(b"1")) for job in (first, stale, last)])
    )
    assert [type(answer) for answer in answers] == [type(None), StaleLease, type(None)]
    assert lab.states(first.id, stale.id, last.id) == [S.COMPLETED, S.SCHEDULED, S.COMPLETED]


def test_a_split_whose_child_contradicts_the_store_is_a_conflict_and_no_stale_lease(lab: Lab):
    """The lease is as live as before, so that the worker can end the attempt otherwise."""
    lab.enqueue("holder", unique_key="u:work:1")
    lab.take()
    job = lab.start()
    error = lab.finish(job, Split((lab.child(job, 0, slots=("u:work:1",)),)))
    assert isinstance(error, Conflict)
    assert "the key is taken" in str(error)
    assert lab.ended(job, Failed("x")).failures == 1


def test_no_ends_are_no_trouble(lab: Lab):
    assert lab.run(finishing.finish(lab.store, [])) == []


def test_a_cancel_that_was_acknowledged_wins_over_a_retry(lab: Lab):
    job = lab.start()
    assert lab.cancel(job.id) is S.RUNNING
    assert lab.ended(job, Failed("x")).state is S.CANCELLED


def test_work_that_was_done_in_spite_of_a_cancel_stands(lab: Lab):
    job = lab.start()
    lab.cancel(job.id)
    assert lab.ended(job, Completed(b"1")).state is S.COMPLETED


def test_events_carry_what_the_transition_was(lab: Lab):
    job = lab.start()
    lab.ended(job, Aborted("no"))
    event = lab.events(job.id)[-1]
    told = msgspec.json.decode(event.data)
    assert (event.by, told["state"], told["reason"], event.number) == ("h", "dead", "aborted: no", 3)
