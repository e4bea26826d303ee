"""Split and join: children, their results, and what becomes of either when the other ends."""

from __future__ import annotations

import pytest

from tessera.engine import inspecting, operating
from tessera.model.changes import AddJob
from tessera.model.job import Job, Keep
from tessera.model.outcomes import Aborted, Completed, Discarded, Failed, Split
from tessera.model.states import State
from tests.engine.lab import Lab, need

S = State


def split(
    lab: Lab, parent: Job, count: int = 2, on_child_dead: str = "continue", **fields: object
) -> list[AddJob]:
    children = [lab.child(parent, number, **fields) for number in range(count)]
    row = lab.ended(parent, Split(tuple(children), on_child_dead))
    assert row.state is S.WAITING
    return children


def run_all(lab: Lab) -> list[Job]:
    """Claim all there is and complete it with the number of its claim."""
    jobs = lab.claim(n=100)
    for number, job in enumerate(jobs):
        lab.end(job, Completed(str(number).encode()))
    return jobs


def test_a_split_job_waits_and_is_no_longer_leased(lab: Lab):
    """INV-21."""
    parent = lab.start()
    split(lab, parent)
    row = lab.job(parent.id)
    assert (row.holder, row.open, row.ends[-1].end) == ("", 2, "split")
    assert {job.parent for job in lab.claim(n=9)} == {parent.id}


def test_the_parent_runs_again_when_the_last_child_has_ended(lab: Lab):
    """INV-20, INV-21: exactly once."""
    parent = lab.start()
    split(lab, parent)
    first, second = lab.claim(n=2)
    lab.end(first, Completed())
    assert lab.state(parent.id) is S.WAITING
    lab.end(second, Completed())
    again = lab.take(parent.id)
    assert again.attempt == 2
    assert lab.claim() == []


def test_results_come_in_the_order_of_the_children_however_they_ended(lab: Lab):
    """INV-21."""
    parent = lab.start()
    children = split(lab, parent, 4)
    for job in reversed(lab.claim(n=4)):
        lab.end(job, Completed(job.payload))
    found = lab.run(inspecting.children(lab.store, lab.job(parent.id)))
    assert [job.id for job in found] == [child.job.id for child in children]
    assert [job.result for job in found] == [child.job.payload for child in children]


def test_a_second_split_asks_for_its_own_children_only(lab: Lab):
    parent = lab.start()
    split(lab, parent, 3)
    run_all(lab)
    parent = lab.take(parent.id)
    second = split(lab, parent, 2)
    run_all(lab)
    found = lab.run(inspecting.children(lab.store, lab.job(parent.id)))
    assert [job.id for job in found] == [child.job.id for child in second]


def test_more_children_than_a_page_holds_are_all_found(lab: Lab):
    parent = lab.start()
    children = split(lab, parent, 450)
    found = lab.run(inspecting.children(lab.store, lab.job(parent.id)))
    assert [job.id for job in found] == [child.job.id for child in children]


def test_a_split_into_nothing_is_a_join_at_once(lab: Lab):
    """INV-31: nobody would ever wake it."""
    parent = lab.start()
    assert lab.ended(parent, Split(())).state is S.AVAILABLE
    assert lab.take(parent.id).attempt == 2


@pytest.mark.parametrize("how", ["dead", "cancelled", "discarded", "deleted"])
def test_continue_joins_whatever_became_of_the_children(lab: Lab, how: str):
    parent = lab.start()
    split(lab, parent, on_child_dead="continue")
    end_one(lab, how)
    assert lab.state(parent.id) is S.WAITING
    run_all(lab)
    assert lab.take(parent.id).attempt == 2


@pytest.mark.parametrize(
    "how, reason",
    [
        ("dead", "child_dead"),
        ("cancelled", "child_cancelled"),
        ("discarded", "child_cancelled"),
        ("deleted", "child_cancelled"),
    ],
)
def test_fail_brings_the_parent_to_the_dead_letter_and_stops_the_other_children(
    lab: Lab, how: str, reason: str
):
    parent = lab.start()
    split(lab, parent, 3, on_child_dead="fail")
    end_one(lab, how)
    row = lab.job(parent.id)
    assert (row.state, row.reason) == (S.DEAD, reason)
    assert lab.claim() == []


def test_wait_holds_the_parent_until_the_dead_child_is_redriven_and_completes(lab: Lab):
    parent = lab.start()
    split(lab, parent, on_child_dead="wait")
    dead = end_one(lab, "dead")
    run_all(lab)
    assert lab.state(parent.id) is S.WAITING
    lab.retry(dead.id)
    lab.end(lab.take(dead.id), Completed())
    assert lab.take(parent.id).attempt == 2


