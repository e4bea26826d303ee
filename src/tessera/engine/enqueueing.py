"""Storing jobs: one, or many in one atomic call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from tessera import seam
from tessera.engine.policies import Policies
from tessera.model.changes import AddJob, Answer, Done, Free, Group, Held, Link, Refused
from tessera.model.errors import (
    Conflict,
    IdConflict,
    InvalidArgument,
    InvalidMember,
    StaleLease,
    TesseraError,
    TooLarge,
)
from tessera.model.ids import JobId, key_of_given_id, show_id
from tessera.model.job import Job
from tessera.rules.drafts import Draft, Wait, add_job
from tessera.store.protocol import Store

OnConflict = Literal["error", "skip"]
BULK_LIMIT = 100_000
"""Most jobs of one atomic call."""


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """Where a draft went."""

    id: JobId
    created: bool
    """False: the job was there already, under this id or as the owner of the unique key."""
    given_id: str = ""
    """The caller's own id of that job, which need not be the draft's."""


async def enqueue(store: Store, policies: Policies, draft: Draft, *, held: Job | None = None) -> Enqueued:
    """Store one job. A job that holds the unique key, or the same id with the same content, is the answer and
    no error.

    ``held``: on behalf of this running job, and only while its lease is live. Raises IdConflict,
    InvalidArgument (an unknown job in ``depends_on``), StaleLease, StoreError.
    """
    [draft], [add] = await ready_to_add(store, policies, [draft])
    guards = () if held is None else (Held(held.id, held.fence),)
    [answer] = await store.commit([Group(guards, (add,))])
    return _enqueued(add.job.id, draft, answer)


async def ready_to_add(
    store: Store, policies: Policies, drafts: Sequence[Draft]
) -> tuple[Sequence[Draft], list[AddJob]]:
    """The drafts with the jobs they wait for found, and the changes that store them, in order."""
    policy = await policies.recent(store)
    keys = [_key(store, draft) for draft in drafts]
    drafts = await _with_parents_found(store, drafts, keys)
    return drafts, [
        add_job(draft, key, policy.queue(draft.queue)) for draft, key in zip(drafts, keys, strict=True)
    ]


async def enqueue_many(
    store: Store, policies: Policies, drafts: Sequence[Draft], on_conflict: OnConflict = "error"
) -> list[Enqueued]:
    """Store many jobs in one atomic call, in order; members may wait for members before them.

    ``error``: one member whose unique key or id is taken by another job, or that is wrong, and nothing is
    stored; InvalidMember names it. ``skip``: members whose key or id is taken are left out and say
    ``created=False``, and so do members that wait for a member left out; any other fault stores nothing here
    as well.
    """
    if len(drafts) > BULK_LIMIT:
        raise TooLarge("jobs", len(drafts), BULK_LIMIT)
    drafts, adds = await ready_to_add(store, policies, drafts)
    keys = [add.job.id for add in adds]
    if on_conflict == "skip":
        await _refuse_unknown_parents(store, drafts, keys)
        answers = await store.commit([Group(changes=(add,)) for add in adds])
        return [_member(*member) for member in zip(keys, drafts, answers, strict=True)]
    _refuse_repeats(drafts)
    if not adds:
        return []
    [answer] = await store.commit([Group(changes=tuple(adds))])
    if isinstance(answer, Refused):
        index = _index_of(answer, adds)
        raise InvalidMember(index, _bulk_error(drafts[index], answer))
    there_already = set(answer.existing)
    return [
        Enqueued(key, key not in there_already, draft.given_id)
        for key, draft in zip(keys, drafts, strict=True)
    ]


def _key(store: Store, draft: Draft) -> JobId:
    return key_of_given_id(store.installation, draft.given_id) if draft.given_id else seam.new_id()


def _enqueued(key: JobId, draft: Draft, answer: Answer) -> Enqueued:
    if isinstance(answer, Done):
        return Enqueued(key, not answer.existing, draft.given_id)
    if isinstance(answer.guard, Free) and answer.job is not None and answer.guard.slot == draft.unique_key:
        return Enqueued(answer.job.id, False, answer.job.given_id)
    raise _error(draft, answer)


def _member(key: JobId, draft: Draft, answer: Answer) -> Enqueued:
    try:
        return _enqueued(key, draft, answer)
    except TesseraError:
        return Enqueued(key, False, draft.given_id)


async def _with_parents_found(
    store: Store, drafts: Sequence[Draft], keys: Sequence[JobId]
) -> Sequence[Draft]:
    """A caller's own id may look like a key: a name that can mean two jobs means the one that is there."""
    unsure = sorted({wait.parent for draft in drafts for wait in draft.waits if wait.or_else is not None})
    if not unsure:
        return drafts
    found = await store.get_jobs(unsure)
    there = {*keys, *(key for key, job in zip(unsure, found, strict=True) if job is not None)}
    return [replace(draft, waits=tuple(_found(wait, there) for wait in draft.waits)) for draft in drafts]


