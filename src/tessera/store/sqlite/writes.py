"""Bringing the file to a net state: each row once, grouped by kind, one prepared statement a kind.

Rows go to ``executemany`` as plain tuples: by name a row of 20 columns costs 1 us more, and there are three
such rows in the life of a job.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.store.sql import rows
from tessera.store.sql.rows import CODES, COUNTER_COLUMNS, DONE_COLUMNS, JOB_COLUMNS, Values
from tessera.store.working import Net, Row

if TYPE_CHECKING:
    from tessera.store.sqlite.source import Meta

K = TypeVar("K")
V = TypeVar("V")


def _marks(columns: Sequence[str]) -> str:
    return ", ".join("?" * len(columns))


INSERT_JOB: Final = rows.filled("INSERT INTO tessera_job ({job})\nVALUES ") + f"({_marks(JOB_COLUMNS)})"
UPDATE_JOB: Final = (
    "UPDATE tessera_job\nSET " + ", ".join(f"{column} = ?" for column in JOB_COLUMNS[1:]) + "\nWHERE id = ?"
)
# A claim, a renewal and a flag change nothing else. SQLite looks at every index that a named column stands
# in, so a statement that names only these leaves five of eight indexes alone.
UPDATE_LEASE: Final = """
UPDATE tessera_job
SET state = ?, fence = ?, attempt = ?, holder = ?, lease_until = ?, claimed_at = ?, cancel_requested = ?,
    blocked_on = ?, rest = ?
