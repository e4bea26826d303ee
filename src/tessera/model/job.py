"""The job row: the columns a store works with, and three byte fields that only rules read."""

from __future__ import annotations

from typing import Final

import msgspec

from tessera.model.ids import JobId
from tessera.model.states import EventLevel, State

NEVER: Final = -1
"""Retention of a row that is kept until someone deletes it."""


class Need(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Units of one counter that a job takes when it is claimed. The key is ``name`` or ``name/value``."""

    key: str
    units: int = 1


class End(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How one attempt ended. The row keeps the last ten; the whole history is in the events."""

    attempt: int
    end: str
    """completed, failed, crashed, released, snoozed, cancelled, aborted, split, undecodable, rate_limited"""
    started_at: int
    ended_at: int
    holder: str = ""
    error: str = ""


class Keep(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How long a finished row is kept, in milliseconds; ``NEVER`` for ever, 0 not at all."""

    completed: int = 86_400_000
    dead: int = NEVER
    cancelled: int = 86_400_000

    def after(self, state: State) -> int:
        """The retention that applies to a final state."""
        if state is State.COMPLETED:
            return self.completed
        return self.dead if state is State.DEAD else self.cancelled


class Job(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One unit of work, as stored. Times are milliseconds of the store's clock; 0 or -1 stands for "none" as
    noted.
    """

    id: JobId
    given_id: str = ""
    kind: str
    queue: str
    state: State = State.AVAILABLE

    priority: int = 0
    """Higher first, -32768 to 32767."""
    pass_: int = 0
    """Fairness: the place of this job's tenant within its priority (``rules/ordering``)."""
    due: int = 0
    """When it became or becomes claimable."""

    tenant: str = ""
    stride: int = 0
    """How far this job moves its tenant's pass on; 0 = the usual step, where its queue is shared between
    tenants.
    """

    placed: bool = False
    """A claim has set ``pass_`` right. On stores with many writers a producer can only guess it."""

    fence: int = 0
    """Grows with every change of ownership; the one thing a holder's write is checked against."""
    attempt: int = 0
    """Runs started; a give-back undoes it."""
    failures: int = 0
    crashes: int = 0
    snoozes: int = 0
    max_attempts: int = 25
    """Compared with ``failures``."""
    max_crashes: int = 3

    holder: str = ""
    lease_until: int = 0
    claimed_at: int = 0
    cap_at: int = 0
    """No heartbeat moves the lease past this instant; 0 = no cap."""
    cancel_requested: bool = False
    last_fence: int = 0
    """Fence of the last lease that ended, and how it ended: what a repeated finish is recognised by."""
    last_end: str = ""

    needs: tuple[Need, ...] = ()
    holds: tuple[Need, ...] = ()
    """Units to give back when the job leaves ``running``: those of its ceilings."""
    slots: tuple[str, ...] = ()
    """Exclusive keys it owns; freed at a final state, ``id:`` when the row goes."""
    blocked_on: str = ""
    """While blocked: the counter or ``kind:`` key it waits under. While available: the counter that woke it.
    """

    parent: JobId | None = None
    open: int = 0
    """Edges not yet settled; the job is held while it is above 0."""
    held: bool = False
    """Enqueued as pending: only a promote moves it."""
    heirs: int = 0
    """Edges that lead out of it; a job with none settles nothing when it ends."""

    created_at: int = 0
    expires_at: int = 0
    """Not to be started at or after this instant; 0 = never."""
    deadline: int = 0
    """Not to be finished after this instant, over all attempts; 0 = none."""
    finished_at: int = 0
    gone_at: int = 0
    """When the finished row may be removed; ``NEVER`` = kept."""

    keep: Keep = Keep()
    events: EventLevel = EventLevel.ODD
    event_count: int = 0
    watched: bool = False
    """Somebody waits for its end, so that the end must wake him."""
    reason: str = ""
    """Why it is dead, cancelled, quarantined or blocked, in one word or a short sentence."""
    tags: tuple[str, ...] = ()
    ends: tuple[End, ...] = ()

    payload: bytes = b""
    result: bytes | None = None
    body: bytes = b""
    """The encoded ``Terms``: equal for all jobs of one kind, so that decoding is a dictionary look-up."""
    ext: bytes = b""
    """The encoded ``Extras`` of this one job."""

    @property
    def is_final(self) -> bool:
        return self.state in (State.COMPLETED, State.DEAD, State.CANCELLED)


class Terms(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What was agreed when the job was enqueued and no store reads: retry, time limits, payload version.

    Readers ignore fields they do not know, so that releases may run side by side.
    """

    backoff_base_ms: int = 15_000
    backoff_factor: float = 2.0
    backoff_cap_ms: int = 3_600_000
    backoff_jitter: float = 0.5
    backoff_delays_ms: tuple[int, ...] = ()
    """Given delays, the last one repeated; replaces the exponential form."""
    retry_for_ms: int = 0
    """Give up this long after the first enqueue; 0 = no such limit."""
    crash_backoff_ms: int = 1_000
    """Doubled with each crash. Short at first: most crashes are lost machines, and a lease was waited for."""
    on_crashes: str = "quarantine"
    """``quarantine`` or ``dead``."""
    timeout_ms: int = 0
    max_snoozes: int = 1_000
    max_claims: int = 0
    schema_version: int = 1


class Progress(msgspec.Struct, frozen=True, gc=False):
    """How far a handler says it is."""

    current: float
    total: float = 0
    message: str = ""
    at: int = 0


class Extras(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Fields of one job that no store reads, written by its holder or by an operator."""

    progress: Progress | None = None
    output: bytes = b""
    """JSON, replaced by each ``ctx.output``."""
    log: tuple[str, ...] = ()
    origin: str = ""
    """The job that this one was made from, by a retry of a completed job or by a named dead-letter queue."""
    join_note: str = ""
    """What a split job wrote to itself for the time after the join."""
    split: int = 0
    """Of a child: the attempt of its parent that split."""
    child_no: int = 0
    """Of a child: its place in that split."""


_terms_encoder = msgspec.msgpack.Encoder()
_terms_decoder = msgspec.msgpack.Decoder(Terms)
_extras_decoder = msgspec.msgpack.Decoder(Extras)
_terms_seen: dict[bytes, Terms] = {}


def encode_terms(terms: Terms) -> bytes:
    """The form kept in ``Job.body``."""
    return _terms_encoder.encode(terms)


def terms_of(job: Job) -> Terms:
    """The terms of a job. Jobs of one kind share their bytes, so that the few forms alive are remembered."""
    terms = _terms_seen.get(job.body)
    if terms is None:
        terms = _terms_decoder.decode(job.body) if job.body else Terms()
        if len(_terms_seen) >= 1_000:
            _terms_seen.clear()
        _terms_seen[job.body] = terms
    return terms


def encode_extras(extras: Extras) -> bytes:
    """The form kept in ``Job.ext``; nothing set is no bytes."""
    return b"" if extras == Extras() else _terms_encoder.encode(extras)


def extras_of(job: Job) -> Extras:
    """The extras of a job."""
    return _extras_decoder.decode(job.ext) if job.ext else Extras()
