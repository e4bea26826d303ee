"""Jobs of a filter, newest key first, over both tables: see ``store/sqlite/finding`` for the idea.

The filter's most telling field chooses the index. A condition on a rare state is fenced from the order by
key (OFFSET 0), so that no plan walks a million rows for a handful; what is common is walked by key.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final

from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import EXAMINED_LIMIT, Filter, JobPage, Page
from tessera.model.states import FINAL, LIVE, State
from tessera.store.filters import Sieve
from tessera.store.postgres.loads import DONES, JOBS, live_of
from tessera.store.postgres.params import Ints, Texts, Uuid
from tessera.store.postgres.reads import Reads
from tessera.store.postgres.site import Site
from tessera.store.sql import rows
from tessera.store.sql.rows import CODES, Values

CHUNK: Final = 250
BEYOND: Final = b"\xff" * 16

# {0} is a condition that its own index serves; $1 is where to go on, downwards, and $2 how far.
_LIVE: Final = f"""
SELECT {JOBS}
FROM (SELECT * FROM {{s}}.job WHERE {{0}} OFFSET 0) AS j
WHERE j.id < $1
ORDER BY j.id DESC
LIMIT $2
"""
_ENDED: Final = f"""
SELECT {DONES}
FROM (SELECT * FROM {{s}}.done WHERE {{0}} OFFSET 0) AS d
WHERE d.id < $1
ORDER BY d.id DESC
LIMIT $2
"""
WALK_JOBS: Final = f"SELECT {JOBS} FROM {{s}}.job j WHERE j.id < $1 ORDER BY j.id DESC LIMIT $2"
WALK_DONE: Final = f"SELECT {DONES} FROM {{s}}.done d WHERE d.id < $1 ORDER BY d.id DESC LIMIT $2"
TAGGED: Final = """
SELECT uuid_send(t.job)
FROM {s}.job_tag t
WHERE t.tag = ANY($3) AND t.job < $1
GROUP BY t.job
ORDER BY t.job DESC
LIMIT $2
"""
_CHILDREN: Final = "parent = $3"
_HELD: Final = "holder = $3 AND state = 4"
_ASKED_TO_STOP: Final = "holder = $3 AND cancel_requested"
_UNDER_KEY: Final = "blocked_on = $3 AND blocked_on > ''"
_IN_STATES: Final = "queue = ANY($3) AND state = ANY($4)"
_ODD: Final = f"state > 7 AND {_IN_STATES}"
_CONDITIONS: Final = {
    f"state IN (0, 5, 6) AND {_IN_STATES}": (State.PENDING, State.WAITING, State.QUARANTINED),
    f"state = 1 AND {_IN_STATES}": (State.SCHEDULED,),
    f"state = 2 AND {_IN_STATES}": (State.AVAILABLE,),
    f"blocked_on > '' AND state = 3 AND {_IN_STATES}": (State.BLOCKED,),
    f"state = 4 AND {_IN_STATES}": (State.RUNNING,),
}


async def find_jobs(site: Site, reads: Reads, which: Filter, page: Page) -> JobPage:
    """See ``Store.find_jobs``."""
    sieve = Sieve(which, page)
    places = _Places(site, reads, which, page.after or BEYOND)
    async with aclosing(await places.candidates()) as candidates:
        async for job in candidates:
            if sieve.is_full:
                return sieve.page(more=True)
            sieve.look_at(job)
    return sieve.page(more=False)


class _Places:
    """Where the jobs of one filter can be."""

    def __init__(self, site: Site, reads: Reads, which: Filter, after: bytes) -> None:
        self._site = site
        self._reads = reads
        self._which = which
        self._after = after
        self._states = frozenset(which.states) or frozenset(State)

    async def candidates(self) -> AsyncGenerator[Job, None]:
        """A stream that misses none, by descending key."""
        which = self._which
        if which.ids:
            return self._known(sorted({key for key in which.ids if key < self._after}, reverse=True))
        if which.parent is not None:
            parent = Uuid(which.parent)
            return _merged([self._live(_CHILDREN, parent), self._ended(_CHILDREN, parent)])
        if which.holder:
            return self._live(_ASKED_TO_STOP if which.cancel_requested else _HELD, which.holder)
        if which.blocked_on:
            return self._live(_UNDER_KEY, which.blocked_on)
        if which.tags_all or which.tags_any:
            return self._tagged(which.tags_all[:1] or which.tags_any)
        counts = {key: n for key, n in (await self._reads.counts()).items() if n > 0}
        return _merged([*self._of_states(counts, LIVE), *self._of_states(counts, FINAL)])

    def _of_states(
        self, counts: dict[tuple[str, State], int], table: frozenset[State]
    ) -> list[AsyncGenerator[Job, None]]:
        """The jobs of one table in the filter's states and queues. The counts say which way is shorter."""
        queues = self._which.queues
        there = {key: n for key, n in counts.items() if key[1] in table}
        chosen = {
            key: n for key, n in there.items() if key[1] in self._states and (not queues or key[0] in queues)
        }
        wanted = sum(chosen.values())
        if not wanted:
            return []
        is_live = table is LIVE
        served = chosen.keys() if is_live else {key for key in chosen if key[1] is not State.COMPLETED}
        if 4 * wanted >= sum(there.values()) or wanted > EXAMINED_LIMIT or len(served) < len(chosen):
            return [self._walk(WALK_JOBS, live_of) if is_live else self._walk(WALK_DONE, rows.done_of)]
        if not is_live:
            return [self._ended(_ODD, *_pairs(chosen))]
        # A partial index is found only by its own condition.
        return [
            self._live(condition, *_pairs(keys))
            for condition, states in _CONDITIONS.items()
            if (keys := [key for key in chosen if key[1] in states])
        ]

    def _live(self, condition: str, *parameters: Any) -> AsyncGenerator[Job, None]:
        return self._walk(_LIVE.replace("{0}", condition), live_of, *parameters)

    def _ended(self, condition: str, *parameters: Any) -> AsyncGenerator[Job, None]:
        return self._walk(_ENDED.replace("{0}", condition), rows.done_of, *parameters)

    async def _walk(
        self, query: str, decode: Callable[[Values], Job], *parameters: Any
    ) -> AsyncGenerator[Job, None]:
        """The rows of a query that descends from ``after``, chunk by chunk."""
        after = self._after
        while True:
            chunk = await self._site.ask(query, Uuid(after), CHUNK, *parameters)
            for row in chunk:
                yield decode(row)
            if len(chunk) < CHUNK:
                return
            after = chunk[-1][0]

    async def _tagged(self, tags: Sequence[str]) -> AsyncGenerator[Job, None]:
        after = self._after
        while True:
            chunk = [row[0] for row in await self._site.ask(TAGGED, Uuid(after), CHUNK, Texts(list(tags)))]
            async for job in self._known(chunk):
                yield job
            if len(chunk) < CHUNK:
                return
            after = chunk[-1]

    async def _known(self, keys: Iterable[bytes]) -> AsyncGenerator[Job, None]:
        """The rows of keys in descending order; those that are gone left out."""
        left = [JobId(key) for key in keys]
        while left:
            for job in await self._reads.jobs(left[:CHUNK]):
                if job is not None:
                    yield job
            left = left[CHUNK:]


async def _merged(streams: Sequence[AsyncGenerator[Job, None]]) -> AsyncGenerator[Job, None]:
    """Streams of descending keys as one."""
    heads = [await anext(stream, None) for stream in streams]
    try:
        while left := [number for number, head in enumerate(heads) if head is not None]:
            chosen = max(left, key=lambda number: _key(heads[number]))
            job = heads[chosen]
            assert job is not None
            heads[chosen] = await anext(streams[chosen], None)
            yield job
    finally:
        for stream in streams:
            await stream.aclose()


def _key(job: Job | None) -> bytes:
    return b"" if job is None else job.id


def _pairs(keys: Iterable[tuple[str, State]]) -> list[Any]:
    """Their queues and their states. What lies in another pair of both is passed over by the filter."""
    pairs = list(keys)
    return [
        Texts(sorted({queue for queue, _ in pairs})),
        Ints(sorted({CODES[state] for _, state in pairs})),
    ]
