"""The rows that one transaction has read and changed so far.

A store with one writer runs claim and commit over a ``Working`` set: rows are loaded when first asked for,
changed here, and written at the end, each once, however often it changed. A journal takes a refused group
back without touching its neighbours. The memory store's ``Source`` is dictionaries, SQLite's is SQL; the
rules of claim and commit are written once, above both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from tessera.model.changes import Counter, Edge, Record, Shift, Slot
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import Event
from tessera.model.states import State
from tessera.rules import admission, lifecycle

K = TypeVar("K")
V = TypeVar("V")
_Undo = tuple[dict[Any, Any], dict[Any, None] | None, Any, Any]
"""Rows, the keys of those that changed, key, and the value to put back."""

FloorKey = tuple[str, int]
"""Queue and priority: the floor of its passes."""
PassKey = tuple[str, int, str]
"""Queue, priority and tenant: the last pass given."""


class Row(msgspec.Struct, Generic[K, V], frozen=True, gc=False):
    """One net change: what stands in the store, and what shall stand there."""

    key: K
    before: V | None
    after: V | None


class Net(msgspec.Struct, gc=False):
    """All that a transaction changes, each row once."""

    jobs: list[Row[JobId, Job]] = []
    archive: list[Row[JobId, Job]] = []
    slots: list[Row[str, Slot]] = []
    counters: list[Row[str, Counter]] = []
    records: list[Row[tuple[str, str], Record]] = []
    history: list[Record] = []
    floors: list[Row[FloorKey, int]] = []
    passes: list[Row[PassKey, int]] = []
    edges: list[Row[tuple[JobId, JobId], Edge]] = []
    counts: dict[tuple[str, State], int] = {}
    """Differences, zeros left out."""
    shifts: dict[str, Shift] = {}
    """Moves of counters that the next claim applies."""
    events: list[Event] = []
    """Positions are given by the store, in this order."""
    blobs: list[tuple[str, bytes, int]] = []
    """(upload, sha256, size) to publish."""
    policy_bumps: int = 0


class Tags(Protocol):
    """What a process remembers of the passes it gave."""

    def guess(self, job: Job) -> int:
        """The pass of a job that becomes ready and queues up behind."""
        ...

    def at_least(self, job: Job) -> int:
        """The pass of a job that keeps its place: no less than what was claimed already."""
        ...


class Source(Protocol):
    """Rows as they stand in the open transaction of a one-writer store. Plain calls: they never suspend."""

    def load_job(self, job: JobId) -> Job | None: ...
    def load_archived(self, job: JobId) -> Job | None: ...
    def load_slot(self, key: str) -> Slot | None: ...
    def load_counter(self, key: str) -> Counter | None: ...
    def load_record(self, key: tuple[str, str]) -> Record | None: ...
    def load_floor(self, key: FloorKey) -> int | None: ...
    def load_pass(self, key: PassKey) -> int | None: ...
    def load_edge(self, key: tuple[JobId, JobId]) -> Edge | None: ...

    def edges_from(self, parent: JobId, limit: int) -> list[Edge]: ...
    def edges_to(self, child: JobId) -> list[Edge]: ...

    def ready(self, queue: str, limit: int) -> list[Job]:
        """Available jobs of a queue in claim order."""
        ...

    def blocked(self, key: str, limit: int) -> list[Job]:
        """Jobs set aside under a key, in claim order."""
        ...

    def woken(self, key: str, limit: int) -> list[Job]:
        """Available jobs that hold a promise of this counter's units, in claim order."""
        ...

    def outdated_counters(self, version: int) -> list[str]:
        """Keys with jobs set aside whose numbers come from an older policy, in their order."""
        ...

    def blocked_kinds(self, queue: str) -> list[str]:
        """``kind:`` keys of the queue with jobs set aside, in their order."""
        ...

    def staged(self, upload: str) -> tuple[int, int]:
        """(chunks, bytes) of an upload; (0, -1) if a chunk is missing before another."""
        ...

    def policy_version(self) -> int: ...

    def write(self, net: Net) -> None:
        """Bring the store to the net state. May be called several times in one transaction."""
        ...


