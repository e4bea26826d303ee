"""Storing jobs: one or many, with ids, keys, times and dependencies."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tessera.engine import enqueueing, operating
from tessera.engine.enqueueing import BULK_LIMIT, Enqueued, OnConflict
from tessera.model.changes import After, PutRecord
from tessera.model.errors import Conflict, IdConflict, InvalidArgument, InvalidMember, TooLarge
from tessera.model.ids import JobId, key_of_given_id
from tessera.model.job import Keep
from tessera.model.outcomes import Completed
from tessera.model.policy import POLICY_SPACE, QueuePolicy
from tessera.model.states import EventLevel, State
from tessera.rules.drafts import Draft
from tests.engine.lab import DAY, Lab

S = State
UNKNOWN = JobId(b"\x01" * 16)


def store(lab: Lab, draft: Draft) -> Enqueued:
    return lab.run(enqueueing.enqueue(lab.store, lab.policies, draft))


def store_many(lab: Lab, *drafts: Draft, on_conflict: OnConflict = "error") -> list[Enqueued]:
    return lab.run(enqueueing.enqueue_many(lab.store, lab.policies, drafts, on_conflict))


def test_an_acknowledged_job_is_there_as_asked_for(lab: Lab):
    """INV-1."""
    draft = lab.draft("mail", tags=("eu",), priority=4, tenant="acme", max_attempts=2, max_crashes=5)
    key = store(lab, draft).id
    row = lab.job(key)
    assert (row.kind, row.payload, row.queue, row.state) == ("work", draft.payload, "q", S.AVAILABLE)
    assert (row.tags, row.priority, row.tenant, row.max_attempts, row.max_crashes) == (
        ("eu",),
        4,
        "acme",
        2,
        5,
    )
    assert (row.created_at, row.due, row.attempt) == (lab.now, lab.now, 0)


@pytest.mark.capability("P8")
def test_a_higher_number_comes_first(lab: Lab):
    keys = {priority: lab.enqueue(priority=priority) for priority in (0, -32_768, 10, 32_767, -1)}
    assert [job.id for job in lab.claim(n=9)] == [keys[p] for p in (32_767, 10, 0, -1, -32_768)]


@pytest.mark.capability("P9")
@pytest.mark.parametrize("due", [After(1), After(86_400_000)])
def test_a_delay_is_counted_from_the_stores_now(lab: Lab, due: After):
    """INV-29: the producer's clock decides nothing."""
    lab.seam.skew = DAY
    row = lab.job(lab.enqueue(due=due))
    assert (row.state, row.due) == (S.SCHEDULED, lab.now + due.ms)


@pytest.mark.capability("P9")
def test_a_time_that_is_past_is_now(lab: Lab):
    row = lab.job(lab.enqueue(due=lab.now - 5_000))
    assert (row.state, row.due) == (S.AVAILABLE, lab.now)


@pytest.mark.capability("H8")
@pytest.mark.parametrize(
    "fields, expires, deadline",
    [
        ({"expires_ms": 5_000}, 5_000, 0),
        ({"expires_ms": 5_000, "due": After(2_000)}, 7_000, 0),
        ({"deadline": After(9_000)}, 9_000, 9_000),
        ({"expires_ms": 5_000, "deadline": After(3_000)}, 3_000, 3_000),
        ({}, 0, 0),
    ],
)
def test_a_job_starts_before_it_expires_and_before_its_deadline(
    lab: Lab, fields: dict[str, Any], expires: int, deadline: int
):
    row = lab.job(lab.enqueue(**fields))
    assert row.expires_at == (expires and lab.now + expires)
    assert row.deadline == (deadline and lab.now + deadline)


@pytest.mark.capability("P10")
def test_a_pending_job_is_stored_and_not_claimed(lab: Lab):
    key = lab.enqueue(pending=True)
    assert lab.claim() == []
    assert lab.state(key) is S.PENDING


# Ids --------------------------------------------------------------------------------------------------------


@pytest.mark.capability("P5")
def test_the_same_id_with_the_same_content_is_the_same_job(lab: Lab):
    """INV-3."""
    draft = lab.draft("order", given_id="order-17")
    first = store(lab, draft)
    second = store(lab, msgspec.structs.replace(draft, priority=9))
    assert (first.created, second.created) == (True, False)
    assert first.id == second.id == key_of_given_id(lab.store.installation, "order-17")
    assert lab.job(first.id).priority == 0
    assert len(lab.everything()) == 1


@pytest.mark.capability("P5")
@pytest.mark.parametrize(
    "other, why", [({"kind": "other"}, "kind"), ({"queue": "r"}, "queue"), ({"payload": b"{}"}, "payload")]
)
def test_the_same_id_with_other_content_is_a_conflict_that_names_the_difference(
    lab: Lab, other: dict[str, Any], why: str
):
    draft = lab.draft("order", given_id="order-17")
    key = store(lab, draft).id
    before = lab.job(key)
    with pytest.raises(IdConflict, match=f"'order-17' is taken by a job with another {why}"):
        store(lab, msgspec.structs.replace(draft, **other))
    assert lab.job(key) == before


