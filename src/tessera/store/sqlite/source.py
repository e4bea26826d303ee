"""The rows of the open transaction, for the one evaluator: see ``store/working.Source``."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from tessera.model.changes import AddJob, Counter, Edge, Group, Held, InState, Lapsed, MoveJob, Record, Slot
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.states import State
from tessera.store.sql import rows
from tessera.store.sql.rows import filled
from tessera.store.sqlite import writes
from tessera.store.working import FloorKey, Net, PassKey, Working, wakes_somebody

KNOWN_LIMIT: Final = 20_000
"""Running jobs remembered between transactions."""

META: Final = """
SELECT clock, policy, events
FROM tessera_meta
WHERE id = 1
"""
LOAD_JOB: Final = filled("""
SELECT {job}
FROM tessera_job
WHERE id = :id
""")
LOAD_DONE: Final = filled("""
SELECT {done}
FROM tessera_done
WHERE id = :id
""")
# The keys of a batch come as one run of bytes, 16 a key. Both tables are met by key, one step a job: half
# the cost of a statement a job. A list of bound keys would need a text for each length.
LOAD_JOBS: Final = filled("""
WITH RECURSIVE place (i) AS (
    SELECT 0
    UNION ALL
    SELECT i + 16 FROM place WHERE i + 16 < length(:ids)
)
SELECT {job}
FROM place
CROSS JOIN tessera_job ON id = substr(:ids, i + 1, 16)
""")
LOAD_DONES: Final = filled("""
WITH RECURSIVE place (i) AS (
    SELECT 0
    UNION ALL
    SELECT i + 16 FROM place WHERE i + 16 < length(:ids)
)
SELECT {done}
FROM place
CROSS JOIN tessera_done ON id = substr(:ids, i + 1, 16)
""")
# Index tessera_job_ready, read in its own order: no sort, stops after the limit. No time stands in it: what
# is due later is in another state (a filter on time walked past 100,000 future jobs in 6.9 ms).
READY: Final = filled("""
SELECT {job}
FROM tessera_job INDEXED BY tessera_job_ready
WHERE queue = :queue AND state = 2
ORDER BY np, pass, due, id
LIMIT :limit
""")
# Index tessera_job_blocked, in its own order.
BLOCKED: Final = filled("""
SELECT {job}
FROM tessera_job INDEXED BY tessera_job_blocked
WHERE blocked_on = :key AND blocked_on > '' AND state = 3
ORDER BY np, pass, due, id
LIMIT :limit
""")
# The same index.
WOKEN: Final = filled("""
SELECT {job}
FROM tessera_job INDEXED BY tessera_job_blocked
WHERE blocked_on = :key AND blocked_on > '' AND state = 2
ORDER BY np, pass, due, id
LIMIT :limit
""")
# Index tessera_counter_blocked: only counters with jobs set aside are in it, and but for those of kinds,
# which have no policy, the range is empty unless the policy has just changed. A claim asks this, whatever
# stands blocked.
OUTDATED: Final = """
SELECT key
FROM tessera_counter INDEXED BY tessera_counter_blocked
WHERE blocked > 0 AND version < :version AND NOT (key >= 'kind:' AND key < 'kind;')
ORDER BY key
"""
# The primary key, as a range: ';' is what follows ':'.
BLOCKED_KINDS: Final = """
SELECT key
FROM tessera_counter
WHERE key >= :first AND key < :beyond AND blocked > 0
ORDER BY key
"""
NEXT_SCHEDULED: Final = """
SELECT min(due)
FROM tessera_job INDEXED BY tessera_job_scheduled
WHERE queue = :queue AND state = 1
"""
NEXT_LOOK: Final = """
SELECT min(wake_at)
FROM tessera_counter INDEXED BY tessera_counter_wake
WHERE wake_at > 0
"""
LOAD_SLOT: Final = """
SELECT key, owner, expires_at
FROM tessera_slot
WHERE key = :key
"""
LOAD_COUNTER: Final = filled("""
SELECT {counter}
FROM tessera_counter
WHERE key = :key
""")
LOAD_RECORD: Final = """
SELECT space, key, version, value, written_at, due_at, expires_at
FROM tessera_record
WHERE space = :space AND key = :key
"""
LOAD_LANE: Final = """
SELECT pass
FROM tessera_floor
WHERE queue = :queue AND priority = :priority
"""
LOAD_TENANT: Final = """
SELECT pass
FROM tessera_pass
WHERE queue = :queue AND priority = :priority AND tenant = :tenant
"""
LOAD_EDGE: Final = """
SELECT parent, child, "on", otherwise
FROM tessera_edge
WHERE parent = :parent AND child = :child
"""
EDGES_FROM: Final = """
SELECT parent, child, "on", otherwise
FROM tessera_edge
WHERE parent = :parent
ORDER BY child
LIMIT :limit
"""
EDGES_TO: Final = """
SELECT parent, child, "on", otherwise
FROM tessera_edge
WHERE child = :child
ORDER BY parent
"""
STAGED: Final = """
SELECT count(*), coalesce(sum(size), 0), coalesce(max(number), -1)
FROM tessera_staged
WHERE upload = :upload
"""


class Meta(msgspec.Struct, gc=False):
    """The store's single row of single values, as the transaction leaves it."""

    clock: int
    policy: int
    events: int


