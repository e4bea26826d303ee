"""Commit, as every one-writer store does it: check the guards of a group against the result so far, then
apply its changes.

Nothing that data can bring about fails halfway: what a change itself demands (an id that is free, a job
that is there, a move that the state machine knows) is checked like a guard, and the journal takes back what
the group did before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from tessera.model.changes import (
    AddJob,
    After,
    Answer,
    AtVersion,
    Below,
    Change,
    Count,
    Done,
    DropJob,
    DropRecord,
    EditJob,
    Edits,
    Free,
    FreeSlot,
    Group,
    Guard,
    Held,
    InState,
    Lapsed,
    Link,
    LogEvent,
    MoveJob,
    PublishBlob,
    PutRecord,
    Refused,
    SettleEdges,
    Shift,
    Slot,
    TakeSlot,
    Time,
)
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import Event
from tessera.model.states import State
from tessera.store import completions, transitions
from tessera.store.working import Working

REQUEST_SPACE = "~request"
REQUEST_KEPT_MS = 86_400_000
"""How long a repeat with the same request id gets the first answers: 24 h."""

_DONE = Done()
_answers = msgspec.msgpack.Decoder(list[Answer])


def commit(work: Working, groups: Sequence[Group], request_id: str = "") -> list[Answer]:
    """Apply each group wholly or not at all, in order; a repeated request id gets the first answers."""
    if request_id:
        earlier = work.record(REQUEST_SPACE, request_id)
        if earlier is not None and earlier.value is not None:
            return _answers.decode(earlier.value)
    answers = [apply_group(work, group) for group in groups]
    if request_id:
        kept = msgspec.msgpack.encode(answers)
        transitions.put_record(work, REQUEST_SPACE, request_id, kept, expires_at=work.now + REQUEST_KEPT_MS)
    return answers


def apply_group(work: Working, group: Group) -> Answer:
    """One group: all guards, then all changes, then what these set off."""
    if (
        len(group.changes) == 1
        and len(group.guards) == 1
        and completions.complete_plainly(work, *group.guards, *group.changes)
    ):
        return _DONE
    for guard in group.guards:
        refused = _check(work, guard)
        if refused is not None:
            return _answer_to_refusal(work, group, refused)
    mark = work.mark()
    existing: list[JobId] = []
    for change in group.changes:
        answer = _apply(work, change)
        if isinstance(answer, Refused):
            work.rollback(mark)
            return _answer_to_refusal(work, group, answer)
        if answer is not None:
            existing += answer.existing
    transitions.settle(work)
    return Done(len(existing) == len(group.changes), tuple(existing)) if existing else _DONE


def _answer_to_refusal(work: Working, group: Group, refused: Refused) -> Answer:
    """A failed guard may mean that this group was applied before, or that it wants another ending."""
    guard, job = refused.guard, refused.job
    if job is None:
        return refused
    if isinstance(guard, Held) and guard.end and (job.last_fence, job.last_end) == (guard.fence, guard.end):
        return Done(replayed=True)
    otherwise = group.otherwise
    if (
        isinstance(guard, Free)
        and otherwise is not None
        and job.state in otherwise.states
        and not job.is_final
    ):
        _edit(work, job, otherwise.edits)
        transitions.settle(work)
        return Done(edited=work.job(job.id))
    return refused


# Guards -----------------------------------------------------------------------------------------------------


def _check(work: Working, guard: Guard) -> Refused | None:
    match guard:
        case Held(job=key, fence=fence):
            job = work.job(key)
            if (
                job is not None
                and job.fence == fence
                and job.state is State.RUNNING
                and work.now < job.lease_until
            ):
                return None
            job = job or work.archive.get(key)
            return Refused(guard, job, why=_why_not_held(work, job, fence))
        case Lapsed(job=key, fence=fence):
            job = work.job(key)
            if (
                job is not None
                and job.fence == fence
                and job.state is State.RUNNING
                and work.now >= job.lease_until
            ):
                return None
            return Refused(guard, job, why="the lease is live or has ended")
        case InState(job=key, states=states, fence=fence, due=due):
            job = work.any_job(key)
            if job is None:
                return Refused(guard, why="there is no such job")
            if job.state not in states:
                return Refused(guard, job, why=f"the job is {job.state}")
            if fence not in (-1, job.fence) or due not in (-1, job.due):
                return Refused(guard, job, why=f"the job is {job.state} once more")
            return None
        case AtVersion(space=space, key=name, version=version):
            record = work.record(space, name)
            found = record.version if record is not None else 0
            return (
                None
                if found == version
                else Refused(guard, version=found, why=f"the record is at version {found}")
            )
        case Free(slot=slot_key):
            slot = work.slot(slot_key)
            if slot is None:
                return None
            return Refused(guard, work.any_job(slot.owner), why="the key is taken")
        case Below(counter=counter_key, ceiling=ceiling):
            used = work.counter(counter_key).used
            return (
                None if used < ceiling else Refused(guard, version=used, why=f"the counter stands at {used}")
            )
    assert_never(guard)


def _why_not_held(work: Working, job: Job | None, fence: int) -> str:
    if job is None:
        return "the job is gone"
    if job.state is not State.RUNNING:
        return f"the job is {job.state}"
    if job.fence != fence:
        return f"another lease has it (fence {job.fence})"
    return f"the lease lapsed {work.now - job.lease_until} ms ago"


# Changes ----------------------------------------------------------------------------------------------------


def _apply(work: Working, change: Change) -> Answer | None:
    """Apply one change. Refused: take the group back. Done: what it asks for is there already."""
    match change:
        case AddJob():
            return _add(work, change)
        case MoveJob():
            return _move(work, change)
        case EditJob(job=key, edits=edits):
            job = work.job(key)
            if job is None:
                return Refused(change, work.archive.get(key), why="the job is not live")
            _edit(work, job, edits)
        case DropJob(job=key, reason=reason, by=by):
            job = work.any_job(key)
            if job is None:
                return Refused(change, why="there is no such job")
            transitions.drop(work, job, reason, by)
        case TakeSlot(slot=key, owner=owner, until=until):
            slot = work.slot(key)
            if slot is not None and slot.owner != owner:
                return Refused(change, work.any_job(slot.owner), why="the key is taken")
            work.slots.put(key, Slot(key, owner, resolve(until, work.now)))
        case FreeSlot(slot=key, owner=owner):
            slot = work.slots.get(key)
            if slot is not None and slot.owner == owner:
                work.slots.put(key, None)
                _forget_slot(work, owner, key)
        case Count(counter=key, units=units, close=close):
            work.shift(key, Shift(used=units, close_until=0 if close is None else work.now + close.ms))
        case Link():
            return _link(work, change)
        case SettleEdges(job=key):
            transitions.go_on_settling(work, key)
        case PutRecord(space=space, key=key, value=value, due=due, expires=expires):
            due_at, expires_at = resolve(due, work.now), resolve(expires, work.now)
            transitions.put_record(work, space, key, value, due_at=due_at, expires_at=expires_at)
        case DropRecord(space=space, key=key):
            transitions.put_record(work, space, key, None)
        case LogEvent():
            _log(work, change)
        case PublishBlob(upload=upload, sha256=sha256, size=size):
            is_used_up = any(upload == published for published, _, _ in work.blobs)
            _, staged = (0, 0) if is_used_up else work.source.staged(upload)
            if staged != size:
                why = "a chunk is missing" if staged < 0 else f"{staged} of {size} bytes are staged"
                return Refused(change, version=max(staged, 0), why=why)
            work.blobs.append((upload, sha256, size))
        case _:
            assert_never(change)
    return None


def resolve(time: Time, now: int) -> int:
    """An instant by the store's clock."""
    return now + time.ms if isinstance(time, After) else time