def _found(wait: Wait, there: set[JobId]) -> Wait:
    is_settled = wait.or_else is None or wait.parent in there
    return wait if is_settled else Wait(wait.or_else or wait.parent, wait.on, wait.otherwise)


async def _refuse_unknown_parents(store: Store, drafts: Sequence[Draft], keys: Sequence[JobId]) -> None:
    """Before anything is stored: a call that leaves members out is many groups, and no later fault takes them
    back.
    """
    parents = sorted({wait.parent for draft in drafts for wait in draft.waits})
    found = await store.get_jobs(parents) if parents else []
    there = {key for key, job in zip(parents, found, strict=True) if job is not None}
    for index, (key, draft) in enumerate(zip(keys, drafts, strict=True)):
        for wait in draft.waits:
            if wait.parent not in there:
                problem = f"{show_id(wait.parent)}: there is no such parent job"
                raise InvalidMember(index, InvalidArgument("depends_on", problem))
        there.add(key)


def _error(draft: Draft, refused: Refused) -> TesseraError:
    guard, job = refused.guard, refused.job
    if isinstance(guard, Held):
        return StaleLease(show_id(guard.job), guard.fence, refused.why)
    if isinstance(guard, Link):
        return InvalidArgument("depends_on", f"{show_id(guard.edge.parent)}: {refused.why}")
    if isinstance(guard, AddJob) and job is not None:
        pairs = (
            ("kind", draft.kind, job.kind),
            ("queue", draft.queue, job.queue),
            ("payload", draft.payload, job.payload),
        )
        return IdConflict(draft.given_id, next((what for what, new, old in pairs if new != old), "content"))
    return Conflict(refused.why)


def _bulk_error(draft: Draft, refused: Refused) -> TesseraError:
    if isinstance(refused.guard, Free) and refused.guard.slot == draft.unique_key and refused.job is not None:
        return Conflict(
            f"its unique key is held by job {show_id(refused.job.id)}; use on_conflict='skip' to leave it out"
        )
    return _error(draft, refused)


def _index_of(refused: Refused, adds: Iterable[AddJob]) -> int:
    guard = refused.guard
    for index, add in enumerate(adds):
        if isinstance(guard, AddJob) and guard.job.id == add.job.id:
            return index
        if isinstance(guard, Free) and guard.slot in add.job.slots:
            return index
        if isinstance(guard, Link) and guard.edge.child == add.job.id:
            return index
    raise AssertionError(f"a bulk enqueue was refused for what it does not hold: {refused}")


def _refuse_repeats(drafts: Sequence[Draft]) -> None:
    """Two members of one call that exclude each other: the second one is named."""
    seen: dict[str, int] = {}
    for index, draft in enumerate(drafts):
        for what, key in (
            ("id", draft.given_id and f"id:{draft.given_id}"),
            ("unique key", draft.unique_key),
        ):
            if key and key in seen:
                raise InvalidMember(
                    index, Conflict(f"its {what} is that of jobs[{seen[key]}] in the same call")
                )
            if key:
                seen[key] = index
