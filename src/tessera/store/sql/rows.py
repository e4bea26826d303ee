"""Rows and values: which column holds what, both ways.

A job has 48 fields and a driver pays for every column it fetches (0.12 us for a NULL, 0.25 us for a text).
So the fields that an index or a reader of the file needs are columns, and those that seldom say anything
lie together in ``rest``, NULL when none does. A plain job decodes in a third of the time that 48 columns
take.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final, TypeAlias, TypedDict

import msgspec

from tessera.model.changes import Counter, Edge, Record
from tessera.model.ids import JobId
from tessera.model.job import End, Job, Keep, Need
from tessera.model.queries import Event
from tessera.model.states import EventLevel, State

Values: TypeAlias = tuple[Any, ...]
"""One row, as the driver takes and gives it."""

STATES: Final = (
    State.PENDING,
    State.SCHEDULED,
    State.AVAILABLE,
    State.BLOCKED,
    State.RUNNING,
    State.WAITING,
    State.QUARANTINED,
    State.COMPLETED,
    State.DEAD,
    State.CANCELLED,
)
"""A state is stored as its place here. Part of the stored format: never reordered."""
CODES: Final = {state: code for code, state in enumerate(STATES)}

JOB_COLUMNS: Final = tuple(
    """
    id kind queue state np pass due fence attempt holder lease_until claimed_at cancel_requested blocked_on
    parent expires_at created_at body payload rest
    """.split()
)
DONE_COLUMNS: Final = tuple(
    """
    id kind queue state np due fence attempt parent created_at finished_at gone_at reason last_fence
    last_end ends body payload result rest
    """.split()
)
COUNTER_COLUMNS: Final = Counter.__struct_fields__


def filled(query: str) -> str:
    """A query with the lists of columns put in for ``{job}``, ``{done}`` and ``{counter}``."""
    for name, columns in (("{job}", JOB_COLUMNS), ("{done}", DONE_COLUMNS), ("{counter}", COUNTER_COLUMNS)):
        query = query.replace(name, ", ".join(columns))
    return query


# What seldom says anything ----------------------------------------------------------------------------------


class _Rest(TypedDict, total=False):
    """Fields of a job without a column in one of the two tables. Readers ignore names they do not know."""

    given_id: str
    pass_: int
    tenant: str
    stride: int
    placed: bool
    failures: int
    crashes: int
    snoozes: int
    max_attempts: int
    max_crashes: int
    holder: str
    lease_until: int
    claimed_at: int
    cap_at: int
    cancel_requested: bool
    last_fence: int
    last_end: str
    needs: tuple[Need, ...]
    holds: tuple[Need, ...]
    slots: tuple[str, ...]
    blocked_on: str
    open: int
    held: bool
    heirs: int
    expires_at: int
    deadline: int
    finished_at: int
    gone_at: int
    keep: Keep
    events: EventLevel
    event_count: int
    watched: bool
    reason: str
    tags: tuple[str, ...]
    ends: tuple[End, ...]
    result: bytes | None
    ext: bytes


class _Remainder:
    """The fields of a table that have no column: one msgpack map of those that differ from their defaults."""

    def __init__(self, name: str, columns: tuple[str, ...]) -> None:
        present = {{"np": "priority", "pass": "pass_"}.get(column, column) for column in columns}
        fields = [field for field in msgspec.structs.fields(Job) if field.name not in present]
        self._values = attrgetter(*(field.name for field in fields))
        self._defaults = tuple(field.default for field in fields)
        self._form = msgspec.defstruct(
            name, [(field.name, field.type, field.default) for field in fields], omit_defaults=True, gc=False
        )
        self._encode = msgspec.msgpack.Encoder().encode

    def of(self, job: Job) -> bytes | None:
        """The bytes; None if all fields have their defaults."""
        values = self._values(job)
        return None if values == self._defaults else self._encode(self._form(*values))


_job_rest: Final = _Remainder("JobRest", JOB_COLUMNS).of
_done_rest: Final = _Remainder("DoneRest", DONE_COLUMNS).of
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_ends: Final = msgspec.msgpack.Decoder(tuple[End, ...]).decode
_decode_rest: Final = msgspec.msgpack.Decoder(_Rest).decode
_rests_seen: dict[bytes, dict[str, Any]] = {}
"""Jobs of one kind mostly share their rest: limits and retention."""


def _rest(data: bytes) -> dict[str, Any]:
    rest = _rests_seen.get(data)
    if rest is None:
        rest = dict(_decode_rest(data))
        if len(data) <= 64:
            if len(_rests_seen) >= 1_000:
                _rests_seen.clear()
            _rests_seen[data] = rest
    return rest


# Jobs -------------------------------------------------------------------------------------------------------


def job_of(row: Values) -> Job:
    """A live job from the columns ``JOB_COLUMNS``."""
    (
        id_, kind, queue, state, np, pass_, due, fence, attempt, holder, lease_until, claimed_at,
        cancel_requested, blocked_on, parent, expires_at, created_at, body, payload, rest,
    ) = row  # fmt: skip
    if rest is None:
        return Job(
            id=id_, kind=kind, queue=queue, state=STATES[state], priority=-np, pass_=pass_, due=due,
            fence=fence, attempt=attempt, holder=holder, lease_until=lease_until, claimed_at=claimed_at,
            cancel_requested=cancel_requested == 1, blocked_on=blocked_on, parent=parent,
            expires_at=expires_at, created_at=created_at, body=body, payload=payload,
        )  # fmt: skip
    return Job(
        id=id_, kind=kind, queue=queue, state=STATES[state], priority=-np, pass_=pass_, due=due, fence=fence,
        attempt=attempt, holder=holder, lease_until=lease_until, claimed_at=claimed_at,
        cancel_requested=cancel_requested == 1, blocked_on=blocked_on, parent=parent, expires_at=expires_at,
        created_at=created_at, body=body, payload=payload, **_rest(rest),
    )  # fmt: skip


def row_of_job(job: Job) -> Values:
    """The columns ``JOB_COLUMNS`` of a live job."""
    return (
        job.id, job.kind, job.queue, CODES[job.state], -job.priority, job.pass_, job.due, job.fence,
        job.attempt, job.holder, job.lease_until, job.claimed_at, job.cancel_requested, job.blocked_on,
        job.parent, job.expires_at, job.created_at, job.body, job.payload, _job_rest(job),
    )  # fmt: skip


def lease_of_job(job: Job) -> Values:
    """What a claim, a renewal or a flag changes: see ``writes.UPDATE_LEASE``. The key comes last."""
    return (
        CODES[job.state], job.fence, job.attempt, job.holder, job.lease_until, job.claimed_at,
        job.cancel_requested, job.blocked_on, _job_rest(job), job.id,
    )  # fmt: skip


def done_of(row: Values) -> Job:
    """An archived job from the columns ``DONE_COLUMNS``."""
    (
        id_, kind, queue, state, np, due, fence, attempt, parent, created_at, finished_at, gone_at, reason,
        last_fence, last_end, ends, body, payload, result, rest,
    ) = row  # fmt: skip
    return Job(
        id=id_, kind=kind, queue=queue, state=STATES[state], priority=-np, due=due, fence=fence,
        attempt=attempt, parent=parent, created_at=created_at, finished_at=finished_at, gone_at=gone_at,
        reason=reason, last_fence=last_fence, last_end=last_end, ends=() if ends is None else
        _decode_ends(ends), body=body, payload=payload, result=result, **(_rest(rest) if rest is not None
        else {}),
    )  # fmt: skip


def row_of_done(job: Job) -> Values:
    """The columns ``DONE_COLUMNS`` of an archived job."""
    return (
        job.id, job.kind, job.queue, CODES[job.state], -job.priority, job.due, job.fence, job.attempt,
        job.parent, job.created_at, job.finished_at, job.gone_at, job.reason, job.last_fence, job.last_end,
        _encode(job.ends) if job.ends else None, job.body, job.payload, job.result, _done_rest(job),
    )  # fmt: skip


# The other nouns --------------------------------------------------------------------------------------------


def counter_of(row: Values) -> Counter:
    """A counter from the columns ``COUNTER_COLUMNS``."""
    return Counter(**dict(zip(COUNTER_COLUMNS, row, strict=True)))


def row_of_counter(counter: Counter) -> Values:
    """The columns ``COUNTER_COLUMNS`` of a counter."""
    return msgspec.structs.astuple(counter)


def record_of(row: Values) -> Record:
    """A record from (space, key, version, value, written_at, due_at, expires_at)."""
    return Record(*row)


def row_of_record(record: Record) -> Values:
    """The columns of ``record_of``."""
    return msgspec.structs.astuple(record)


def edge_of(row: Values) -> Edge:
    """An edge from (parent, child, on, otherwise)."""
    parent, child, on, otherwise = row
    return Edge(JobId(parent), JobId(child), on, otherwise)


def event_of(row: Values) -> Event:
    """An event from (pos, at, what, queue, job, number, by, data)."""
    return Event(*row)