def _is_same(new: Job, old: Job) -> bool:
    """Whether a stored job is what an enqueue asks for: then the enqueue is a repeat."""
    return new.id == old.id and (new.kind, new.queue, new.payload) == (old.kind, old.queue, old.payload)


def _add(work: Working, change: AddJob) -> Answer | None:
    new = change.job
    taken = work.any_job(new.id)
    if taken is not None:
        return (
            Done(existing=(new.id,))
            if _is_same(new, taken)
            else Refused(change, taken, why="the id is taken")
        )
    for key in new.slots:
        slot = work.slot(key)
        if slot is not None:
            return Refused(Free(key), work.any_job(slot.owner), why="the key is taken")
        work.slots.put(key, Slot(key, new.id))
    due = max(resolve(change.due, work.now), work.now)
    deadline = resolve(change.deadline, work.now)
    bounds = [bound for bound in (due + change.expires if change.expires else 0, deadline) if bound]
    job = replace(
        new,
        created_at=work.now,
        due=due,
        deadline=deadline,
        expires_at=min(bounds, default=0),
        event_count=0,
    )
    if not change.after:
        transitions.add(work, job)
        return None
    transitions.add(work, replace(job, held=True))
    for edge in change.after:
        refused = _link(work, Link(edge))
        if refused is not None:
            return refused
    linked = work.job(job.id)
    if linked is not None and not job.held:
        work.jobs.put(job.id, replace(linked, held=False))
    return None


