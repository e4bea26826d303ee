"""A job as people and programs outside see it: plain names, printed ids, aware times. Payloads only where
they were asked for.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from tessera.model.ids import show_id
from tessera.model.job import NEVER, End, Job, extras_of
from tessera.model.states import State


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """How one attempt ended."""

    attempt: int
    end: str
    started_at: datetime | None
    ended_at: datetime | None
    holder: str
    error: str


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job at one instant.

    Times are aware and in UTC. ``payload`` and ``result`` are the decoded JSON, present only if they were
    asked for.
    """

    id: str
    """The caller's own id if there is one, else the key."""
    key: str
    kind: str
    queue: str
    state: State
    priority: int
    tenant: str
    tags: tuple[str, ...]
    attempt: int
    failures: int
    crashes: int
    snoozes: int
    max_attempts: int
    reason: str
    created_at: datetime | None
    due_at: datetime | None
    finished_at: datetime | None
    kept_until: datetime | None
    """None while the job is live, and where it is kept for ever."""
    lease_until: datetime | None
    holder: str
    cancel_requested: bool
    parent: str | None
    open_edges: int
    blocked_on: str
    origin: str
    progress: dict[str, Any] | None
    output: Any = None
    log: tuple[str, ...] = ()
    ends: tuple[AttemptView, ...] = ()
    """The last ten attempts, oldest first."""
    payload: Any = msgspec.UNSET
    result: Any = msgspec.UNSET

    @property
    def orphaned(self) -> bool:
        """Whether a holder of this job ever vanished."""
        return self.crashes > 0


def view(job: Job, *, reveal: bool = False) -> JobView:
    """The row as a view; ``reveal`` adds payload and result."""
    extras = extras_of(job)
    return JobView(
        id=job.given_id or show_id(job.id),
        key=show_id(job.id),
        kind=job.kind,
        queue=job.queue,
        state=job.state,
        priority=job.priority,
        tenant=job.tenant,
        tags=job.tags,
        attempt=job.attempt,
        failures=job.failures,
        crashes=job.crashes,
        snoozes=job.snoozes,
        max_attempts=job.max_attempts,
        reason=job.reason,
        created_at=as_time(job.created_at),
        due_at=as_time(job.due),
        finished_at=as_time(job.finished_at),
        kept_until=None if job.gone_at == NEVER else as_time(job.gone_at),
        lease_until=as_time(job.lease_until),
        holder=job.holder,
        cancel_requested=job.cancel_requested,
        parent=show_id(job.parent) if job.parent is not None else None,
        open_edges=job.open,
        blocked_on=job.blocked_on if job.state is State.BLOCKED else "",
        origin=extras.origin,
        progress=msgspec.to_builtins(extras.progress) if extras.progress is not None else None,
        output=msgspec.json.decode(extras.output) if extras.output else None,
        log=extras.log,
        ends=tuple(_attempt(end) for end in job.ends),
        payload=_decoded(job.payload) if reveal else msgspec.UNSET,
        result=_decoded(job.result) if reveal and job.result is not None else msgspec.UNSET,
    )


def as_time(ms: int) -> datetime | None:
    """An instant of the store as an aware datetime; 0 is none."""
    return datetime.fromtimestamp(ms / 1_000, UTC) if ms > 0 else None


def _attempt(end: End) -> AttemptView:
    return AttemptView(
        attempt=end.attempt,
        end=end.end,
        started_at=as_time(end.started_at),
        ended_at=as_time(end.ended_at),
        holder=end.holder,
        error=end.error,
    )


def _decoded(data: bytes) -> object:
    """JSON if it is that; bytes of another codec stay bytes."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return data