def test_wait_gives_the_parent_up_when_the_dead_child_is_deleted(lab: Lab):
    """Nobody can redrive it any more."""
    parent = lab.start()
    split(lab, parent, on_child_dead="wait")
    dead = end_one(lab, "dead")
    run_all(lab)
    lab.run(operating.delete(lab.store, dead.id))
    assert lab.state(parent.id) is S.CANCELLED


def end_one(lab: Lab, how: str) -> Job:
    [job] = lab.claim()
    if how == "dead":
        lab.end(job, Aborted("no"))
    elif how == "discarded":
        lab.end(job, Discarded())
    elif how == "cancelled":
        lab.cancel(job.id, hard=True)
    else:
        lab.run(operating.delete(lab.store, job.id, force=True))
    return job


def test_a_child_that_fails_and_is_retried_has_not_ended(lab: Lab):
    parent = lab.start()
    split(lab, parent, 1, on_child_dead="fail")
    lab.end(lab.take(), Failed("x"))
    assert lab.state(parent.id) is S.WAITING


def test_ephemeral_children_join_as_any_others(lab: Lab):
    parent = lab.start()
    split(lab, parent, 2, keep=Keep(completed=0))
    run_all(lab)
    assert lab.take(parent.id).attempt == 2


def test_children_that_split_keep_the_grandparent_waiting(lab: Lab):
    """INV-21."""
    top = lab.start()
    split(lab, top, 1)
    middle = lab.take()
    split(lab, middle, 2)
    assert lab.states(top.id, middle.id) == [S.WAITING, S.WAITING]
    run_all(lab)
    assert lab.states(top.id, middle.id) == [S.WAITING, S.AVAILABLE]
    lab.end(lab.take(middle.id), Completed())
    assert lab.take(top.id).attempt == 2


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_ending_a_waiting_parent_reaches_every_descendant(lab: Lab, verb: str):
    """INV-21: those that run are asked to stop, all others are cancelled at once."""
    top = lab.start()
    first, second = split(lab, top, 2)
    middle = lab.take(first.job.id)
    _, leaf = split(lab, middle, 2)
    running = lab.claim(n=2)
    assert leaf.job.id not in [job.id for job in running]
    if verb == "cancel":
        assert lab.cancel(top.id) is S.CANCELLED
    else:
        lab.run(operating.delete(lab.store, top.id))
    assert lab.states(middle.id, leaf.job.id) == [S.CANCELLED, S.CANCELLED]
    assert lab.job(leaf.job.id).reason == "parent_ended"
    assert all(lab.job(job.id).cancel_requested for job in running)
    assert lab.states(*(job.id for job in running)) == [S.RUNNING, S.RUNNING]
    for job in running:
        assert lab.ended(job, Failed("asked to stop")).state is S.CANCELLED
    assert second.job.id in [job.id for job in running]
    assert lab.claim() == []


@pytest.mark.parametrize("state", ["scheduled", "blocked", "quarantined"])
def test_cancelling_a_parent_reaches_children_that_wait_for_something_else(lab: Lab, state: str):
    lab.ceiling("shut", 0)
    parent = lab.start()
    [child] = split(lab, parent, 1, max_crashes=1, needs=need("shut") if state == "blocked" else ())
    if state == "scheduled":
        lab.ended(lab.take(), Failed("x"))
    elif state == "quarantined":
        lab.lapse(lab.take())
    else:
        assert lab.claim() == []
    assert lab.state(child.job.id) == state
    lab.cancel(parent.id)
    assert lab.state(child.job.id) is S.CANCELLED


def test_a_cancelled_parent_leaves_jobs_alone_that_it_merely_waited_for(lab: Lab):
    """``depends_on`` makes no family."""
    other = lab.enqueue("other")
    waiting = lab.enqueue("waiting", after=[other])
    lab.cancel(waiting)
    assert lab.state(other) is S.AVAILABLE


def test_a_split_after_a_cancel_request_ends_cancelled_with_its_children(lab: Lab):
    """The request that was acknowledged is not lost, though the handler had not seen it yet."""
    parent = lab.start()
    lab.cancel(parent.id)
    child = lab.child(parent, 0)
    assert lab.ended(parent, Split((child,))).state is S.CANCELLED
    assert lab.state(child.job.id) is S.CANCELLED


def test_a_redrive_forgets_the_cancel_that_ended_the_former_run(lab: Lab):
    parent = lab.start()
    lab.cancel(parent.id)
    lab.ended(parent, Split((lab.child(parent, 0),)))
    lab.retry(parent.id)
    job = lab.take(parent.id)
    assert not job.cancel_requested
    assert lab.ended(job, Failed("x")).state is S.SCHEDULED
