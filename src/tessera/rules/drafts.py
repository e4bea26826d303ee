"""From what a producer asks for to the change that stores it."""

from __future__ import annotations

import msgspec

from tessera.model.changes import AddJob, After, Edge, Time
from tessera.model.ids import JobId
from tessera.model.job import Job, Keep, Need
from tessera.model.policy import QueuePolicy
from tessera.model.states import EventLevel
from tessera.rules import ordering


class Wait(msgspec.Struct, frozen=True, gc=False):
    """One job to wait for: ``on`` and ``otherwise`` as in ``Edge``."""

    parent: JobId
    on: str = "completed"
    otherwise: str = "cancel"
    or_else: JobId | None = None
    """The other key that the caller may have meant: his own ids may look like keys. Settled before it is
    stored.
    """


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A job as asked for: validated, without a key and without the store's times."""

    kind: str
    payload: bytes
    queue: str = "default"
    priority: int = 0
    due: Time = After(0)
    given_id: str = ""
    tags: tuple[str, ...] = ()
    tenant: str = ""
    cost: int = 1
    unique_key: str = ""
    needs: tuple[Need, ...] = ()
    waits: tuple[Wait, ...] = ()
    body: bytes = b""
    max_attempts: int = 25
    max_crashes: int = 3
    keep: Keep = Keep()
    expires_ms: int = 0
    deadline: Time = 0
    pending: bool = False
    events: EventLevel | None = None
    watched: bool = False
    parent: JobId | None = None


def add_job(draft: Draft, key: JobId, policy: QueuePolicy) -> AddJob:
    """The change that stores the draft under this key, by the queue's policy on weights and events."""
    slots = (f"id:{draft.given_id}",) if draft.given_id else ()
    if draft.unique_key:
        slots = (*slots, draft.unique_key)
    weight = (policy.weights or {}).get(draft.tenant, 1.0)
    is_plain = not draft.tenant and draft.cost == 1 and weight == 1
    job = Job(
        id=key,
        given_id=draft.given_id,
        kind=draft.kind,
        queue=draft.queue,
        priority=draft.priority,
        tenant=draft.tenant,
        stride=0 if is_plain else ordering.stride(draft.cost, weight),
        max_attempts=draft.max_attempts,
        max_crashes=draft.max_crashes,
        needs=draft.needs,
        slots=slots,
        parent=draft.parent,
        held=draft.pending,
        keep=draft.keep,
        events=draft.events or policy.events or EventLevel.ODD,
        watched=draft.watched,
        tags=draft.tags,
        payload=draft.payload,
        body=draft.body,
    )
    after = tuple(Edge(wait.parent, key, wait.on, wait.otherwise) for wait in draft.waits)
    return AddJob(job, draft.due, draft.expires_ms, draft.deadline, after)