class _Table(Generic[K, V]):
    """Rows of one noun: as loaded, as changed."""

    __slots__ = ("_dirty", "_journal", "_load", "_rows", "_stored")

    def __init__(self, load: Callable[[K], V | None], journal: list[_Undo]) -> None:
        self._load = load
        self._journal = journal
        self._rows: dict[K, V | None] = {}
        self._stored: dict[K, V | None] = {}
        self._dirty: dict[K, None] = {}
        """In the order of the first change: jobs enqueued together lie together on the disk."""

    def get(self, key: K) -> V | None:
        try:
            return self._rows[key]
        except KeyError:
            row = self._rows[key] = self._stored[key] = self._load(key)
            return row

    def put(self, key: K, row: V | None) -> None:
        rows = self._rows
        self._journal.append((rows, self._dirty, key, rows[key] if key in rows else self.get(key)))
        rows[key] = row
        self._dirty[key] = None

    def knows(self, key: K) -> bool:
        """Whether the row, or that there is none, was read or written here."""
        return key in self._rows

    def keep(self, key: K, row: V | None) -> V | None:
        """A row that a query found, or None for one that it looked for in vain; what is known already is
        newer.
        """
        if key not in self._rows:
            self._rows[key] = self._stored[key] = row
        return self._rows[key]

    def net(self) -> list[Row[K, V]]:
        """Rows that differ from the store, which from now on count as stored."""
        changed = [
            Row(key, self._stored[key], self._rows[key])
            for key in self._dirty
            if self._stored[key] is not self._rows[key] and self._stored[key] != self._rows[key]
        ]
        for row in changed:
            self._stored[row.key] = row.after
        self._dirty.clear()
        return changed


