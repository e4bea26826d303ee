"""Questions to the file, each answered within one snapshot."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from tessera.model.changes import Record, Slot
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import Due, Event
from tessera.model.states import State
from tessera.rules import admission
from tessera.store import audit
from tessera.store.sql import rows
from tessera.store.sql.rows import STATES, filled
from tessera.store.sqlite.source import LOAD_DONE, LOAD_JOB, META, Meta, SqlSource

# Index tessera_job_scheduled, in its own order, one queue after the other: a queue has its own end of the
# index.
SCHEDULED: Final = filled("""
SELECT {job}
FROM tessera_job INDEXED BY tessera_job_scheduled
WHERE queue = :queue AND state = 1 AND due <= :now
ORDER BY due, id
LIMIT :limit
""")
# Index tessera_job_lease, in its own order; only leases of one instant are sorted.
LAPSED: Final = filled("""
SELECT {job}
FROM tessera_job INDEXED BY tessera_job_lease
WHERE state = 4 AND lease_until <= :now
ORDER BY lease_until, id
""")
# Index tessera_job_expiry, in its own order.
EXPIRED: Final = filled("""
SELECT {job}
FROM tessera_job INDEXED BY tessera_job_expiry
WHERE expires_at > 0 AND state < 4 AND expires_at <= :now
ORDER BY expires_at, id
""")
# Index tessera_done_gone, in its own order. The key is not in it: it would be written a million times and
# read once, here.
GONE: Final = """
SELECT id
FROM tessera_done INDEXED BY tessera_done_gone
WHERE gone_at >= 0 AND gone_at <= :now
ORDER BY gone_at, id
LIMIT :limit
"""
SLOTS_OVER: Final = """
SELECT key, owner, expires_at
FROM tessera_slot INDEXED BY tessera_slot_expiry
WHERE expires_at > 0 AND expires_at <= :now
ORDER BY expires_at
LIMIT :limit
"""
COUNTERS_DUE: Final = """
SELECT key
FROM tessera_counter INDEXED BY tessera_counter_wake
WHERE wake_at > 0 AND wake_at <= :now
ORDER BY wake_at
LIMIT :limit
"""
# Two indexes, tessera_record_due and tessera_record_expiry, joined by the OR.
RECORDS_DUE: Final = """
SELECT space, key, version, value, written_at, due_at, expires_at
FROM tessera_record
WHERE (due_at > 0 AND due_at <= :now) OR (expires_at > 0 AND expires_at <= :now)
LIMIT :limit
"""
QUEUES_WITH_SCHEDULED: Final = """
SELECT queue
FROM tessera_count
WHERE state = 1 AND n > 0
ORDER BY queue
"""
COUNTS: Final = """
SELECT queue, state, n
FROM tessera_count
WHERE n <> 0
"""
SCAN: Final = """
SELECT space, key, version, value, written_at, due_at, expires_at
FROM tessera_record
WHERE space = :space AND key >= :prefix AND key > :after AND value IS NOT NULL
    AND NOT (expires_at > 0 AND expires_at <= :now)