WHERE id = ?
"""
DELETE_JOB: Final = """
DELETE FROM tessera_job
WHERE id = ?
"""
PUT_DONE: Final = rows.filled("REPLACE INTO tessera_done ({done})\nVALUES ") + f"({_marks(DONE_COLUMNS)})"
DELETE_DONE: Final = """
DELETE FROM tessera_done
WHERE id = ?
"""
PUT_TAG: Final = """
INSERT OR IGNORE INTO tessera_job_tag (tag, job)
VALUES (?, ?)
"""
DELETE_TAG: Final = """
DELETE FROM tessera_job_tag
WHERE tag = ? AND job = ?
"""
PUT_SLOT: Final = """
REPLACE INTO tessera_slot (key, owner, expires_at)
VALUES (?, ?, ?)
"""
DELETE_SLOT: Final = """
DELETE FROM tessera_slot
WHERE key = ?
"""
PUT_COUNTER: Final = (
    "REPLACE INTO tessera_counter (" + ", ".join(COUNTER_COLUMNS) + f")\nVALUES ({_marks(COUNTER_COLUMNS)})"
)
DELETE_COUNTER: Final = """
DELETE FROM tessera_counter
WHERE key = ?
"""
PUT_RECORD: Final = """
REPLACE INTO tessera_record (space, key, version, value, written_at, due_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
DELETE_RECORD: Final = """
DELETE FROM tessera_record
WHERE space = ? AND key = ?
"""
ADD_HISTORY: Final = """
INSERT INTO tessera_record_history (space, key, version, value, written_at, due_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
PUT_LANE: Final = """
REPLACE INTO tessera_floor (queue, priority, pass)
VALUES (?, ?, ?)
"""
PUT_TENANT: Final = """
REPLACE INTO tessera_pass (queue, priority, tenant, pass)
VALUES (?, ?, ?, ?)
"""
PUT_EDGE: Final = """
REPLACE INTO tessera_edge (parent, child, "on", otherwise)
VALUES (?, ?, ?, ?)
"""
DELETE_EDGE: Final = """
DELETE FROM tessera_edge
WHERE parent = ? AND child = ?
"""
ADD_COUNT: Final = """
INSERT INTO tessera_count (queue, state, n)
VALUES (?, ?, ?)
ON CONFLICT (queue, state) DO UPDATE SET n = n + excluded.n
"""
ADD_EVENT: Final = """
INSERT INTO tessera_event (pos, at, what, queue, job, number, by, data)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
PUT_META: Final = """
UPDATE tessera_meta
SET clock = :clock, policy = :policy, events = :events
WHERE id = 1
"""
# Chunks of the same bytes published before stay; those of this upload then belong to nobody.
PUBLISH: Final = """
INSERT OR IGNORE INTO tessera_blob_chunk (sha256, number, chunk)
SELECT :sha256, number, chunk
FROM tessera_staged
WHERE upload = :upload AND NOT EXISTS (SELECT 1 FROM tessera_blob WHERE sha256 = :sha256)
"""
DROP_SPARE_CHUNKS: Final = """
DELETE FROM tessera_chunk
WHERE id IN (
    SELECT chunk FROM tessera_staged
    WHERE upload = :upload AND EXISTS (SELECT 1 FROM tessera_blob WHERE sha256 = :sha256)
)
"""
PUT_BLOB: Final = """
INSERT OR IGNORE INTO tessera_blob (sha256, size, published_at)
VALUES (:sha256, :size, :now)
"""
UNSTAGE: Final = """
DELETE FROM tessera_staged
WHERE upload = :upload
"""


def write(cursor: sqlite3.Cursor, net: Net, meta: Meta) -> None:
    """Write what differs. The caller has begun a transaction, and ends it after ``write_meta``."""
    if net.jobs:
        _write_jobs(cursor, net.jobs)
    if net.archive:
        _many(cursor, DELETE_DONE, [(row.key,) for row in net.archive if row.after is None])
        _many(cursor, PUT_DONE, [rows.row_of_done(row.after) for row in net.archive if row.after is not None])
    if net.jobs or net.archive:
        _write_tags(cursor, [*net.jobs, *net.archive])
    _write_counts(cursor, net)
    _write_keyed(cursor, net)
    if net.events:
        _write_events(cursor, net, meta)
    for upload, sha256, size in net.blobs:
        _publish(cursor, upload, sha256, size, meta.clock)
    meta.policy += net.policy_bumps


def write_meta(cursor: sqlite3.Cursor, meta: Meta) -> None:
    """The single values, last of all: once a transaction."""
    cursor.execute(PUT_META, {"clock": meta.clock, "policy": meta.policy, "events": meta.events})


def _many(cursor: sqlite3.Cursor, query: str, values: Sequence[Values]) -> None:
    if len(values) == 1:
        cursor.execute(query, values[0])
    elif values:
        cursor.executemany(query, values)


def _write_jobs(cursor: sqlite3.Cursor, changed: Iterable[Row[JobId, Job]]) -> None:
    added, leased, moved, gone = [], [], [], []
    for row in changed:
        before, after = row.before, row.after
        if after is None:
            gone.append((row.key,))
        elif before is None:
            added.append(rows.row_of_job(after))
        elif _only_the_lease_differs(before, after):
            leased.append(rows.lease_of_job(after))
        else:
            moved.append((*rows.row_of_job(after)[1:], after.id))
    _many(cursor, DELETE_JOB, gone)
    _many(cursor, INSERT_JOB, added)
    _many(cursor, UPDATE_LEASE, leased)
    _many(cursor, UPDATE_JOB, moved)


def _only_the_lease_differs(before: Job, after: Job) -> bool:
    """Identity is enough: a copy of a job shares what it does not change, and a false no only costs time."""
    return (
        after.pass_ is before.pass_
        and after.due is before.due
        and after.priority is before.priority
        and after.queue is before.queue
        and after.payload is before.payload
        and after.body is before.body
        and after.expires_at is before.expires_at
        and after.parent is before.parent
    )


def _write_tags(cursor: sqlite3.Cursor, changed: Iterable[Row[JobId, Job]]) -> None:
    """Tags follow a job from one table to the other, so that only the balance of both is written."""
    balance: dict[tuple[str, JobId], int] = {}
    for row in changed:
        for job, by in ((row.before, -1), (row.after, +1)):
            if job is not None and job.tags:
                for tag in job.tags:
                    balance[tag, row.key] = balance.get((tag, row.key), 0) + by
    if balance:
        _many(cursor, DELETE_TAG, [key for key, by in balance.items() if by < 0])
        _many(cursor, PUT_TAG, [key for key, by in balance.items() if by > 0])


def _write_counts(cursor: sqlite3.Cursor, net: Net) -> None:
    _many(cursor, ADD_COUNT, [(queue, CODES[state], by) for (queue, state), by in net.counts.items()])


def _write_keyed(cursor: sqlite3.Cursor, net: Net) -> None:
    if net.slots:
        _many(cursor, DELETE_SLOT, [(row.key,) for row in net.slots if row.after is None])
        _many(cursor, PUT_SLOT, [(s.key, s.owner, s.expires_at) for s in _afters(net.slots)])
    if net.counters:
        _many(cursor, DELETE_COUNTER, [(row.key,) for row in net.counters if row.after is None])
        _many(cursor, PUT_COUNTER, [rows.row_of_counter(counter) for counter in _afters(net.counters)])
    if net.records:
        _many(cursor, DELETE_RECORD, [row.key for row in net.records if row.after is None])
        _many(cursor, PUT_RECORD, [rows.row_of_record(record) for record in _afters(net.records)])
    _many(cursor, ADD_HISTORY, [rows.row_of_record(record) for record in net.history])
    _many(cursor, PUT_LANE, [(*row.key, row.after) for row in net.floors])
    _many(cursor, PUT_TENANT, [(*row.key, row.after) for row in net.passes])
    if net.edges:
        _many(cursor, DELETE_EDGE, [row.key for row in net.edges if row.after is None])
        _many(cursor, PUT_EDGE, [(e.parent, e.child, e.on, e.otherwise) for e in _afters(net.edges)])


def _afters(changed: Iterable[Row[K, V]]) -> list[V]:
    return [row.after for row in changed if row.after is not None]


def _write_events(cursor: sqlite3.Cursor, net: Net, meta: Meta) -> None:
    values: list[tuple[Any, ...]] = []
    for event in net.events:
        meta.events += 1
        values.append(
            (meta.events, event.at, event.what, event.queue, event.job, event.number, event.by, event.data)
        )
    _many(cursor, ADD_EVENT, values)


def _publish(cursor: sqlite3.Cursor, upload: str, sha256: bytes, size: int, now: int) -> None:
    of = {"upload": upload, "sha256": sha256, "size": size, "now": now}
    cursor.execute(DROP_SPARE_CHUNKS, of)
    cursor.execute(PUBLISH, of)
    cursor.execute(PUT_BLOB, of)
    cursor.execute(UNSTAGE, of)
