"""Jobs of a filter, newest key first, over both tables.

The filter's most telling field chooses where to look; each place gives its jobs in descending order of the
key, and the merged stream is asked row by row (``store/filters``) until the page is full or enough was
looked at. Counts by queue and state are exact and at hand, so that a handful of rows among a million is met
through its state's index and a majority by walking the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Any, Final

from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import EXAMINED_LIMIT, Filter, JobPage, Page
from tessera.model.states import FINAL, LIVE, State
from tessera.store.filters import Sieve
from tessera.store.sql import rows
from tessera.store.sql.rows import CODES, Values, filled
from tessera.store.sqlite.reads import Reads

CHUNK: Final = 250
"""Rows fetched at a time."""
BEYOND: Final = b"\xff" * 17
"""Above every key."""
STREAM_LIMIT: Final = 64
"""Most queues walked one by one; a filter over more of them walks the keys."""

WALK_JOBS: Final = filled("""
SELECT {job}
FROM tessera_job
WHERE id < :after
ORDER BY id DESC
LIMIT :limit
""")
WALK_DONE: Final = filled("""
SELECT {done}
FROM tessera_done
WHERE id < :after
ORDER BY id DESC
LIMIT :limit
""")
CHILDREN: Final = filled("""
SELECT {job}
FROM tessera_job INDEXED BY tessera_job_parent
WHERE parent = :parent AND parent IS NOT NULL AND id < :after
ORDER BY id DESC
LIMIT :limit
""")
ENDED_CHILDREN: Final = filled("""
SELECT {done}
FROM tessera_done INDEXED BY tessera_done_parent
WHERE parent = :parent AND parent IS NOT NULL AND id < :after
ORDER BY id DESC
LIMIT :limit
""")
ASKED_TO_STOP: Final = filled("""
SELECT {job}
FROM tessera_job INDEXED BY tessera_job_cancel
WHERE holder = :holder AND cancel_requested = 1 AND id < :after
ORDER BY id DESC
LIMIT :limit
""")
STILL: Final = filled("""
SELECT {job}
FROM tessera_job INDEXED BY tessera_job_still
WHERE queue = :queue AND state = :state AND (state = 0 OR state = 5 OR state = 6) AND id < :after
ORDER BY id DESC
LIMIT :limit
""")
ODD: Final = filled("""
SELECT {done}
FROM tessera_done INDEXED BY tessera_done_odd
WHERE queue = :queue AND state = :state AND state > 7 AND id < :after
ORDER BY id DESC
LIMIT :limit
""")
TAGGED: Final = """
SELECT job
FROM tessera_job_tag
WHERE tag = :tag AND job < :after
ORDER BY job DESC
LIMIT :limit
"""
# The indexes below are not in the order of keys. Their keys alone are sorted, and only where the counts say
# that they are few.
READY_KEYS: Final = """
SELECT id
FROM tessera_job INDEXED BY tessera_job_ready
WHERE queue = :queue AND state = 2 AND id < :after
ORDER BY id DESC
LIMIT :limit
"""
SCHEDULED_KEYS: Final = """
SELECT id
FROM tessera_job INDEXED BY tessera_job_scheduled
WHERE queue = :queue AND state = 1 AND id < :after
ORDER BY id DESC
LIMIT :limit
"""
LEASED_KEYS: Final = """
SELECT id
FROM tessera_job INDEXED BY tessera_job_lease
WHERE state = 4 AND id < :after
ORDER BY id DESC
LIMIT :limit
"""
HELD_KEYS: Final = """
SELECT id
FROM tessera_job INDEXED BY tessera_job_lease
WHERE state = 4 AND holder = :holder AND id < :after
ORDER BY id DESC
LIMIT :limit
"""
BLOCKED_KEYS: Final = """
SELECT id
FROM tessera_job INDEXED BY tessera_job_blocked
WHERE blocked_on > '' AND state = 3 AND id < :after
ORDER BY id DESC
LIMIT :limit
"""
UNDER_KEY: Final = """
SELECT id
FROM tessera_job INDEXED BY tessera_job_blocked
WHERE blocked_on = :blocked_on AND blocked_on > '' AND id < :after
ORDER BY id DESC
LIMIT :limit
"""
_KEYS_OF_QUEUE: Final = {State.AVAILABLE: READY_KEYS, State.SCHEDULED: SCHEDULED_KEYS}
_KEYS_OF_ALL: Final = {State.RUNNING: LEASED_KEYS, State.BLOCKED: BLOCKED_KEYS}
_STILL_STATES: Final = frozenset({State.PENDING, State.WAITING, State.QUARANTINED})
_ODD_STATES: Final = frozenset({State.DEAD, State.CANCELLED})

Stream = Iterator[Job]


def find_jobs(reads: Reads, which: Filter, page: Page) -> JobPage:
    """See ``Store.find_jobs``."""
    sieve = Sieve(which, page)
    for job in _Places(reads, which, page.after or BEYOND).candidates():
        if sieve.is_full:
            return sieve.page(more=True)
        sieve.look_at(job)
    return sieve.page(more=False)


class _Places:
    """Where the jobs of one filter can be."""

    def __init__(self, reads: Reads, which: Filter, after: bytes) -> None:
        self._reads = reads
        self._which = which
        self._after = after
        self._states = frozenset(which.states) or frozenset(State)

    def candidates(self) -> Stream:
        """A stream that misses none, by descending key."""
        which = self._which
        if which.ids:
            return self._known(sorted({key for key in which.ids if key < self._after}, reverse=True))
        if which.parent is not None:
            return _merged([
                self._rows(CHILDREN, rows.job_of, parent=which.parent),
                self._rows(ENDED_CHILDREN, rows.done_of, parent=which.parent),
            ])  # fmt: skip
        if which.holder:
            if which.cancel_requested:
                return self._rows(ASKED_TO_STOP, rows.job_of, holder=which.holder)
            return self._known(self._keys(HELD_KEYS, holder=which.holder))
        if which.blocked_on:
            return self._known(self._keys(UNDER_KEY, blocked_on=which.blocked_on))
        if which.tags_all:
            return self._known(self._keys(TAGGED, tag=which.tags_all[0]))
        if which.tags_any:
            return self._known(_distinct(merge(*map(self._of_tag, set(which.tags_any)), reverse=True)))
        return _merged([*self._live(), *self._ended()])

    def _live(self) -> list[Stream]:
        states = self._states & LIVE
        if not states:
            return []
        chosen, among = self._counted(states, LIVE)
        wanted = sum(chosen.values())
        if wanted == 0:
            return []
        if 4 * wanted >= among or wanted > EXAMINED_LIMIT or len(chosen) > STREAM_LIMIT:
            return [self._rows(WALK_JOBS, rows.job_of)]
        streams = [
            self._rows(STILL, rows.job_of, queue=queue, state=CODES[state])
            for queue, state in chosen
            if state in _STILL_STATES
        ]
        streams += [
            self._known(self._keys(_KEYS_OF_QUEUE[state], queue=queue))
            for queue, state in chosen
            if state in _KEYS_OF_QUEUE
        ]
        for state in {state for _, state in chosen} & _KEYS_OF_ALL.keys():
            streams.append(self._known(self._keys(_KEYS_OF_ALL[state])))
        return streams

    def _ended(self) -> list[Stream]:
        states = self._states & FINAL
        if not states:
            return []
        chosen, among = self._counted(states, FINAL)
        wanted = sum(chosen.values())
        if wanted == 0:
            return []
        if not states <= _ODD_STATES or 4 * wanted >= among or len(chosen) > STREAM_LIMIT:
            return [self._rows(WALK_DONE, rows.done_of)]
        return [self._rows(ODD, rows.done_of, queue=queue, state=CODES[state]) for queue, state in chosen]

    def _counted(
        self, states: frozenset[State], of_table: frozenset[State]
    ) -> tuple[dict[tuple[str, State], int], int]:
        """Rows by queue and state that the filter can mean, and how many there are in the table."""
        counts = {key: n for key, n in self._reads.counts().items() if key[1] in of_table and n > 0}
        queues = self._which.queues
        chosen = {
            key: n for key, n in counts.items() if key[1] in states and (not queues or key[0] in queues)
        }
        return chosen, sum(counts.values())

    def _of_tag(self, tag: str) -> Iterator[JobId]:
        return self._keys(TAGGED, tag=tag)

    def _rows(self, query: str, decode: Callable[[Values], Job], **values: Any) -> Stream:
        """The rows of a query that ascends no further than ``after``, chunk by chunk."""
        after = self._after
        while True:
            chunk = self._reads.cursor.execute(query, {**values, "after": after, "limit": CHUNK}).fetchall()
            for row in chunk:
                yield decode(row)
            if len(chunk) < CHUNK:
                return
            after = chunk[-1][0]

    def _keys(self, query: str, **values: Any) -> Iterator[JobId]:
        after = self._after
        while True:
            chunk = self._reads.cursor.execute(query, {**values, "after": after, "limit": CHUNK}).fetchall()
            yield from (JobId(key) for (key,) in chunk)
            if len(chunk) < CHUNK:
                return
            after = chunk[-1][0]

    def _known(self, keys: Iterable[JobId]) -> Stream:
        """The rows of keys in descending order; those that are gone left out."""
        for key in keys:
            job = self._reads.job(key)
            if job is not None:
                yield job


def _merged(streams: list[Stream]) -> Stream:
    return merge(*streams, key=lambda job: job.id, reverse=True)


def _distinct(keys: Iterable[JobId]) -> Iterator[JobId]:
    last = None
    for key in keys:
        if key != last:
            yield key
        last = key
