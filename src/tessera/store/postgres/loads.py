"""Reading what a transaction will look at into a mirror: one query a kind of row, all in one flight.

Rows that may be changed are locked in the order of their keys. A claim never waits for one (SKIP LOCKED), and
neither does a sweep: a row that is locked is about to move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from tessera.model.changes import Slot
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.states import State
from tessera.rules.ordering import sort_key
from tessera.store.postgres.driver import Flights, Query, Rows
from tessera.store.postgres.params import Ints, Texts, Uuid, Uuids
from tessera.store.postgres.site import Site
from tessera.store.postgres.tables import COUNTER, EDGE, RECORD, SLOT, selected
from tessera.store.sql import rows
from tessera.store.sql.mirror import Mirror, Wanted
from tessera.store.sql.rows import CODES, DONE_COLUMNS, JOB_COLUMNS, Values
from tessera.store.transitions import SETTLED_AT_ONCE

JOBS: Final = f"{selected(JOB_COLUMNS, 'j')}, j.rev"
DONES: Final = selected(DONE_COLUMNS)

CLOCK: Final = "SELECT {s}.clock_ms(), policy FROM {s}.meta"
# Bounds how long a commit waits for somebody else's open transaction; for this transaction only.
CLOCK_AND_PATIENCE: Final = """
SELECT {s}.clock_ms(), policy, set_config('lock_timeout', '5s', true)
FROM {s}.meta
"""
GATE: Final = "SELECT 1 FROM {s}.gate WHERE name = $1 FOR UPDATE"
LOCK_JOBS: Final = f"""
SELECT {JOBS}
FROM {{s}}.job j
WHERE j.id = ANY($1)
ORDER BY j.id
FOR UPDATE
"""
LOCK_FREE_JOBS: Final = f"""
SELECT {JOBS}
FROM {{s}}.job j
WHERE j.id = ANY($1)
ORDER BY j.id
FOR UPDATE SKIP LOCKED
"""
THERE: Final = "SELECT uuid_send(id) FROM {s}.job WHERE id = ANY($1)"
LOCK_DONE: Final = f"""
SELECT {DONES}
FROM {{s}}.done d
WHERE d.id = ANY($1)
ORDER BY d.id
FOR UPDATE
"""
LOCK_SLOTS: Final = f"""
SELECT {selected(SLOT)}
FROM {{s}}.slot
WHERE key = ANY($1)
ORDER BY key
FOR UPDATE
"""
LOCK_RECORDS: Final = f"""
SELECT {selected(RECORD)}
FROM {{s}}.record
WHERE (space, key) IN (SELECT * FROM unnest($1::text[], $2::text[]))
ORDER BY space, key
FOR UPDATE
"""
COUNTERS: Final = f"SELECT {selected(COUNTER)} FROM {{s}}.counter WHERE key = ANY($1)"
OUTDATED: Final = f"""
SELECT {selected(COUNTER)}
FROM {{s}}.counter
WHERE blocked > 0 AND version < $1
"""
KINDS: Final = f"""
SELECT {selected(COUNTER)}
FROM {{s}}.counter
WHERE blocked > 0 AND starts_with(key, $1)
"""
FLOORS: Final = """
SELECT queue, priority, pass
FROM {s}.floor
WHERE (queue, priority) IN (SELECT * FROM unnest($1::text[], $2::int[]))
"""
PASSES: Final = """
SELECT queue, priority, tenant, pass
FROM {s}.pass
WHERE (queue, priority, tenant) IN (SELECT * FROM unnest($1::text[], $2::int[], $3::text[]))
"""
EDGES: Final = f"""
SELECT {selected(EDGE)}
FROM {{s}}.edge
WHERE (parent, child) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[]))
"""
EDGES_TO: Final = f"SELECT {selected(EDGE)} FROM {{s}}.edge WHERE child = ANY($1)"
EDGES_FROM: Final = f"""
SELECT {selected(EDGE)}
FROM {{s}}.edge e
WHERE e.parent = $1
ORDER BY e.child
LIMIT $2
"""
BELOW: Final = """
WITH RECURSIVE below (child) AS (
    SELECT child FROM {s}.edge WHERE parent = ANY($1)
    UNION
    SELECT e.child FROM below b JOIN {s}.edge e ON e.parent = b.child
)
SELECT uuid_send(child)
FROM below
LIMIT $2
"""
BLOCKED: Final = f"""
SELECT {JOBS}
FROM {{s}}.job j
WHERE j.blocked_on = $1 AND j.blocked_on > '' AND j.state = $2
ORDER BY j.np, j.pass, j.due, j.id
LIMIT $3
FOR UPDATE SKIP LOCKED
"""
STAGED: Final = """
SELECT count(*), coalesce(sum(size), 0)::bigint, coalesce(max(number), -1)::bigint
FROM {s}.staged
WHERE upload = $1
"""

CASCADE: Final = 3_000
"""Most jobs of a cascade that are loaded at once."""

Take = Callable[[Rows], None]
Wrap = Callable[[Sequence[Any]], Any]
Decode = Callable[[Values], tuple[Any, Any]]


class Loader:
    """Loads into one mirror over one transaction."""

    def __init__(self, site: Site, flights: Flights, mirror: Mirror) -> None:
        self._site = site
        self._flights = flights
        self._mirror = mirror
        self.now = 0
        """The store's time, as ``ask_clock`` read it last."""
        self.busy: set[JobId] = set()
        """Jobs that are there and locked by somebody else, and were not waited for."""
        self._queries: list[Query] = []
        self._takers: list[Take] = []

    def ask(self, query: str, parameters: Sequence[Any], take: Take) -> None:
        """One more query of the next flight, and who takes its rows."""
        self._queries.append(self._site.query(query, *parameters))
        self._takers.append(take)

    def ask_clock(self, query: str) -> None:
        """``CLOCK``, or with it how long to wait for locks: the instant and policy of the evaluation."""
        self.ask(query, [], self._take_clock)

    def _take_clock(self, found: Rows) -> None:
        self.now, self._mirror.policy = found[0][:2]
        self._site.memory.heard(self.now)

    async def fly(self) -> None:
        """Ask all that was gathered."""
        if self._queries:
            queries, takers = self._queries, self._takers
            self._queries, self._takers = [], []
            for take, found in zip(takers, await self._flights.flight(queries), strict=True):
                take(found)

    async def load(self, wanted: Wanted, impatient: Iterable[JobId] = (), *, wait: bool = True) -> None:
        """Bring what is wanted into the mirror. ``impatient`` jobs are left out where they are locked, and
        with ``wait=False`` all are: see ``busy``.
        """
        known = self._mirror.known
        skipped = set(impatient) if wait else set(wanted.jobs)
        self._ask_jobs(wanted.jobs - known.jobs, skipped)
        self._ask_keyed(wanted, known)
        self._ask_lists(wanted)
        await self.fly()
        await self._look_again(wanted, skipped)

    async def below(self, jobs: Iterable[JobId]) -> Wanted:
        """The jobs that wait for these, and for those, and so on, with the edges between them."""
        found: Rows = []
        self.ask(BELOW, [Uuids(sorted(jobs)), CASCADE], found.extend)
        await self.fly()
        children = {JobId(child) for (child,) in found}
        return Wanted(jobs=children, edges_from=dict.fromkeys(children, SETTLED_AT_ONCE + 1))

    # What is asked ------------------------------------------------------------------------------------------

    def _ask_jobs(self, keys: set[JobId], skipped: set[JobId]) -> None:
        for query, chosen in ((LOCK_JOBS, sorted(keys - skipped)), (LOCK_FREE_JOBS, sorted(keys & skipped))):
            if chosen:
                self.ask(query, [Uuids(chosen)], partial(self._take_jobs, chosen))

    def _ask_keyed(self, wanted: Wanted, known: Wanted) -> None:
        # Whether a job is live is not known yet: if it is not, it may be archived.
        asked: tuple[tuple[str, str, set[Any], tuple[Wrap, ...], Decode], ...] = (
            ("archive", LOCK_DONE, wanted.archive | wanted.jobs, (Uuids,), _done),
            ("slots", LOCK_SLOTS, wanted.slots, (Texts,), _slot),
            ("records", LOCK_RECORDS, wanted.records, (Texts, Texts), _record),
            ("counters", COUNTERS, wanted.counters, (Texts,), _counter),
            ("floors", FLOORS, wanted.floors, (Texts, Ints), _number),
            ("passes", PASSES, wanted.passes, (Texts, Ints, Texts), _number),
            ("edges", EDGES, wanted.edges, (Uuids, Uuids), _edge),
        )
        for table, query, keys, wraps, decode in asked:
            chosen = sorted(keys - getattr(known, table))
            if chosen:
                self.ask(query, _columns(chosen, wraps), partial(self._learn, table, chosen, decode))

    def _ask_lists(self, wanted: Wanted) -> None:
        known = self._mirror.known
        if ends := sorted(wanted.edges_to - known.edges_to):
            self.ask(EDGES_TO, [Uuids(ends)], partial(self._take_edges_to, ends))
        for parent, limit in wanted.edges_from.items():
            self.ask(EDGES_FROM, [Uuid(parent), limit], partial(self._take_edges_from, parent, limit))
        for name, state, lists in (
            ("blocked", State.BLOCKED, wanted.blocked),
            ("woken", State.AVAILABLE, wanted.woken),
        ):
            for key, limit in lists.items():
                self.ask(BLOCKED, [key, CODES[state], limit], partial(self.take_list, name, key, limit))
        for version in wanted.outdated - known.outdated:
            self.ask(OUTDATED, [version], partial(self._learn, "counters", (), _counter))
            known.outdated.add(version)
        for queue in wanted.kinds - known.kinds:
            self.ask(KINDS, [f"kind:{queue}:"], partial(self._learn, "counters", (), _counter))
            known.kinds.add(queue)
        for upload in wanted.staged:
            self.ask(STAGED, [upload], partial(self._take_staged, upload))

    # What is taken ------------------------------------------------------------------------------------------

    def _take_jobs(self, keys: Iterable[JobId], found: Rows) -> None:
        self._mirror.learn_jobs(keys, [live_and_rev(row) for row in found])

    def _learn(self, table: str, keys: Iterable[Any], decode: Decode, found: Rows) -> None:
        self._mirror.learn(table, keys, [decode(row) for row in found])

    def _take_edges_to(self, ends: list[JobId], found: Rows) -> None:
        self._mirror.learn("edges", (), [_edge(row) for row in found])
        self._mirror.known.edges_to.update(ends)

    def _take_edges_from(self, parent: JobId, limit: int, found: Rows) -> None:
        self._mirror.learn("edges", (), [_edge(row) for row in found])
        last = found[-1][1] if found else None
        self._mirror.learn_list("edges_from", parent, limit, last, len(found))

    def take_list(self, name: str, key: str, limit: int, found: Rows) -> None:
        """Jobs of an ordered list, as ``BLOCKED`` reads them."""
        jobs = [live_and_rev(row) for row in found]
        self._mirror.learn_jobs((), jobs)
        last = sort_key(jobs[-1][0]) if jobs else None
        self._mirror.learn_list(name, key, limit, last, len(jobs))

    def _take_staged(self, upload: str, found: Rows) -> None:
        [(chunks, size, last)] = found
        self._mirror.uploads[upload] = (chunks, size) if last == chunks - 1 else (0, -1)

    async def _look_again(self, wanted: Wanted, skipped: set[JobId]) -> None:
        """Two things that one look cannot tell: that a row is locked and not gone, and that a job came back
        from the archive between the look at the one table and the look at the other.
        """
        mirror = self._mirror
        unseen = sorted(
            key
            for key in wanted.jobs - self.busy
            if key not in mirror.jobs and key not in mirror.archive and key not in wanted.archive
        )
        if not unseen:
            return
        self.ask(THERE, [Uuids(unseen)], self._take_there)
        await self.fly()

    def _take_there(self, found: Rows) -> None:
        self.busy.update(JobId(key) for (key,) in found)


def _columns(keys: Sequence[Any], wraps: Sequence[Wrap]) -> list[Any]:
    """One array a part of the keys."""
    if len(wraps) == 1:
        return [wraps[0](keys)]
    return [wrap(list(part)) for wrap, part in zip(wraps, zip(*keys, strict=True), strict=True)]


def live_of(row: Values) -> Job:
    """A live job from the columns ``JOBS``."""
    return rows.job_of(row[:-1])


def live_and_rev(row: Values) -> tuple[Job, int]:
    """The same with its row version."""
    return rows.job_of(row[:-1]), row[-1]


def _done(row: Values) -> tuple[Any, Any]:
    job = rows.done_of(row)
    return job.id, job


def _slot(row: Values) -> tuple[Any, Any]:
    return row[0], Slot(*row)


def _record(row: Values) -> tuple[Any, Any]:
    return (row[0], row[1]), rows.record_of(row)


def _counter(row: Values) -> tuple[Any, Any]:
    return row[0], rows.counter_of(row)


def _number(row: Values) -> tuple[Any, Any]:
    return tuple(row[:-1]), row[-1]


def _edge(row: Values) -> tuple[Any, Any]:
    edge = rows.edge_of(row)
    return (edge.parent, edge.child), edge
