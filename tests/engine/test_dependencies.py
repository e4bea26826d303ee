"""Jobs that wait for other jobs."""

from __future__ import annotations

import os

import pytest

from tessera.engine import enqueueing
from tessera.engine.enqueueing import Enqueued, OnConflict
from tessera.model.changes import After
from tessera.model.errors import InvalidArgument
from tessera.model.ids import JobId, key_of_given_id, show_id
from tessera.model.outcomes import Completed
from tessera.model.states import State
from tessera.rules.drafts import Draft, Wait
from tests.engine.lab import Lab

S = State
UNKNOWN = JobId(b"\x01" * 16)


def store(lab: Lab, draft: Draft) -> Enqueued:
    return lab.run(enqueueing.enqueue(lab.store, lab.policies, draft))


def store_many(lab: Lab, *drafts: Draft, on_conflict: OnConflict = "error") -> list[Enqueued]:
    return lab.run(enqueueing.enqueue_many(lab.store, lab.policies, drafts, on_conflict))


def test_a_job_waits_for_those_it_depends_on(lab: Lab):
    """INV-20."""
    first, second = lab.enqueue(), lab.enqueue()
    child = lab.enqueue(after=[first, second])
    lab.end(lab.take(first), Completed())
    assert lab.state(child) is S.PENDING
    lab.end(lab.take(second), Completed())
    assert lab.state(child) is S.AVAILABLE


@pytest.mark.parametrize(
    "end, on, otherwise, state",
    [
        ("completed", "completed", "cancel", S.AVAILABLE),
        ("completed", "ended", "cancel", S.AVAILABLE),
        ("dead", "completed", "cancel", S.CANCELLED),
        ("dead", "completed", "hold", S.PENDING),
        ("dead", "completed", "go", S.AVAILABLE),
        ("dead", "ended", "cancel", S.AVAILABLE),
        ("cancelled", "completed", "cancel", S.CANCELLED),
        ("cancelled", "completed", "hold", S.PENDING),
        ("cancelled", "ended", "cancel", S.AVAILABLE),
    ],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_end_of_a_parent_means_the_same_before_and_after_the_enqueue(
    lab: Lab, end: str, on: str, otherwise: str, state: State, when: str
):
    """INV-20."""
    parent = lab.enqueue()
    if when == "before":
        lab.bring_to_end(parent, end)
    child = lab.enqueue(after=[Wait(parent, on, otherwise)])
    if when == "after":
        lab.bring_to_end(parent, end)
    assert lab.state(child) is state


def test_a_job_on_hold_goes_when_its_parent_is_redriven_and_completes(lab: Lab):
    """INV-20."""
    parent = lab.enqueue()
    lab.bury(parent)
    child = lab.enqueue(after=[Wait(parent, "completed", "hold")])
    lab.retry(parent)
    lab.end(lab.take(parent), Completed())
    assert lab.state(child) is S.AVAILABLE


def test_a_chain_that_breaks_is_cancelled_to_its_end(lab: Lab):
    keys = [lab.enqueue()]
    for _ in range(4):
        keys.append(lab.enqueue(after=[keys[-1]]))
    lab.bury(keys[0])
    assert lab.states(*keys) == [S.DEAD, *[S.CANCELLED] * 4]
    assert lab.job(keys[1]).reason == "parent_dead"
    assert lab.job(keys[2]).reason == "parent_cancelled"


def test_members_of_one_call_may_wait_for_members_before_them(lab: Lab):
    """INV-20."""
    parent = lab.draft(given_id="parent")
    key = key_of_given_id(lab.store.installation, "parent")
    [first, second] = store_many(lab, parent, lab.draft(after=[key]))
    assert lab.states(first.id, second.id) == [S.AVAILABLE, S.PENDING]


def test_an_unknown_parent_refuses_the_enqueue_and_names_it(lab: Lab):
    with pytest.raises(InvalidArgument, match=show_id(UNKNOWN)) as refused:
        store(lab, lab.draft(after=[UNKNOWN]))
    assert refused.value.argument == "depends_on"
    assert lab.everything() == []


@pytest.mark.parametrize("bulk", [False, True])
def test_a_parents_own_id_may_look_like_a_key(lab: Lab, bulk: bool):
    """A name that can mean two jobs means the one that is there."""
    name = os.urandom(16).hex()
    parent = lab.enqueue(given_id=name)
    wait = Wait(JobId(bytes.fromhex(name)), or_else=parent)
    draft = lab.draft(waits=(wait,))
    child = (store_many(lab, draft)[0] if bulk else store(lab, draft)).id
    assert lab.run(lab.store.edges(child)) == [(parent, "completed")]


def test_a_key_that_could_be_an_own_id_means_the_job_with_that_key(lab: Lab):
    parent = lab.enqueue()
    child = lab.enqueue(waits=(Wait(parent, or_else=UNKNOWN),))
    assert lab.run(lab.store.edges(child)) == [(parent, "completed")]


def test_a_delay_and_a_dependency_both_hold(lab: Lab):
    """INV-13, INV-20."""
    parent = lab.enqueue()
    child = lab.enqueue(after=[parent], due=After(60_000))
    lab.end(lab.take(parent), Completed())
    assert (lab.state(child), lab.job(child).due) == (S.SCHEDULED, lab.now + 60_000)