class Working:
    """See the module. ``now`` is the transaction's one instant.

    ``tags``: many write at once, and must not wait for one another. Then no counter and no pass is read or
    written here: what happens to counters is written down for the next claim, and passes are guesses.
    """

    def __init__(self, source: Source, now: int, tags: Tags | None = None) -> None:
        self.now = now
        self.source = source
        self._journal: list[_Undo] = []
        self.tags = tags
        self._shifts: dict[str, Shift | None] | None = None if tags is None else {}
        """What the moves do to counters, where these belong to claims; None = done at once."""
        journal = self._journal
        self.jobs: _Table[JobId, Job] = _Table(source.load_job, journal)
        self.archive: _Table[JobId, Job] = _Table(source.load_archived, journal)
        self.slots: _Table[str, Slot] = _Table(source.load_slot, journal)
        self.counters: _Table[str, Counter] = _Table(source.load_counter, journal)
        self.records: _Table[tuple[str, str], Record] = _Table(source.load_record, journal)
        self.floors: _Table[FloorKey, int] = _Table(source.load_floor, journal)
        self.passes: _Table[PassKey, int] = _Table(source.load_pass, journal)
        self.edges: _Table[tuple[JobId, JobId], Edge] = _Table(source.load_edge, journal)
        self.counts: dict[tuple[str, State], int] = {}
        self.events: list[Event] = []
        self.history: list[Record] = []
        self.blobs: list[tuple[str, bytes, int]] = []
        self.policy_bumped = False
        self.touched: dict[str, None] = {}
        """Counters to look at again before the group ends, in order of first touch."""
        self.unwanted: list[JobId] = []
        """Jobs that were asked to stop and wait for their children instead."""
        self.late_edges: list[Edge] = []
        """Edges from jobs that had ended before. Settled when all of the group are there: the first of
        several would let the child go, or end it.
        """
        self.ended: list[tuple[JobId, State, int]] = []
        """Jobs that ended with heirs, how they ended, and how many of their edges to pass over: those still
        to be settled.
        """

    # Reads --------------------------------------------------------------------------------------------------

    def job(self, job: JobId) -> Job | None:
        """The hot row."""
        return self.jobs.get(job)

    def any_job(self, job: JobId) -> Job | None:
        """The row, hot or archived."""
        return self.jobs.get(job) or self.archive.get(job)

    def slot(self, key: str) -> Slot | None:
        """The owner of a key; a slot whose time is over is free."""
        slot = self.slots.get(key)
        return None if slot is None or 0 < slot.expires_at <= self.now else slot

    def counter(self, key: str) -> Counter:
        return self.counters.get(key) or Counter(key=key)

    def record(self, space: str, key: str) -> Record | None:
        """The record as readers see it; what has expired is not there."""
        record = self.records.get((space, key))
        return None if record is None or 0 < record.expires_at <= self.now else record

    def ready(self, queue: str, limit: int) -> list[Job]:
        self.flush()
        return [self.jobs.keep(job.id, job) or job for job in self.source.ready(queue, limit)]

    def blocked(self, key: str, limit: int) -> list[Job]:
        self.flush()
        return [self.jobs.keep(job.id, job) or job for job in self.source.blocked(key, limit)]

    def woken(self, key: str, limit: int) -> list[Job]:
        self.flush()
        return [self.jobs.keep(job.id, job) or job for job in self.source.woken(key, limit)]

    def edges_from(self, parent: JobId, limit: int) -> list[Edge]:
        self.flush()
        return self.source.edges_from(parent, limit)

    def edges_to(self, child: JobId) -> list[Edge]:
        self.flush()
        return self.source.edges_to(child)

    # Writes -------------------------------------------------------------------------------------------------

    def put_counter(self, counter: Counter) -> None:
        self.counters.put(counter.key, counter)

    def shift(self, key: str, shift: Shift) -> None:
        """Move a counter. Whoever has room then is looked for before the group ends; or, where counters
        belong to claims, by the claim that applies it.
        """
        if self._shifts is None:
            self.put_counter(admission.shifted(self.counter(key), shift, self.now))
            self.touched[key] = None
            return
        old = self._shifts.get(key)
        self._journal.append((self._shifts, None, key, old))
        self._shifts[key] = shift if old is None else admission.both(old, shift)

    def count(self, queue: str, state: State, by: int) -> None:
        key = (queue, state)
        old = self.counts.get(key, 0)
        self._journal.append((self.counts, None, key, old))
        self.counts[key] = old + by

    def log(self, event: Event) -> None:
        self.events.append(event)

    def log_move(self, before: State | None, job: Job, end: str, by: str) -> Job:
        """Log a transition as far as the job's level asks; the row comes back with its event counted."""
        level = job.events
        logged = lifecycle.is_logged(level, before, job.state, end) if before is not None else level == "full"
        if not logged:
            return job
        job = msgspec.structs.replace(job, event_count=job.event_count + 1)
        name = lifecycle.event_name(before, job.state, end)
        data = msgspec.json.encode(
            {"state": job.state, "attempt": job.attempt, "fence": job.fence, "reason": job.reason}
        )
        self.events.append(Event(0, self.now, name, job.queue, job.id, job.event_count, by, data))
        return job

    # Undo and flush -----------------------------------------------------------------------------------------

    def mark(self) -> tuple[int, int, int, int, bool]:
        """A place to roll back to."""
        return len(self._journal), len(self.events), len(self.history), len(self.blobs), self.policy_bumped

    def rollback(self, mark: tuple[int, int, int, int, bool]) -> None:
        """Forget everything after the mark. Rows that were flushed meanwhile are written back by the next
        flush.
        """
        journal, events, history, blobs, self.policy_bumped = mark
        for rows, dirty, key, old in reversed(self._journal[journal:]):
            rows[key] = old
            if dirty is not None:
                dirty[key] = None
        del self._journal[journal:], self.events[events:], self.history[history:], self.blobs[blobs:]
        self.touched.clear()
        self.ended.clear()
        self.unwanted.clear()
        self.late_edges.clear()

    def flush(self) -> None:
        """Write changed rows, so that queries see them. Events, counts and blobs wait for ``finish``."""
        net = self._net_rows()
        if net is not None:
            self.source.write(net)

    def finish(self) -> None:
        """Write all that is left. After it the set is used up."""
        net = self._net_rows() or Net()
        net.history, net.events, net.blobs = self.history, self.events, self.blobs
        net.counts = {key: by for key, by in self.counts.items() if by}
        net.shifts = {key: shift for key, shift in (self._shifts or {}).items() if shift is not None}
        net.policy_bumps = int(self.policy_bumped)
        self.source.write(net)

    def _net_rows(self) -> Net | None:
        net = Net(
            jobs=self.jobs.net(),
            archive=self.archive.net(),
            slots=self.slots.net(),
            counters=self.counters.net(),
            records=self.records.net(),
            floors=self.floors.net(),
            passes=self.passes.net(),
            edges=self.edges.net(),
        )
        return net if _says_something(net) else None


def _says_something(net: Net) -> bool:
    parts: Iterable[object] = (
        net.jobs, net.archive, net.slots, net.counters, net.records, net.floors, net.passes, net.edges,
    )  # fmt: skip
    return any(parts)


def wakes_somebody(net: Net) -> bool:
    """Whether the change may let a worker start something, or ends a job that somebody waits for."""
    if net.policy_bumps:  # a queue that is resumed, a ceiling that is raised
        return True
    for row in net.jobs:
        before, after = row.before, row.after
        if after is None:
            if before is not None and before.watched:  # ended; whether a row of it is kept does not matter
                return True
        elif after.state in (State.AVAILABLE, State.SCHEDULED):
            return True
    return False
