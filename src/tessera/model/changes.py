"""What a rule may ask of a store: guards, changes, and groups of both that happen wholly or not at all.

Both unions are closed. A store matches them exhaustively, so a new member is a type error everywhere.
Times are absolute or ``After(milliseconds)``; the store resolves them against its own clock.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from tessera.model.ids import JobId
from tessera.model.job import End, Job
from tessera.model.states import State


class After(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A time so many milliseconds after the store's now."""

    ms: int


Time: TypeAlias = int | After
"""Milliseconds since the epoch, by the store's clock; or a distance from the store's now."""


# Nouns that changes carry -----------------------------------------------------------------------------------


class Edge(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """``child`` waits for ``parent``. A join is the same: the split job waits for each of its children."""

    parent: JobId
    child: JobId
    on: str = "completed"
    """``completed``: only a completed parent satisfies it. ``ended``: any end does."""
    otherwise: str = "cancel"
    """What an unsatisfying end does to the child: ``cancel``, ``dead``, ``hold`` (until the parent is
    redriven) or ``go``.
    """


class Slot(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An exclusive key and the job that owns it."""

    key: str
    owner: JobId
    expires_at: int = 0
    """Freed by the clock at this instant; 0 = freed with its owner."""


class Counter(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A bounded number: a ceiling on what runs, or a rate on what starts. Made by the claim that first needs
    it.
    """

    key: str
    used: int = 0
    """Units held by running jobs."""
    ceiling: int = -1
    """Most units held at once; -1 = no ceiling."""
    refill: int = 0
    """Rate: level units that flow back each millisecond; 0 = not a rate."""
    capacity: int = 0
    """Rate: most level units."""
    unit: int = 0
    """Rate: level units that one unit of the counter costs (the window in milliseconds)."""
    level: int = 0
    level_at: int = 0
    """The instant ``level`` was right at."""
    closed_until: int = 0
    """A handler was told to wait: nothing starts before this instant."""
    blocked: int = 0
    """Jobs set aside under this key."""
    awake: int = 0
    """Units promised to jobs that were woken and not yet claimed."""
    wake_at: int = 0
    """When to look again without being asked; 0 = never."""
    version: int = 0
    """Version of the policy its numbers come from."""


class Shift(msgspec.Struct, frozen=True, gc=False):
    """What a job's move does to a counter. On stores whose counters belong to claims it is written down and
    the next claim applies it.
    """

    used: int = 0
    blocked: int = 0
    awake: int = 0
    refund: int = 0
    """Units of a rate whose runs never began."""
    close_until: int = 0
    """Nothing starts before this instant."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """A versioned document. A tombstone has no value and a version like any other."""

    space: str
    key: str
    version: int
    value: bytes | None
    written_at: int = 0
    due_at: int = 0
    expires_at: int = 0


# Guards -----------------------------------------------------------------------------------------------------


class Held(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The lease is live: running, this fence, not expired by the store's clock.

    ``end`` names the outcome that the group writes. If that very lease already ended that way, the group is a
    repeat whose first reply was lost: it is answered ``Done(replayed=True)`` and changes nothing.
    """

    job: JobId
    fence: int
    end: str = ""


class Lapsed(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The lease with this fence is over: running, and expired by the store's clock."""

    job: JobId
    fence: int


class InState(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The job exists and is in one of these states. An archived job counts.

    A state can come back. Who decided by more than the state says what he saw: a ``fence`` that grew means
    another life of the job, another ``due`` another wait. -1 = whatever it is.
    """

    job: JobId
    states: tuple[State, ...]
    fence: int = -1
    due: int = -1


class AtVersion(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The record is at this version; 0 = it does not exist."""

    space: str
    key: str
    version: int


class Free(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Nobody owns the slot."""

    slot: str


class Below(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The counter holds fewer units than this."""

    counter: str
    ceiling: int


Guard: TypeAlias = Held | Lapsed | InState | AtVersion | Free | Below


# Changes ----------------------------------------------------------------------------------------------------


class Edits(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """New values for fields of a job row. What is unset stays."""

    priority: int | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    failures: int | UnsetType = UNSET
    crashes: int | UnsetType = UNSET
    snoozes: int | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    max_crashes: int | UnsetType = UNSET
    cancel_requested: bool | UnsetType = UNSET
    watched: bool | UnsetType = UNSET
    held: bool | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET
    payload: bytes | UnsetType = UNSET
    result: bytes | UnsetType | None = UNSET
    body: bytes | UnsetType = UNSET
    ext: bytes | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    lease: After | UnsetType = UNSET
    """The lease ends so long after now, but not past ``cap_at``. Only with a ``Held`` guard."""
    due: Time | UnsetType = UNSET
    """Moves a scheduled job's due time; no effect in other states."""
    due_latest: int | UnsetType = UNSET
    """With ``due``: not later than this instant (a debounce that must not be postponed for ever)."""
    expires_at: int | UnsetType = UNSET
    deadline: int | UnsetType = UNSET
    ends: tuple[End, ...] | UnsetType = UNSET


class AddJob(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Store a job and take its slots.

    The store sets ``created_at``, ``due``, ``expires_at``, ``pass_`` and the state: ``pending`` if held or
    with open edges, else ``scheduled`` if due ahead, else ``available``. A job with this id and content that
    is there already, live or archived, is left as it is and named in ``Done.existing``; one with other
    content refuses the group, and so does a slot that is taken (as ``Free``).
    """

    job: Job
    due: Time = After(0)
    expires: int = 0
    """May not start so many milliseconds after it is due; 0 = never expires."""
    deadline: Time = 0
    after: tuple[Edge, ...] = ()
    """What it waits for. Parents of the same group must be added before it."""


class MoveJob(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Take the job to another state.

    ``available`` with a due time ahead lands at ``scheduled``. Leaving ``running`` gives units back and
    raises the fence; a final state archives the row, frees its slots and settles its edges, all in the same
    commit. A move of a final job to ``available`` is a redrive: the row comes back from the archive, fence
    kept.
    """

    job: JobId
    to: State
    due: Time = After(0)
    edits: Edits = Edits()
    end: End | None = None
    """Added to the row's ends; the store stamps ``ended_at``."""
    reason: str = ""
    refund: bool = False
    """Give back rate units too: the run never began."""
    by: str = ""


class EditJob(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Change fields of a job that stays in its state."""

    job: JobId
    edits: Edits


class DropJob(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Remove the row, hot or archived, with its slots and edges. Dependants see the end ``cancelled``."""

    job: JobId
    reason: str = ""
    by: str = ""


class TakeSlot(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Own a key. Without ``until`` the slot is freed with its owner and must stand in ``Job.slots``."""

    slot: str
    owner: JobId
    until: Time = 0


class FreeSlot(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Give a key up, if this job owns it."""

    slot: str
    owner: JobId


class Count(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Add to a counter that rules keep for themselves (its key begins with ``~``), or with 0 look at it again
    and wake whoever has room.

    The units of running jobs are never written this way: the store moves them with the jobs.
    """

    counter: str
    units: int = 0
    close: After | None = None
    """Let nothing start under this counter for so long."""


class Link(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Make a pending or waiting job wait for another. A parent that ended settles it at once; an unknown one
    refuses the group.
    """

    edge: Edge


class SettleEdges(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Go on settling the edges of a job that ended. Every end settles the first thousand by itself."""

    job: JobId


class PutRecord(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Write a record; its version rises by one. Spaces that begin with ``~`` keep no history."""

    space: str
    key: str
    value: bytes
    due: Time = 0
    expires: Time = 0


class DropRecord(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Delete a record: a tombstone with the next version, or in a ``~`` space nothing at all."""

    space: str
    key: str


class LogEvent(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Append an event that is not a transition. Transitions log themselves, by the job's event level."""

    what: str
    queue: str = ""
    job: JobId | None = None
    by: str = ""
    data: bytes = b""


class PublishBlob(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Make a staged upload readable under its hash. Refused if a chunk is missing or the size is another."""

    upload: str
    sha256: bytes
    size: int


Change: TypeAlias = (
    AddJob
    | MoveJob
    | EditJob
    | DropJob
    | TakeSlot
    | FreeSlot
    | Count
    | Link
    | SettleEdges
    | PutRecord
    | DropRecord
    | LogEvent
    | PublishBlob
)


# Groups and answers -----------------------------------------------------------------------------------------


class Otherwise(msgspec.Struct, frozen=True, gc=False):
    """If the group's ``Free`` guard fails, edit the slot's owner instead, provided it is in one of these
    states.
    """

    edits: Edits
    states: tuple[State, ...]


class Group(msgspec.Struct, frozen=True, gc=False):
    """Guards and changes, all or nothing. Later groups of a commit see what earlier ones did."""

    guards: tuple[Guard, ...] = ()
    changes: tuple[Change, ...] = ()
    otherwise: Otherwise | None = None


class Done(msgspec.Struct, frozen=True, gc=False, tag=True):
    """The group was applied, now or by an earlier call of which this one is a repeat."""

    replayed: bool = False
    """Nothing was left to do: the very group was applied before."""
    existing: tuple[JobId, ...] = ()
    """Jobs that the group adds and that were there already."""
    edited: Job | None = None
    """Set when ``otherwise`` was taken: the owner of the slot, as edited."""


class Refused(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Nothing of the group was applied.

    ``guard`` is the one that failed, or the change whose own condition did (an id that is taken, a job that
    is not there, a move that the state machine does not know). ``job`` and ``version`` say what stands there
    instead.
    """

    guard: Guard | Change
    job: Job | None = None
    version: int = 0
    why: str = ""


Answer: TypeAlias = Done | Refused