def _move(work: Working, change: MoveJob) -> Answer | None:
    job = work.any_job(change.job)
    if job is None:
        return Refused(change, why="there is no such job")
    due = resolve(change.due, work.now)
    why = transitions.refusal(job, transitions.landing(change.to, due, work.now), change.edits)
    if why:
        return Refused(change, job, why=why)
    if job.is_final:
        for key in job.slots:
            slot = work.slot(key)
            if slot is not None and slot.owner != job.id:
                return Refused(change, work.any_job(slot.owner), why=f"its key {key} was taken meanwhile")
    transitions.move(
        work,
        job,
        change.to,
        due=due,
        fields=transitions.edited(job, change.edits, work.now),
        end=change.end,
        reason=change.reason,
        by=change.by,
        refund=change.refund,
    )
    return None


def _edit(work: Working, job: Job, edits: Edits) -> None:
    fields = transitions.edited(job, edits, work.now)
    if edits.due is not UNSET and job.state is State.SCHEDULED:
        due = resolve(edits.due, work.now)
        due = min(due, edits.due_latest) if edits.due_latest is not UNSET else due
        if due <= work.now:
            transitions.move(work, job, State.AVAILABLE, fields=fields)
            return
        fields["due"] = due
    if edits.held is False and job.held and job.state is State.PENDING and not job.open:
        # Its last edge was settled before it was let go: nothing else would ever move it.
        transitions.move(work, job, State.AVAILABLE, due=job.due, fields=fields)
        return
    if "priority" in fields and job.state is State.AVAILABLE:
        fields["pass_"] = max(job.pass_, work.floors.get((job.queue, fields["priority"])) or 0)
    work.jobs.put(job.id, replace(job, **fields))


def _link(work: Working, change: Link) -> Answer | None:
    edge = change.edge
    if edge.parent == edge.child:
        return Refused(change, why="a job cannot wait for itself")
    parent, child = work.any_job(edge.parent), work.job(edge.child)
    if parent is None or child is None:
        return Refused(
            change, why="there is no such parent job" if parent is None else "the dependent job is not live"
        )
    if child.state not in (State.PENDING, State.WAITING):
        return Refused(change, child, why="only a pending or waiting job can wait for another")
    if work.edges.get((edge.parent, edge.child)) is not None:
        return None
    work.edges.put((edge.parent, edge.child), edge)
    work.jobs.put(child.id, replace(child, open=child.open + 1))
    if parent.is_final:
        work.archive.put(parent.id, replace(parent, heirs=parent.heirs + 1))
        work.late_edges.append(edge)
    else:
        work.jobs.put(parent.id, replace(parent, heirs=parent.heirs + 1))
    return None


def _forget_slot(work: Working, owner: JobId, key: str) -> None:
    """A key that was given up is not among those that the owner takes again at a redrive."""
    job = work.any_job(owner)
    if job is not None and key in job.slots:
        table = work.archive if job.is_final else work.jobs
        table.put(owner, replace(job, slots=tuple(slot for slot in job.slots if slot != key)))


def _log(work: Working, change: LogEvent) -> None:
    number = 0
    job = work.any_job(change.job) if change.job is not None else None
    if job is not None:
        number = job.event_count + 1
        table = work.archive if job.is_final else work.jobs
        table.put(job.id, replace(job, event_count=number))
    work.log(Event(0, work.now, change.what, change.queue, change.job, number, change.by, change.data))
