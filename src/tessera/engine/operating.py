"""What an operator does to one job: cancel, retry, promote, edit, delete. Every act is guarded by the state
it was decided on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from tessera import seam
from tessera.engine.lookup import find_job
from tessera.model.changes import (
    AddJob,
    After,
    Change,
    DropJob,
    DropRecord,
    EditJob,
    Edits,
    Group,
    InState,
    LogEvent,
    MoveJob,
    Refused,
    Time,
)
from tessera.model.errors import Conflict, WrongState
from tessera.model.ids import JobId, show_id
from tessera.model.job import Extras, Job, encode_extras
from tessera.model.policy import POLICY_SPACE
from tessera.model.states import LIVE, State
from tessera.rules import lifecycle, names
from tessera.rules.endings import QUARANTINE_PREFIX
from tessera.rules.payload import fingerprint
from tessera.store.protocol import Store

_TRIES: Final = 10
FRESH_START: Final = Edits(
    attempt=0, failures=0, crashes=0, snoozes=0, expires_at=0, deadline=0, held=False, cancel_requested=False
)
"""What a redrive resets. Its old time limits would kill it at once."""


async def cancel(
    store: Store, reference: str | bytes, *, reason: str = "", hard: bool = False, by: str = ""
) -> State:
    """Cancel a job; the state it is in afterwards.

    A running one is asked to stop (still ``running``), or with ``hard`` loses its lease at once. The children
    of a split job go with it. Already cancelled is fine; raises WrongState for a completed or dead one,
    NotFound.
    """

    reason = names.validate_words("reason", reason)

    def decide(job: Job) -> Change | None:
        if job.state is State.CANCELLED:
            return None
        if job.is_final:
            raise WrongState(show_id(job.id), job.state, "cancel")
        if job.state is State.RUNNING and not hard:
            return EditJob(job.id, Edits(cancel_requested=True))
        return MoveJob(job.id, State.CANCELLED, reason=reason or "cancelled", by=by)

    job = await _act(store, reference, decide, "cancel_requested", by)
    return job.state if job.is_final or (job.state is State.RUNNING and not hard) else State.CANCELLED


async def retry(store: Store, reference: str | bytes, *, by: str = "") -> JobId:
    """Run a job again; the key of the job that will run.

    Dead, cancelled and quarantined jobs start afresh, all their counts at 0. A scheduled one becomes due now.
    A completed one stays as it is: a new job with its payload is made, which names it as its origin. Raises
    WrongState, NotFound.
    """
    by = names.validate_words("by", by)
    job = await find_job(store, reference)
    if job.state is State.COMPLETED:
        return await _run_anew(store, job, by)

    def decide(job: Job) -> Change | None:
        change = retry_change(job, by)
        if change is None:
            hint = "promote it instead" if job.state is State.PENDING else ""
            raise WrongState(show_id(job.id), job.state, "retry", hint)
        return change

    return (await _act(store, reference, decide, "retried", by)).id


def retry_change(job: Job, by: str = "") -> Change | None:
    """The change that runs a job again; None if its state has no need of one."""
    if job.state in (State.DEAD, State.CANCELLED, State.QUARANTINED):
        return MoveJob(job.id, State.AVAILABLE, edits=FRESH_START, by=by)
    return EditJob(job.id, Edits(due=After(0))) if job.state is State.SCHEDULED else None


def quarantine_release(job: Job) -> tuple[Change, ...]:
    """What must go with the retry of a quarantined job: its fingerprint is trusted again."""
    if job.state is not State.QUARANTINED:
        return ()
    return (DropRecord(POLICY_SPACE, QUARANTINE_PREFIX + fingerprint(job.kind, job.payload).hex()),)


async def promote(store: Store, reference: str | bytes, *, by: str = "") -> JobId:
    """Let go of a job enqueued as pending, or make a scheduled one due now. Raises WrongState, NotFound."""

    def decide(job: Job) -> Change | None:
        if job.state is State.PENDING and not job.open:
            return MoveJob(job.id, State.AVAILABLE, job.due, Edits(held=False), by=by)
        if job.state is State.PENDING and job.held:
            return EditJob(job.id, Edits(held=False))
        if job.state is State.PENDING:
            raise WrongState(show_id(job.id), job.state, "promote", f"it waits for {job.open} other jobs")
        if job.state is State.SCHEDULED:
            return EditJob(job.id, Edits(due=After(0)))
        raise WrongState(show_id(job.id), job.state, "promote")

    return (await _act(store, reference, decide, "promoted", by)).id


async def edit(
    store: Store,
    reference: str | bytes,
    *,
    priority: int | None = None,
    payload: bytes | None = None,
    tags: tuple[str, ...] | None = None,
    due: Time | None = None,
    max_attempts: int | None = None,
    by: str = "",
) -> JobId:
    """Change a job that is not running and has not ended. Only a scheduled one has a ``due`` to move.

    Raises WrongState, NotFound.
    """
    wanted = {
        "priority": priority,
        "payload": payload,
        "tags": tags,
        "due": due,
        "max_attempts": max_attempts,
    }
    edits = msgspec.structs.replace(
        Edits(), **{name: value for name, value in wanted.items() if value is not None}
    )

    def decide(job: Job) -> Change | None:
        if job.is_final or job.state is State.RUNNING:
            raise WrongState(show_id(job.id), job.state, "edit")
        if due is not None and job.state is not State.SCHEDULED:
            raise WrongState(
                show_id(job.id), job.state, "reschedule", "only a scheduled job has a due time to move"
            )
        return EditJob(job.id, edits)

    return (await _act(store, reference, decide, "edited", by)).id


async def delete(store: Store, reference: str | bytes, *, force: bool = False, by: str = "") -> JobId:
    """Remove a job's row and all it owns. A running one only with ``force``. Dependants see it as cancelled.
    Raises WrongState, NotFound.
    """

    def decide(job: Job) -> Change | None:
        if job.state is State.RUNNING and not force:
            raise WrongState(show_id(job.id), job.state, "delete", "cancel it first, or force")
        return DropJob(job.id, "deleted", by)

    return (await _act(store, reference, decide, "", by)).id


async def watch(store: Store, key: JobId) -> None:
    """Have the end of a live job wake those who wait for it."""
    await store.commit([Group((InState(key, tuple(LIVE)),), (EditJob(key, Edits(watched=True)),))])


async def _act(
    store: Store, reference: str | bytes, decide: Callable[[Job], Change | None], what: str, by: str
) -> Job:
    """Read, decide, write if the state is still the one that was read; otherwise again. The row as it was
    decided on.
    """
    by = names.validate_words("by", by)
    for _ in range(_TRIES):
        job = await find_job(store, reference)
        change = decide(job)
        if change is None:
            return job
        told = LogEvent(what, job.queue, job.id, by)
        changes: tuple[Change, ...] = (change,)
        if isinstance(change, MoveJob) and change.to is State.AVAILABLE:
            changes += quarantine_release(job)
        if job.events is not job.events.OFF and not _logs_itself(job, change):
            changes += (told,)
        request = seam.new_incarnation()
        [answer] = await store.commit([Group((InState(job.id, (job.state,)),), changes)], request)
        if not isinstance(answer, Refused):
            return job
        if not isinstance(answer.guard, InState):
            raise Conflict(answer.why)
    raise Conflict("the job keeps changing its state; try again")


def _logs_itself(job: Job, change: Change) -> bool:
    """Whether the store logs the change as the transition it is. What an operator does is logged at level
    ``odd`` too.
    """
    if isinstance(change, MoveJob):
        return lifecycle.is_logged(job.events, job.state, change.to)
    return isinstance(change, DropJob)


async def _run_anew(store: Store, job: Job, by: str) -> JobId:
    key = seam.new_id()
    again = Job(
        id=key,
        kind=job.kind,
        queue=job.queue,
        priority=job.priority,
        tenant=job.tenant,
        stride=job.stride,
        max_attempts=job.max_attempts,
        max_crashes=job.max_crashes,
        needs=job.needs,
        keep=job.keep,
        events=job.events,
        tags=job.tags,
        payload=job.payload,
        body=job.body,
        ext=encode_extras(Extras(origin=show_id(job.id))),
    )
    told = () if job.events is job.events.OFF else (LogEvent("retried", job.queue, job.id, by),)
    await store.commit([Group(changes=(AddJob(again), *told))], seam.new_incarnation())
    return key
