"""The memory store: dictionaries and sorted lists. It is the reference: what it answers is what every
store must answer.

It lives as long as the process. Its rows are shared by all handles that were given one ``World``, of either
colour.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from tessera.model.changes import Answer, Group, Record
from tessera.model.errors import NotFound, StoreClosed
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import (
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
from tessera.store import audit, claims, evaluator
from tessera.store.driver import Doorbell
from tessera.store.filters import Sieve
from tessera.store.rowsets import Rows
from tessera.store.working import Net, Working, wakes_somebody

SCHEMA: Final = 1


class World(Rows):
    """The rows of one memory store, shared by all its handles."""

    def __init__(self, installation: bytes, clock: Callable[[], int]) -> None:
        super().__init__()
        self.installation = installation
        self.lock = threading.RLock()
        self.bell = Doorbell()
        self._clock = clock
        self._latest = 0

    def now(self) -> int:
        """The store's clock: the process's, never allowed to go back."""
        self._latest = max(self._latest, self._clock())
        return self._latest


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
            sieve = Sieve(which, page)
            for key in keys:
                if sieve.is_full:
                    return sieve.page(more=True)
                sieve.look_at(world.jobs.get(key) or world.archive[key])
            return sieve.page(more=False)

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