ORDER BY key
"""
HISTORY: Final = """
SELECT space, key, version, value, written_at, due_at, expires_at
FROM tessera_record_history
WHERE space = :space AND key = :key
ORDER BY version DESC, rowid DESC
LIMIT :limit
"""
EVENTS: Final = """
SELECT pos, at, what, queue, job, number, by, data
FROM tessera_event
WHERE pos > :after
ORDER BY pos
LIMIT :limit
"""
EVENTS_OF_JOB: Final = """
SELECT pos, at, what, queue, job, number, by, data
FROM tessera_event INDEXED BY tessera_event_job
WHERE job = :job AND job IS NOT NULL AND pos > :after
ORDER BY pos
LIMIT :limit
"""
BLOB: Final = """
SELECT size
FROM tessera_blob
WHERE sha256 = :sha256
"""
BLOB_CHUNK: Final = """
SELECT data
FROM tessera_blob_chunk
JOIN tessera_chunk ON id = chunk
WHERE sha256 = :sha256 AND number >= :number
ORDER BY number
LIMIT 1
"""
ALL_JOBS: Final = filled("SELECT {job}\nFROM tessera_job")
ALL_DONE: Final = filled("SELECT {done}\nFROM tessera_done")
ALL_COUNTERS: Final = filled("SELECT {counter}\nFROM tessera_counter")
ALL_SLOTS: Final = "SELECT key, owner, expires_at\nFROM tessera_slot"
ALL_EDGES: Final = 'SELECT parent, child, "on", otherwise\nFROM tessera_edge'
ALL_TAGS: Final = "SELECT tag, job\nFROM tessera_job_tag"


class Reads:
    """The questions, over one cursor inside a transaction."""

    def __init__(self, cursor: sqlite3.Cursor, now: int) -> None:
        self.cursor = cursor
        self.now = now
        self._source = SqlSource(cursor, Meta(0, 0, 0))

    def due(self, limit: int, queues: Sequence[str] | None) -> Due:
        """See ``Store.due``."""
        asked = self._queues_with_scheduled() if queues is None else sorted(set(queues))
        at_most = {"now": self.now, "limit": limit}
        scheduled = [
            rows.job_of(row)
            for queue in asked
            for row in self.cursor.execute(SCHEDULED, {**at_most, "queue": queue})
        ]
        scheduled.sort(key=lambda job: (job.due, job.id))
        chosen = None if queues is None else set(queues)
        return Due(
            now=self.now,
            scheduled=tuple(scheduled[:limit]),
            lapsed=self._jobs_of(LAPSED, limit, chosen),
            expired=self._jobs_of(EXPIRED, limit, chosen),
            gone=tuple(JobId(key) for (key,) in self.cursor.execute(GONE, at_most)),
            slots=tuple(Slot(*row) for row in self.cursor.execute(SLOTS_OVER, at_most)),
            counters=tuple(key for (key,) in self.cursor.execute(COUNTERS_DUE, at_most)),
            records=tuple(rows.record_of(row) for row in self.cursor.execute(RECORDS_DUE, at_most)),
            next_due=self._source.next_due(asked),
        )

    def job(self, key: JobId) -> Job | None:
        """The row, hot or archived."""
        row = self.cursor.execute(LOAD_JOB, {"id": key}).fetchone()
        if row is not None:
            return rows.job_of(row)
        row = self.cursor.execute(LOAD_DONE, {"id": key}).fetchone()
        return None if row is None else rows.done_of(row)

    def jobs(self, keys: Sequence[JobId]) -> list[Job | None]:
        """See ``Store.get_jobs``."""
        return [self.job(key) for key in keys]

    def counts(self) -> dict[tuple[str, State], int]:
        """See ``Store.count_jobs``."""
        return {(queue, STATES[state]): n for queue, state, n in self.cursor.execute(COUNTS)}

    def edges(self, job: JobId) -> list[tuple[JobId, str]]:
        """See ``Store.edges``."""
        return [(edge.parent, edge.on) for edge in self._source.edges_to(job)]

    def counters(self, keys: Sequence[str]) -> list[tuple[str, int, int]]:
        """See ``Store.counters``."""
        found = (self._source.load_counter(key) for key in keys)
        return [(c.key, admission.units_in_use(c, self.now), c.blocked) for c in found if c is not None]

    def records(self, keys: Sequence[tuple[str, str]]) -> list[Record | None]:
        """See ``Store.get``."""
        found = [self._source.load_record(key) for key in keys]
        return [None if r is None or 0 < r.expires_at <= self.now else r for r in found]

    def scan(self, space: str, prefix: str, after: str, limit: int) -> list[Record]:
        """See ``Store.scan``. Keys with a prefix stand together: the first other one ends the walk."""
        bounds = {"space": space, "prefix": prefix, "after": after, "now": self.now}
        found: list[Record] = []
        for row in self.cursor.execute(SCAN, bounds):
            if len(found) == limit or not row[1].startswith(prefix):
                break
            found.append(rows.record_of(row))
        return found

    def history(self, space: str, key: str, limit: int) -> list[Record]:
        """See ``Store.history``."""
        found = self.cursor.execute(HISTORY, {"space": space, "key": key, "limit": limit})
        return [rows.record_of(row) for row in found]

    def events(self, after: int, limit: int, job: JobId | None) -> list[Event]:
        """See ``Store.events``. One writer gives positions in the order of commits: none comes late."""
        query = EVENTS if job is None else EVENTS_OF_JOB
        return [
            rows.event_of(row)
            for row in self.cursor.execute(query, {"after": after, "limit": limit, "job": job})
        ]

    def blob_size(self, sha256: bytes) -> int | None:
        """Bytes of a published blob; None if there is none."""
        row = self.cursor.execute(BLOB, {"sha256": sha256}).fetchone()
        return None if row is None else int(row[0])

    def blob_chunk(self, sha256: bytes, number: int) -> bytes | None:
        """One chunk of a blob; None behind the last."""
        row = self.cursor.execute(BLOB_CHUNK, {"sha256": sha256, "number": number}).fetchone()
        return None if row is None else bytes(row[0])

    def policy_version(self) -> int:
        """See ``Store.policy_version``."""
        return Meta(*self.cursor.execute(META).fetchone()).policy

    def differences(self) -> list[str]:
        """See ``Store.verify``: the rows against what is kept beside them, and the file against itself."""
        live = [rows.job_of(row) for row in self.cursor.execute(ALL_JOBS)]
        ended = [rows.done_of(row) for row in self.cursor.execute(ALL_DONE)]
        return [
            *(f"integrity check: {text}" for (text,) in self._all("PRAGMA integrity_check") if text != "ok"),
            *audit.differences(
                jobs=live,
                archive=ended,
                counts=self.counts(),
                counters=[rows.counter_of(row) for row in self._all(ALL_COUNTERS)],
                slots=[Slot(*row) for row in self._all(ALL_SLOTS)],
                edges=[rows.edge_of(row) for row in self._all(ALL_EDGES)],
            ),
            *audit.tag_differences([*live, *ended], self._all(ALL_TAGS)),
        ]

    def _all(self, query: str) -> list[Any]:
        return self.cursor.execute(query).fetchall()

    def _queues_with_scheduled(self) -> list[str]:
        return [queue for (queue,) in self.cursor.execute(QUEUES_WITH_SCHEDULED)]

    def _jobs_of(self, query: str, limit: int, queues: set[str] | None) -> tuple[Job, ...]:
        queue_at = rows.JOB_COLUMNS.index("queue")
        found = self.cursor.execute(query, {"now": self.now})
        chosen = (row for row in found if queues is None or row[queue_at] in queues)
        return tuple(rows.job_of(row) for row in islice(chosen, limit))