@pytest.mark.capability("P5")
def test_an_id_is_taken_as_long_as_any_row_of_it_exists(lab: Lab):
    draft = lab.draft("order", given_id="order-17", keep=Keep(completed=60_000))
    key = store(lab, draft).id
    lab.end(lab.take(key), Completed())
    assert store(lab, draft) == Enqueued(key, False, "order-17")
    with pytest.raises(IdConflict):
        store(lab, msgspec.structs.replace(draft, kind="other"))
    lab.advance(60_000)
    lab.sweep()
    assert store(lab, msgspec.structs.replace(draft, kind="other")).created


@pytest.mark.capability("P5")
def test_an_ephemeral_jobs_id_is_free_when_it_completes(lab: Lab):
    draft = lab.draft("order", given_id="order-17", keep=Keep(completed=0))
    lab.end(lab.take(store(lab, draft).id), Completed())
    assert store(lab, draft).created


def test_a_job_made_anew_under_an_old_id_gets_a_greater_fence(lab: Lab):
    """INV-6."""
    draft = lab.draft("order", given_id="order-17")
    first = lab.take(store(lab, draft).id)
    lab.run(operating.delete(lab.store, first.id, force=True))
    lab.advance(1)
    again = lab.take(store(lab, draft).id)
    assert again.fence > first.fence
    assert lab.finish(first, Completed()) is not None


# Uniqueness -------------------------------------------------------------------------------------------------


@pytest.mark.capability("P12")
@pytest.mark.parametrize("state", ["available", "pending", "scheduled", "running"])
def test_a_second_job_of_a_unique_key_is_answered_with_the_first(lab: Lab, state: str):
    """INV-17."""
    due, pending = After(1_000 if state == "scheduled" else 0), state == "pending"
    first = lab.enqueue(unique_key="u:work:1", given_id="first", due=due, pending=pending)
    if state == "running":
        lab.take(first)
    assert lab.state(first) == state
    again = store(lab, lab.draft(unique_key="u:work:1", given_id="second"))
    assert again == Enqueued(first, False, "first")
    assert len(lab.everything()) == 1


@pytest.mark.capability("P12")
@pytest.mark.parametrize("end", ["completed", "dead", "cancelled", "deleted"])
def test_a_unique_key_is_free_when_its_job_has_ended(lab: Lab, end: str):
    first = lab.enqueue(unique_key="u:work:1")
    lab.bring_to_end(first, end)
    assert store(lab, lab.draft(unique_key="u:work:1")).created


@pytest.mark.capability("P12")
@pytest.mark.parametrize(
    "end, is_free", [("completed", True), ("cancelled", True), ("deleted", True), ("dead", False)]
)
def test_while_dead_keeps_the_key_for_a_dead_job_only(lab: Lab, end: str, is_free: bool):
    first = lab.enqueue(unique_key="ud:work:1")
    lab.bring_to_end(first, end)
    assert store(lab, lab.draft(unique_key="ud:work:1")).created is is_free


@pytest.mark.capability("P12")
def test_a_crashed_worker_does_not_free_a_unique_key(lab: Lab):
    """INV-17: and never leaks it either."""
    job = lab.start(unique_key="u:work:1")
    lab.lapse(job)
    assert not store(lab, lab.draft(unique_key="u:work:1")).created
    lab.end(lab.again(job.id), Completed())
    assert store(lab, lab.draft(unique_key="u:work:1")).created


# Many -------------------------------------------------------------------------------------------------------


@pytest.mark.capability("P2")
def test_many_jobs_are_stored_in_their_order(lab: Lab):
    stored = store_many(lab, *(lab.draft(str(n)) for n in range(300)))
    assert all(one.created for one in stored)
    assert [job.id for job in lab.claim(n=300)] == [one.id for one in stored]


def test_no_jobs_are_no_trouble(lab: Lab):
    assert store_many(lab) == []
    assert store_many(lab, on_conflict="skip") == []


def test_too_many_jobs_of_one_call_are_refused_before_any_is_stored(lab: Lab):
    """INV-33."""
    with pytest.raises(TooLarge):
        store_many(lab, *([lab.draft("x")] * (BULK_LIMIT + 1)))


def _id_conflict(lab: Lab) -> Draft:
    lab.enqueue("there", given_id="order-17")
    return lab.draft("other content", given_id="order-17")


def _unique_taken(lab: Lab) -> Draft:
    lab.enqueue(unique_key="u:work:1")
    return lab.draft(unique_key="u:work:1")


def _unknown_parent(lab: Lab) -> Draft:
    return lab.draft(after=[UNKNOWN])


def _repeated_id(lab: Lab) -> Draft:
    return lab.draft(given_id="first")


def _repeated_key(lab: Lab) -> Draft:
    return lab.draft(unique_key="u:work:first")