class SqlSource:
    """Loads, queries and writes over one cursor. ``known`` are running jobs as this connection last wrote
    them: right as long as nobody else wrote, which its owner sees to.
    """

    def __init__(self, cursor: sqlite3.Cursor, meta: Meta, known: dict[JobId, Job] | None = None) -> None:
        self._cursor = cursor
        self._known = known
        self.meta = meta
        self.rings = False
        """Whether something written wakes somebody."""
        self.wrote = False

    # Loads --------------------------------------------------------------------------------------------------

    def load_job(self, job: JobId) -> Job | None:
        if self._known is not None and (known := self._known.get(job)) is not None:
            return known
        row = self._cursor.execute(LOAD_JOB, {"id": job}).fetchone()
        return None if row is None else rows.job_of(row)

    def load_archived(self, job: JobId) -> Job | None:
        row = self._cursor.execute(LOAD_DONE, {"id": job}).fetchone()
        return None if row is None else rows.done_of(row)

    def load_slot(self, key: str) -> Slot | None:
        row = self._cursor.execute(LOAD_SLOT, {"key": key}).fetchone()
        return None if row is None else Slot(*row)

    def load_counter(self, key: str) -> Counter | None:
        row = self._cursor.execute(LOAD_COUNTER, {"key": key}).fetchone()
        return None if row is None else rows.counter_of(row)

    def load_record(self, key: tuple[str, str]) -> Record | None:
        row = self._cursor.execute(LOAD_RECORD, {"space": key[0], "key": key[1]}).fetchone()
        return None if row is None else rows.record_of(row)

    def load_floor(self, key: FloorKey) -> int | None:
        row = self._cursor.execute(LOAD_LANE, {"queue": key[0], "priority": key[1]}).fetchone()
        return None if row is None else int(row[0])

    def load_pass(self, key: PassKey) -> int | None:
        row = self._cursor.execute(
            LOAD_TENANT, {"queue": key[0], "priority": key[1], "tenant": key[2]}
        ).fetchone()
        return None if row is None else int(row[0])

    def load_edge(self, key: tuple[JobId, JobId]) -> Edge | None:
        row = self._cursor.execute(LOAD_EDGE, {"parent": key[0], "child": key[1]}).fetchone()
        return None if row is None else rows.edge_of(row)

    def preload(self, work: Working, groups: Sequence[Group]) -> None:
        """Read the jobs that groups will ask for, one statement a table instead of one a job."""
        hot, added = named_jobs(groups)
        self._preload_hot(work, [key for key in hot if not work.jobs.knows(key)])
        if len(added) > 1:
            self._preload_ended(work, [key for key in added if not work.archive.knows(key)])

    def _preload_hot(self, work: Working, keys: list[JobId]) -> None:
        known = self._known or {}
        found = {key: known[key] for key in keys if key in known}
        missing = [key for key in keys if key not in found]
        if len(missing) == 1:
            job = self.load_job(missing[0])
            if job is not None:
                found[job.id] = job
        elif missing:
            read = self._cursor.execute(LOAD_JOBS, {"ids": b"".join(missing)})
            found.update((row[0], rows.job_of(row)) for row in read)
        for key in keys:
            job = found.get(key)
            work.jobs.keep(key, job)
            if job is not None:
                work.archive.keep(key, None)  # a row is in one of the two tables

    def _preload_ended(self, work: Working, keys: list[JobId]) -> None:
        read = self._cursor.execute(LOAD_DONES, {"ids": b"".join(keys)})
        found = {row[0]: rows.done_of(row) for row in read}
        for key in keys:
            work.archive.keep(key, found.get(key))

    # Queries ------------------------------------------------------------------------------------------------

    def edges_from(self, parent: JobId, limit: int) -> list[Edge]:
        return [
            rows.edge_of(row) for row in self._cursor.execute(EDGES_FROM, {"parent": parent, "limit": limit})
        ]

    def edges_to(self, child: JobId) -> list[Edge]:
        return [rows.edge_of(row) for row in self._cursor.execute(EDGES_TO, {"child": child})]

    def ready(self, queue: str, limit: int) -> list[Job]:
        return [rows.job_of(row) for row in self._cursor.execute(READY, {"queue": queue, "limit": limit})]

    def blocked(self, key: str, limit: int) -> list[Job]:
        return [rows.job_of(row) for row in self._cursor.execute(BLOCKED, {"key": key, "limit": limit})]

    def woken(self, key: str, limit: int) -> list[Job]:
        return [rows.job_of(row) for row in self._cursor.execute(WOKEN, {"key": key, "limit": limit})]

    def outdated_counters(self, version: int) -> list[str]:
        return [key for (key,) in self._cursor.execute(OUTDATED, {"version": version})]

    def blocked_kinds(self, queue: str) -> list[str]:
        bounds = {"first": f"kind:{queue}:", "beyond": f"kind:{queue};"}
        return [key for (key,) in self._cursor.execute(BLOCKED_KINDS, bounds)]

    def staged(self, upload: str) -> tuple[int, int]:
        chunks, size, last = self._cursor.execute(STAGED, {"upload": upload}).fetchone()
        return (chunks, size) if last == chunks - 1 else (0, -1)

    def policy_version(self) -> int:
        return self.meta.policy

    def next_due(self, queues: Iterable[str]) -> int:
        """When the next scheduled job of these queues or a counter falls due; 0 = none known."""
        times = [self._cursor.execute(NEXT_LOOK).fetchone()[0]]
        times += [self._cursor.execute(NEXT_SCHEDULED, {"queue": queue}).fetchone()[0] for queue in queues]
        return min((time for time in times if time), default=0)

    # Writes -------------------------------------------------------------------------------------------------

    def write(self, net: Net) -> None:
        if not any(getattr(net, part) for part in net.__struct_fields__):
            return
        self.wrote = True
        self.rings = self.rings or wakes_somebody(net)
        known = self._known
        if known is not None:
            for row in net.jobs:
                if row.after is not None and row.after.state is State.RUNNING:
                    known[row.key] = row.after
                else:
                    known.pop(row.key, None)
            if len(known) > KNOWN_LIMIT:
                known.clear()
        writes.write(self._cursor, net, self.meta)


def named_jobs(groups: Sequence[Group]) -> tuple[list[JobId], list[JobId]]:
    """Keys that groups will look up among the live jobs, and among the archived ones."""
    hot: dict[JobId, None] = {}
    ended: dict[JobId, None] = {}
    for group in groups:
        for guard in group.guards:
            if isinstance(guard, Held | Lapsed | InState):
                hot[guard.job] = None
        for change in group.changes:
            if isinstance(change, AddJob):
                hot[change.job.id] = ended[change.job.id] = None
            elif isinstance(change, MoveJob):
                hot[change.job] = None
    return list(hot), list(ended)
