"""What is asked of a store, and what it answers, apart from commits."""

from __future__ import annotations

import msgspec

from tessera.model.changes import Record, Slot
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.policy import Policy
from tessera.model.states import State

PAGE_LIMIT = 200
"""Most rows a page holds."""
EXAMINED_LIMIT = 10_000
"""A filter without an index looks at so many rows and then stops, and says so."""
SET_ASIDE_LIMIT = 500
"""Most jobs one claim sets aside: it bounds how long the writer is held."""


class Want(msgspec.Struct, frozen=True, gc=False):
    """Jobs of one queue, at most so many."""

    queue: str
    limit: int


class ClaimRequest(msgspec.Struct, frozen=True, gc=False):
    """Given this policy and my free capacity, what may I run?"""

    holder: str
    """Random and unique to one life of one process."""
    wants: tuple[Want, ...]
    """Queues in the order to try them."""
    limit: int
    """Most jobs in all."""
    lease_ms: int
    policy: Policy
    kinds: frozenset[str] | None = None
    """Kinds this holder can run; others are set aside under ``kind:``. None = all."""
    counted_limit: int = 1_000_000
    """Most jobs that hold a counter: those are claimed for a free slot only, never to wait in a buffer."""
    scan: int = 0
    """Candidates to look at in one queue; 0 = as many as wanted. Raised after a claim that set jobs aside."""
    cap_ms: int = 0
    """No heartbeat moves the lease further than this from the claim; 0 = no cap."""


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """The answer to a claim. All in it was one atomic step."""

    jobs: tuple[Job, ...] = ()
    """In claim order, as stored: running, with fence and lease."""
    now: int = 0
    next_due: int = 0
    """When the next scheduled job of the asked queues, or a counter in need of a look, falls due; 0 = none
    known.
    """
    set_aside: int = 0
    policy_version: int = 0
    replan: bool = False
    """Nothing was claimed: the request's policy is not the store's. Read it again and ask again."""


class Due(msgspec.Struct, frozen=True, gc=False):
    """What the clock has made ready for the duties. Each list is bounded by the asked limit."""

    now: int
    scheduled: tuple[Job, ...] = ()
    """``scheduled`` jobs whose time has come, in (due, id) order."""
    lapsed: tuple[Job, ...] = ()
    """``running`` jobs whose lease is over."""
    expired: tuple[Job, ...] = ()
    """Jobs not started by ``expires_at``."""
    gone: tuple[JobId, ...] = ()
    """Archived jobs whose retention is over."""
    slots: tuple[Slot, ...] = ()
    counters: tuple[str, ...] = ()
    """Keys whose ``wake_at`` has come."""
    records: tuple[Record, ...] = ()
    """Records due or expired."""
    next_due: int = 0


class Filter(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Which jobs. An empty field says nothing; all fields that say something must hold."""

    queues: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    kinds: tuple[str, ...] = ()
    tags_all: tuple[str, ...] = ()
    tags_any: tuple[str, ...] = ()
    tenant: str | None = None
    parent: JobId | None = None
    holder: str = ""
    cancel_requested: bool | None = None
    ids: tuple[JobId, ...] = ()
    blocked_on: str = ""
    reason: str = ""
    """The beginning of the reason."""


class Page(msgspec.Struct, frozen=True, gc=False):
    """Which part of the answer. Jobs come newest key first."""

    after: bytes = b""
    """The last key of the former page."""
    limit: int = 50


class JobPage(msgspec.Struct, frozen=True, gc=False):
    """One page of jobs."""

    jobs: tuple[Job, ...] = ()
    after: bytes = b""
    """Give this to get the next page; empty = there is none."""
    examined: int = 0
    """Rows looked at."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One entry of the log."""

    pos: int
    at: int
    what: str
    queue: str = ""
    job: JobId | None = None
    number: int = 0
    """Gapless within the job, from 1; 0 for an event of no job."""
    by: str = ""
    data: bytes = b""