@pytest.mark.capability("P2")
@pytest.mark.parametrize(
    "bad, cause, words",
    [
        (_id_conflict, IdConflict, "'order-17' is taken by a job with another payload"),
        (_unique_taken, Conflict, "its unique key is held by job .*; use on_conflict='skip'"),
        (_unknown_parent, InvalidArgument, "depends_on: 01010101-.*no such parent job"),
        (_repeated_id, Conflict, r"its id is that of jobs\[0\] in the same call"),
        (_repeated_key, Conflict, r"its unique key is that of jobs\[0\] in the same call"),
    ],
)
@pytest.mark.parametrize("place", [1, 3])
def test_one_bad_member_stores_none_and_is_named(
    lab: Lab, bad: Any, cause: type[Exception], words: str, place: int
):
    """INV-33."""
    drafts = [lab.draft("good", given_id="first", unique_key="u:work:first"), lab.draft(), lab.draft()]
    drafts.insert(place, bad(lab))
    before = lab.everything()
    with pytest.raises(InvalidMember, match=words) as refused:
        store_many(lab, *drafts)
    assert refused.value.index == place
    assert type(refused.value.cause) is cause
    assert lab.everything() == before


@pytest.mark.capability("P2")
def test_a_repeated_bulk_call_is_answered_as_the_first_time(lab: Lab):
    """INV-3: for members with ids of their own."""
    drafts = [lab.draft(str(n), given_id=f"order-{n}") for n in range(3)]
    first = store_many(lab, *drafts)
    again = store_many(lab, *drafts)
    assert [one.id for one in again] == [one.id for one in first]
    assert not any(one.created for one in again)


@pytest.mark.capability("P2")
def test_skip_leaves_out_members_whose_id_or_key_is_taken(lab: Lab):
    holder = lab.enqueue(unique_key="u:work:1", given_id="holder")
    there = lab.enqueue("there", given_id="order-17")
    stored = store_many(
        lab,
        lab.draft("good"),
        lab.draft("other", given_id="order-17"),
        lab.draft(unique_key="u:work:1"),
        lab.draft("twice", unique_key="u:work:2"),
        lab.draft("twice", unique_key="u:work:2"),
        on_conflict="skip",
    )
    assert [one.created for one in stored] == [True, False, False, True, False]
    assert stored[1] == Enqueued(there, False, "order-17")
    assert stored[2] == Enqueued(holder, False, "holder")
    assert stored[4].id == stored[3].id
    assert len(lab.everything()) == 4


@pytest.mark.capability("P2")
def test_skip_stores_none_if_a_member_waits_for_an_unknown_job(lab: Lab):
    """INV-33: a fault is no conflict, and InvalidMember says that nothing was stored."""
    with pytest.raises(InvalidMember, match="no such parent job") as refused:
        store_many(lab, lab.draft(), lab.draft(after=[UNKNOWN]), lab.draft(), on_conflict="skip")
    assert refused.value.index == 1
    assert lab.everything() == []


def test_skip_leaves_out_a_member_that_waits_for_one_left_out(lab: Lab):
    lab.enqueue(unique_key="u:work:1")
    parent = lab.draft(unique_key="u:work:1", given_id="parent")
    key = key_of_given_id(lab.store.installation, "parent")
    stored = store_many(lab, parent, lab.draft(after=[key]), lab.draft(), on_conflict="skip")
    assert [one.created for one in stored] == [False, False, True]


# What a queue's policy says ---------------------------------------------------------------------------------


def put_queue(lab: Lab, queue: str, policy: QueuePolicy) -> None:
    lab.do(PutRecord(POLICY_SPACE, f"queue/{queue}/code", msgspec.json.encode(policy)))


def test_a_queue_says_how_much_of_its_jobs_is_logged_and_a_job_may_say_otherwise(lab: Lab):
    put_queue(lab, "full", QueuePolicy(events=EventLevel.FULL))
    levels = [
        lab.job(lab.enqueue(queue=queue, events=events)).events
        for queue, events in (("full", None), ("full", EventLevel.OFF), ("silent", None))
    ]
    assert levels == [EventLevel.FULL, EventLevel.OFF, EventLevel.ODD]


@pytest.mark.capability("A6")
def test_tenants_of_a_queue_are_served_in_turn_however_much_one_brings(lab: Lab):
    """INV-27."""
    noisy = [lab.enqueue(tenant="noisy") for _ in range(20)]
    quiet = [lab.enqueue(tenant="quiet") for _ in range(2)]
    order = [job.id for job in lab.claim(n=22)]
    assert max(order.index(key) for key in quiet) <= 4
    assert set(order) == {*noisy, *quiet}


@pytest.mark.capability("A6")
def test_weights_share_a_queue_in_proportion(lab: Lab):
    """INV-27."""
    put_queue(lab, "q", QueuePolicy(weights={"gold": 3.0}))
    for _ in range(20):
        lab.enqueue(tenant="gold")
        lab.enqueue(tenant="plain")
    tenants = [job.tenant for job in lab.claim(n=16)]
    assert tenants.count("gold") == 12


@pytest.mark.capability("A3")
def test_a_costly_job_moves_its_tenant_further_back(lab: Lab):
    """INV-27."""
    for _ in range(10):
        lab.enqueue(tenant="heavy", cost=5)
        lab.enqueue(tenant="light")
    tenants = [job.tenant for job in lab.claim(n=12)]
    assert tenants.count("light") == 10
