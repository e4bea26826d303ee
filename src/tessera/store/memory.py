"""The memory store: dictionaries and sorted lists. It is the reference: what it answers is what every
store must answer.

It lives as long as the process. Its rows are shared by all handles that were given one ``World``, of either
colour.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from tessera.model.changes import Answer, Counter, Edge, Group, Record, Slot
from tessera.model.errors import NotFound, StoreClosed
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import (
    EXAMINED_LIMIT,
    PAGE_LIMIT,
    Claimed,
    ClaimRequest,
    Due,
    Event,
    Filter,
    JobPage,
    Page,
)
from tessera.model.states import State
from tessera.rules import admission
from tessera.rules.ordering import sort_key
from tessera.store import audit, claims, evaluator
from tessera.store.driver import Doorbell
from tessera.store.filters import matches
from tessera.store.working import FloorKey, Net, PassKey, Row, Working, wakes_somebody

SCHEMA: Final = 1
_EXPIRES_IN: Final = frozenset({State.PENDING, State.SCHEDULED, State.AVAILABLE, State.BLOCKED})


class World:
    """The rows, and sorted lists that play the part of indexes."""

    def __init__(self, installation: bytes, clock: Callable[[], int]) -> None:
        self.installation = installation
        self.lock = threading.RLock()
        self.bell = Doorbell()
        self._clock = clock
        self._latest = 0
        self.jobs: dict[JobId, Job] = {}
        self.archive: dict[JobId, Job] = {}
        self.slots: dict[str, Slot] = {}
        self.counters: dict[str, Counter] = {}
        self.records: dict[tuple[str, str], Record] = {}
        self.history: dict[tuple[str, str], list[Record]] = {}
        self.floors: dict[FloorKey, int] = {}
        self.passes: dict[PassKey, int] = {}
        self.edges: dict[tuple[JobId, JobId], Edge] = {}
        self.counts: dict[tuple[str, State], int] = {}
        self.log: list[Event] = []
        self.staged_chunks: dict[str, dict[int, bytes]] = {}
        self.blobs: dict[bytes, list[bytes]] = {}
        self.policy = 0
        self._ready: dict[str, list[Any]] = {}
        self._blocked: dict[str, list[Any]] = {}
        self._woken: dict[str, list[Any]] = {}
        self._from: dict[JobId, dict[JobId, Edge]] = {}
        self._to: dict[JobId, dict[JobId, Edge]] = {}
        self.scheduled: list[Any] = []
        self.leases: list[Any] = []
        self.expiries: list[Any] = []
        self.gone: list[Any] = []

    def now(self) -> int:
        """The store's clock: the process's, never allowed to go back."""
        self._latest = max(self._latest, self._clock())
        return self._latest

    # Source: see store/working ------------------------------------------------------------------------------

    def load_job(self, job: JobId) -> Job | None:
        return self.jobs.get(job)

    def load_archived(self, job: JobId) -> Job | None:
        return self.archive.get(job)

    def load_slot(self, key: str) -> Slot | None:
        return self.slots.get(key)

    def load_counter(self, key: str) -> Counter | None:
        return self.counters.get(key)

    def load_record(self, key: tuple[str, str]) -> Record | None:
        return self.records.get(key)

    def load_floor(self, key: FloorKey) -> int | None:
        return self.floors.get(key)

    def load_pass(self, key: PassKey) -> int | None:
        return self.passes.get(key)

    def load_edge(self, key: tuple[JobId, JobId]) -> Edge | None:
        return self.edges.get(key)

    def edges_from(self, parent: JobId, limit: int) -> list[Edge]:
        return sorted(self._from.get(parent, {}).values(), key=lambda edge: edge.child)[:limit]

    def edges_to(self, child: JobId) -> list[Edge]:
        return sorted(self._to.get(child, {}).values(), key=lambda edge: edge.parent)

    def ready(self, queue: str, limit: int) -> list[Job]:
        return [self.jobs[key[-1]] for key in self._ready.get(queue, ())[:limit]]

    def blocked(self, key: str, limit: int) -> list[Job]:
        return [self.jobs[row[-1]] for row in self._blocked.get(key, ())[:limit]]

    def woken(self, key: str, limit: int) -> list[Job]:
        return [self.jobs[row[-1]] for row in self._woken.get(key, ())[:limit]]

    def outdated_counters(self, version: int) -> list[str]:
        return [
            key
            for key in sorted(self._blocked)
            if self.counters[key].version < version and not key.startswith("kind:")
        ]

    def blocked_kinds(self, queue: str) -> list[str]:
        return sorted(key for key in self._blocked if key.startswith(f"kind:{queue}:"))

    def staged(self, upload: str) -> tuple[int, int]:
        chunks = self.staged_chunks.get(upload, {})
        if sorted(chunks) != list(range(len(chunks))):
            return 0, -1
        return len(chunks), sum(map(len, chunks.values()))

    def policy_version(self) -> int:
        return self.policy

    def write(self, net: Net) -> None:
        for job in net.jobs:
            self._reindex_job(job)
        for archived in net.archive:
            self._reindex_archived(archived)
        for edge in net.edges:
            self._reindex_edge(edge)
        _replace(self.jobs, net.jobs)
        _replace(self.archive, net.archive)
        _replace(self.edges, net.edges)
        _replace(self.slots, net.slots)
        _replace(self.counters, net.counters)
        _replace(self.records, net.records)
        _replace(self.floors, net.floors)
        _replace(self.passes, net.passes)
        for record in net.history:
            self.history.setdefault((record.space, record.key), []).append(record)
        for key, by in net.counts.items():
            self.counts[key] = self.counts.get(key, 0) + by
        for event in net.events:
            self.log.append(_at_position(event, len(self.log) + 1))
        for upload, sha256, _ in net.blobs:
            chunks = self.staged_chunks.pop(upload, {})
            self.blobs[sha256] = [chunks[number] for number in sorted(chunks)]
        self.policy += net.policy_bumps

    def _reindex_job(self, row: Row[JobId, Job]) -> None:
        for job, change in ((row.before, _remove), (row.after, insort)):
            if job is None:
                continue
            if job.state is State.AVAILABLE:
                change(self._ready.setdefault(job.queue, []), sort_key(job))
                if job.blocked_on:
                    change(self._woken.setdefault(job.blocked_on, []), sort_key(job))
            elif job.state is State.BLOCKED:
                change(self._blocked.setdefault(job.blocked_on, []), sort_key(job))
                if not self._blocked[job.blocked_on]:
                    del self._blocked[job.blocked_on]
            elif job.state is State.SCHEDULED:
                change(self.scheduled, (job.due, job.id))
            elif job.state is State.RUNNING:
                change(self.leases, (job.lease_until, job.id))
            if job.expires_at and job.state in _EXPIRES_IN:
                change(self.expiries, (job.expires_at, job.id))

    def _reindex_archived(self, row: Row[JobId, Job]) -> None:
        for job, change in ((row.before, _remove), (row.after, insort)):
            if job is not None and job.gone_at >= 0:
                change(self.gone, (job.gone_at, job.id))

    def _reindex_edge(self, row: Row[tuple[JobId, JobId], Edge]) -> None:
        parent, child = row.key
        if row.before is not None:
            self._from[parent].pop(child, None)
            self._to[child].pop(parent, None)
        if row.after is not None:
            self._from.setdefault(parent, {})[child] = row.after
            self._to.setdefault(child, {})[parent] = row.after


def _remove(index: list[Any], key: tuple[Any, ...]) -> None:
    del index[bisect_left(index, key)]


def _replace(rows: dict[Any, Any], changes: Iterable[Row[Any, Any]]) -> None:
    for row in changes:
        if row.after is None:
            rows.pop(row.key, None)
        else:
            rows[row.key] = row.after


def _at_position(event: Event, pos: int) -> Event:
    return Event(pos, event.at, event.what, event.queue, event.job, event.number, event.by, event.data)


class _Watched:
    """Writes go to the world; whether one of them wakes somebody is remembered for the end of the verb."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rings = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the world has of that name
        return getattr(self._world, name)

    def write(self, net: Net) -> None:
        self.rings = self.rings or wakes_somebody(net)
        self._world.write(net)


class MemoryStore:
    """A handle on a ``World``. ``blocking`` says how ``wait`` sleeps; all else is the same in both."""

    name: ClassVar[str] = "memory"

    def __init__(self, world: World, *, blocking: bool = False) -> None:
        self._world = world
        self._blocking = blocking
        self._is_open = False
        self._heard = world.bell.rings
        """Rings before the last look for work: one that came between that look and a wait is not lost."""

    @property
    def installation(self) -> bytes:
        return self._world.installation

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False

    async def claim(self, request: ClaimRequest) -> Claimed:
        self._heard = self._world.bell.rings
        with self._writing() as work:
            claimed = claims.claim(work, request)
        with self._reading():
            next_due = self._next_due({want.queue for want in request.wants})
        return Claimed(
            claimed.jobs, claimed.now, next_due, claimed.set_aside, claimed.policy_version, claimed.replan
        )

    async def commit(self, groups: Sequence[Group], request_id: str = "") -> list[Answer]:
        with self._writing() as work:
            return evaluator.commit(work, groups, request_id)

    async def due(self, limit: int, queues: Sequence[str] | None = None) -> Due:
        with self._reading() as world:
            now = world.now()
            chosen = None if queues is None else set(queues)

            def jobs(index: list[Any], before: int) -> tuple[Job, ...]:
                found = (world.jobs[key] for at, key in index[: bisect_left(index, (before,))])
                return tuple(_first(limit, (job for job in found if chosen is None or job.queue in chosen)))

            return Due(
                now=now,
                scheduled=jobs(world.scheduled, now + 1),
                lapsed=jobs(world.leases, now + 1),
                expired=jobs(world.expiries, now + 1),
                gone=tuple(key for _, key in world.gone[: bisect_left(world.gone, (now + 1,))][:limit]),
                slots=tuple(
                    _first(limit, (slot for slot in world.slots.values() if 0 < slot.expires_at <= now))
                ),
                counters=tuple(
                    _first(limit, (c.key for c in world.counters.values() if 0 < c.wake_at <= now))
                ),
                records=tuple(_first(limit, (r for r in world.records.values() if _is_due(r, now)))),
                next_due=self._next_due(chosen),
            )

    async def find_jobs(self, which: Filter, page: Page) -> JobPage:
        with self._reading() as world:
            # A holder has running jobs only: a worker that asks for its own each second must not wade through
            # all others, nor miss them behind EXAMINED_LIMIT.
            rows = (key for _, key in world.leases) if which.holder else {*world.jobs, *world.archive}
            keys = sorted(rows, reverse=True)
            if page.after:
                keys = [key for key in keys if key < page.after]
            limit = min(page.limit, PAGE_LIMIT)
            found: list[Job] = []
            examined = 0
            for key in keys[:EXAMINED_LIMIT]:
                examined += 1
                job = world.jobs.get(key) or world.archive[key]
                if matches(job, which):
                    found.append(job)
                    if len(found) == limit:
                        break
            more = examined < len(keys)
            last = keys[examined - 1] if examined else b""
            return JobPage(tuple(found), last if more else b"", examined)

    async def count_jobs(self) -> dict[tuple[str, State], int]:
        with self._reading() as world:
            return {key: count for key, count in world.counts.items() if count}

    async def get_jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        with self._reading() as world:
            return [world.jobs.get(key) or world.archive.get(key) for key in ids]

    async def edges(self, job: JobId) -> list[tuple[JobId, str]]:
        with self._reading() as world:
            return [(edge.parent, edge.on) for edge in world.edges_to(job)]

    async def counters(self, keys: Sequence[str]) -> list[tuple[str, int, int]]:
        with self._reading() as world:
            now = world.now()
            found = (world.counters.get(key) for key in keys)
            return [(c.key, admission.units_in_use(c, now), c.blocked) for c in found if c is not None]

    async def get(self, keys: Sequence[tuple[str, str]]) -> list[Record | None]:
        with self._reading() as world:
            work = Working(world, world.now())
            return [work.record(space, key) for space, key in keys]

    async def scan(self, space: str, prefix: str = "", after: str = "", limit: int = 200) -> list[Record]:
        with self._reading() as world:
            now = world.now()
            found = (
                record
                for (of, key), record in sorted(world.records.items())
                if of == space and key.startswith(prefix) and key > after and record.value is not None
            )
            return list(_first(limit, (record for record in found if not 0 < record.expires_at <= now)))

    async def history(self, space: str, key: str, limit: int = 200) -> list[Record]:
        with self._reading() as world:
            return world.history.get((space, key), [])[::-1][:limit]

    async def events(self, after: int = 0, limit: int = 200, job: JobId | None = None) -> list[Event]:
        with self._reading() as world:
            return list(
                _first(limit, (event for event in world.log[after:] if job is None or event.job == job))
            )

    async def stage(self, upload: str, number: int, data: bytes) -> None:
        with self._reading() as world:
            world.staged_chunks.setdefault(upload, {})[number] = data

    async def blob(self, sha256: bytes) -> AsyncIterator[bytes]:
        with self._reading() as world:
            chunks = world.blobs.get(sha256)
        if chunks is None:
            raise NotFound("blob", sha256.hex())
        for chunk in chunks:
            yield chunk

    async def policy_version(self) -> int:
        with self._reading() as world:
            return world.policy

    async def schema(self) -> tuple[int, int]:
        return SCHEMA, SCHEMA

    async def migrate(self, to: int | None = None, dry_run: bool = False) -> list[str]:
        return []

    async def describe(self) -> dict[str, str]:
        """See ``Describes.describe``."""
        return {"durability": "none: it lives and dies with the process"}

    async def verify(self) -> list[str]:
        with self._reading() as world:
            return audit.differences(
                jobs=world.jobs.values(),
                archive=world.archive.values(),
                counts=world.counts,
                counters=world.counters.values(),
                slots=world.slots.values(),
                edges=world.edges.values(),
            )

    async def wait(self, seconds: float) -> bool:
        """See ``Notifies.wait``. A change since the last claim or wait of this handle counts."""
        bell = self._world.bell
        if self._blocking:
            rang = bell.wait_blocking(seconds, self._heard)
        else:
            rang = await bell.wait(seconds, self._heard)
        self._heard = bell.rings
        return rang

    @contextmanager
    def _reading(self) -> Iterator[World]:
        if not self._is_open:
            raise StoreClosed
        with self._world.lock:
            yield self._world

    @contextmanager
    def _writing(self) -> Iterator[Working]:
        """One transaction: a fresh working set, written when the verb is through. An error inside
        writes nothing that a flush has not undone: what was flushed is taken back.
        """
        with self._reading() as world:
            source = _Watched(world)
            work = Working(source, world.now())
            start = work.mark()
            try:
                yield work
            except BaseException:
                work.rollback(start)
                work.flush()
                raise
            work.finish()
        if source.rings:
            world.bell.ring()

    def _next_due(self, queues: set[str] | None) -> int:
        world = self._world
        times = [counter.wake_at for counter in world.counters.values() if counter.wake_at]
        for due, key in world.scheduled:
            if queues is None or world.jobs[key].queue in queues:
                times.append(due)
                break
        return min(times, default=0)


def _is_due(record: Record, now: int) -> bool:
    return 0 < record.due_at <= now or 0 < record.expires_at <= now


def _first(limit: int, rows: Iterable[Any]) -> Iterator[Any]:
    for number, row in enumerate(rows):
        if number == limit:
            return
        yield row
