"""Bringing the database to a net state: one statement a kind of row, all in one flight.

A statement asserts what it was made from. It divides by nothing, and so takes the flight back, if another
number of rows than expected was there, or rows of another fence or version: both only grow, so that equal
sums mean that every one of them is equal. After a load that locked the rows the assertion holds; made from
what the process remembers, without a look, it is what makes one flight safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import Event
from tessera.store.postgres.driver import Query
from tessera.store.postgres.params import Texts, Uuids
from tessera.store.postgres.tables import (
    CONTENT,
    COUNT,
    COUNTER,
    DONE,
    EDGE,
    EVENT,
    FLOOR,
    JOB,
    PASS,
    RECORD,
    SHIFT,
    SLOT,
    TAG,
    Column,
    arrays,
    row_of_done,
    row_of_job,
    unnested,
)
from tessera.store.sql import rows
from tessera.store.sql.rows import CODES, Values
from tessera.store.working import Net, Row

_MOVED: Final = {name: column for name, column in JOB.items() if name not in CONTENT}
_MOVED_AT: Final = [number for number, name in enumerate(JOB) if name in _MOVED]


def _names(columns: Iterable[str]) -> str:
    return ", ".join(columns)


def _insert(table: str, columns: dict[str, Column], conflict: str = "") -> str:
    names = _names(columns)
    return f"INSERT INTO {{s}}.{table} ({names})\nSELECT {names} FROM {unnested(columns)}{conflict}"


def _asserting(change: str, returning: str, test: str) -> str:
    """The change, taken back with all its flight unless the test holds of the rows it met."""
    return f"WITH met AS (\n{change}\nRETURNING {returning}\n)\nSELECT 1 / ({test})::int FROM met"


def _update(columns: dict[str, Column]) -> str:
    fields = ", ".join(f"{name} = u.{name}" for name in columns if name != "id")
    return (
        f"UPDATE {{s}}.job j\nSET {fields}, rev = j.rev + 1\nFROM {unnested(columns)}\n"
        "WHERE j.id = ANY($1) AND j.id = u.id"  # the first is an index scan, however many there are
    )


def _upsert(table: str, columns: dict[str, Column], key: Sequence[str]) -> str:
    fields = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
    return _insert(table, columns, f"\nON CONFLICT ({_names(key)}) DO UPDATE SET {fields}")


def _sums(columns: dict[str, Column]) -> str:
    """Number of rows, sum of fences and of versions, as the parameters behind those of the columns."""
    n = len(columns)
    return f"count(*) = ${n + 1} AND sum(fence) = ${n + 2}::text::numeric AND sum(rev) = ${n + 3}"


_KEY: Final = {"id": JOB["id"]}
_LIVE: Final = " AND min(lease_until) > {s}.clock_ms()"
_DELETE: Final = "DELETE FROM {s}.job WHERE id = ANY($1)"
DELETE_JOBS: Final = _asserting(_DELETE, "fence, rev, lease_until", _sums(_KEY))
DELETE_HELD_JOBS: Final = _asserting(_DELETE, "fence, rev, lease_until", _sums(_KEY) + _LIVE)
# The versions before an update: it shows only those after it.
_LOCK: Final = """WITH met AS (
SELECT fence, rev, lease_until
FROM {s}.job
WHERE id = ANY($1)
ORDER BY id
FOR UPDATE
)
"""
LOCK_JOBS: Final = f"{_LOCK}SELECT 1 / ({_sums(_KEY)})::int FROM met"
LOCK_HELD_JOBS: Final = f"{_LOCK}SELECT 1 / ({_sums(_KEY)}{_LIVE})::int FROM met"
MOVE_JOBS: Final = _update(_MOVED)
REWRITE_JOBS: Final = _update(JOB)
ADD_JOBS: Final = _asserting(
    _insert("job", JOB, "\nON CONFLICT (id) DO NOTHING"), "1", f"count(*) = ${len(JOB) + 1}"
)
DELETE_DONE: Final = _asserting("DELETE FROM {s}.done WHERE id = ANY($1)", "1", "count(*) = $2")
ADD_DONE: Final = _insert("done", DONE)
# The day a row may go never changes while it is archived, so that no row changes its partition.
REWRITE_DONE: Final = (
    "UPDATE {s}.done d\nSET "
    + ", ".join(f"{name} = u.{name}" for name in DONE if name not in ("id", "gone_at"))
    + f"\nFROM {unnested(DONE)}\nWHERE d.id = ANY($1) AND d.id = u.id AND d.gone_at = u.gone_at"
)
DELETE_SLOTS: Final = "DELETE FROM {s}.slot WHERE key = ANY($1)"
ADD_SLOTS: Final = _asserting(
    _insert("slot", SLOT, "\nON CONFLICT (key) DO NOTHING"), "1", f"count(*) = ${len(SLOT) + 1}"
)
DELETE_COUNTERS: Final = "DELETE FROM {s}.counter WHERE key = ANY($1)"
PUT_COUNTERS: Final = _upsert("counter", COUNTER, ["key"])
ADD_SHIFTS: Final = _insert("counter_shift", SHIFT)
DELETE_RECORDS: Final = (
    "DELETE FROM {s}.record WHERE (space, key) IN (SELECT * FROM unnest($1::text[], $2::text[]))"
)
ADD_RECORDS: Final = _asserting(
    _insert("record", RECORD, "\nON CONFLICT (space, key) DO NOTHING"), "1", f"count(*) = ${len(RECORD) + 1}"
)
REWRITE_RECORDS: Final = _upsert("record", RECORD, ["space", "key"])
ADD_HISTORY: Final = _insert("record_history", RECORD)
PUT_FLOORS: Final = _upsert("floor", FLOOR, ["queue", "priority"])
PUT_PASSES: Final = _upsert("pass", PASS, ["queue", "priority", "tenant"])
DELETE_EDGES: Final = (
    "DELETE FROM {s}.edge WHERE (parent, child) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[]))"
)
PUT_EDGES: Final = _upsert("edge", EDGE, ["parent", "child"])
ADD_COUNTS: Final = _insert("count_delta", COUNT)
ADD_EVENTS: Final = _insert("event", EVENT)
DELETE_TAGS: Final = (
    "DELETE FROM {s}.job_tag WHERE (tag, job) IN (SELECT * FROM unnest($1::text[], $2::uuid[]))"
)
PUT_TAGS: Final = _insert("job_tag", TAG, "\nON CONFLICT (tag, job) DO NOTHING")
BUMP_POLICY: Final = "UPDATE {s}.meta SET policy = policy + $1"
# Chunks of the same bytes published before stay; those of this upload then belong to nobody.
DROP_SPARE_CHUNKS: Final = """
DELETE FROM {s}.chunk
WHERE id IN (SELECT chunk FROM {s}.staged WHERE upload = $1)
    AND EXISTS (SELECT 1 FROM {s}.blob WHERE sha256 = $2)
"""
PUBLISH: Final = """
INSERT INTO {s}.blob_chunk (sha256, number, chunk)
SELECT $2, number, chunk
FROM {s}.staged
WHERE upload = $1 AND NOT EXISTS (SELECT 1 FROM {s}.blob WHERE sha256 = $2)
ON CONFLICT (sha256, number) DO NOTHING
"""
PUT_BLOB: Final = """
INSERT INTO {s}.blob (sha256, size, published_at)
VALUES ($1, $2, $3)
ON CONFLICT (sha256) DO NOTHING
"""
UNSTAGE: Final = "DELETE FROM {s}.staged WHERE upload = $1"


def queries(net: Net, schema: str, revs: dict[JobId, int], now: int, *, held: bool = False) -> list[Query]:
    """The statements that write a net state, in the one order of locks: jobs, archive, slots, the rest.

    ``revs`` are the row versions the net was made from. ``held``: it was made without a look, so that the
    leases of the jobs it changes must be live by the store's clock.
    """
    made: list[Query] = []
    if net.jobs:
        _jobs(net.jobs, revs, made, held=held)
    if net.archive:
        _archive(net.archive, made)
    if net.jobs or net.archive:
        _tags([*net.jobs, *net.archive], made)
    _keyed(net, made)
    _appended(net, made)
    for upload, sha256, size in net.blobs:
        made += [
            (DROP_SPARE_CHUNKS, [upload, sha256]),
            (PUBLISH, [upload, sha256]),
            (PUT_BLOB, [sha256, size, now]),
            (UNSTAGE, [upload]),
        ]
    return [(query.replace("{s}", schema), parameters) for query, parameters in made]


def _jobs(
    changed: Sequence[Row[JobId, Job]], revs: dict[JobId, int], made: list[Query], *, held: bool
) -> None:
    gone, moved, rewritten, added = [], [], [], []
    for row in sorted(changed, key=lambda one: one.key):
        if row.after is None:
            gone.append(row)
        elif row.before is None:
            added.append(row.after)
        elif row.before.payload is row.after.payload and row.before.body is row.after.body:
            moved.append(row)
        else:
            rewritten.append(row)
    if gone:
        query = DELETE_HELD_JOBS if held else DELETE_JOBS
        made.append((query, _expected(gone, revs)))
    if moved or rewritten:
        made.append((LOCK_HELD_JOBS if held else LOCK_JOBS, _expected([*moved, *rewritten], revs)))
    if moved:
        values = [row_of_job(row.after) for row in moved if row.after is not None]
        made.append((MOVE_JOBS, arrays(_MOVED, [tuple(one[at] for at in _MOVED_AT) for one in values])))
    if rewritten:
        made.append((REWRITE_JOBS, arrays(JOB, [row_of_job(row.after) for row in rewritten if row.after])))
    if added:
        made.append((ADD_JOBS, [*arrays(JOB, [row_of_job(job) for job in added]), len(added)]))


def _expected(changed: Sequence[Row[JobId, Job]], revs: dict[JobId, int]) -> list[Any]:
    fences = sum(row.before.fence for row in changed if row.before is not None)
    return [
        Uuids([row.key for row in changed]),
        len(changed),
        str(fences),  # as a number it would pass 64 bits from some 5,000 jobs on
        sum(revs[row.key] for row in changed),
    ]


def _archive(changed: Sequence[Row[JobId, Job]], made: list[Query]) -> None:
    gone = [row.key for row in changed if row.after is None]
    if gone:
        made.append((DELETE_DONE, [Uuids(gone), len(gone)]))
    added = [row_of_done(row.after) for row in changed if row.after is not None and row.before is None]
    if added:
        made.append((ADD_DONE, arrays(DONE, added)))
    rewritten = [
        row_of_done(row.after) for row in changed if row.after is not None and row.before is not None
    ]
    if rewritten:
        made.append((REWRITE_DONE, arrays(DONE, rewritten)))


def _tags(changed: Iterable[Row[JobId, Job]], made: list[Query]) -> None:
    """Tags follow a job from one table to the other, so that only the balance of both is written."""
    balance: dict[tuple[str, JobId], int] = {}
    for row in changed:
        for job, by in ((row.before, -1), (row.after, +1)):
            for tag in job.tags if job is not None else ():
                balance[tag, row.key] = balance.get((tag, row.key), 0) + by
    for query, sign in ((DELETE_TAGS, -1), (PUT_TAGS, +1)):
        chosen = sorted(key for key, by in balance.items() if by * sign > 0)
        if chosen:
            made.append((query, arrays(TAG, chosen)))


def _keyed(net: Net, made: list[Query]) -> None:
    # A slot that changes hands is deleted and added: another taker in between is noticed.
    if gone := sorted(row.key for row in net.slots if row.before is not None):
        made.append((DELETE_SLOTS, [Texts(gone)]))
    if slots := sorted((one.key, one.owner, one.expires_at) for one in _afters(net.slots)):
        made.append((ADD_SLOTS, [*arrays(SLOT, slots), len(slots)]))
    if gone := sorted(row.key for row in net.counters if row.after is None and row.before is not None):
        made.append((DELETE_COUNTERS, [Texts(gone)]))
    _put(made, PUT_COUNTERS, COUNTER, [rows.row_of_counter(one) for one in _afters(net.counters)])
    if dropped := sorted(row.key for row in net.records if row.after is None and row.before is not None):
        made.append(
            (DELETE_RECORDS, [Texts([key[0] for key in dropped]), Texts([key[1] for key in dropped])])
        )
    new = [
        rows.row_of_record(row.after) for row in net.records if row.before is None and row.after is not None
    ]
    if new:
        made.append((ADD_RECORDS, [*arrays(RECORD, sorted(new, key=_space_and_key)), len(new)]))
    old = [rows.row_of_record(row.after) for row in net.records if row.before and row.after is not None]
    _put(made, REWRITE_RECORDS, RECORD, sorted(old, key=_space_and_key))
    _put(made, ADD_HISTORY, RECORD, [rows.row_of_record(record) for record in net.history])
    _put(made, PUT_FLOORS, FLOOR, [(*row.key, row.after) for row in net.floors])
    _put(made, PUT_PASSES, PASS, [(*row.key, row.after) for row in net.passes])
    if edges := sorted(row.key for row in net.edges if row.after is None and row.before is not None):
        made.append((DELETE_EDGES, [Uuids([key[0] for key in edges]), Uuids([key[1] for key in edges])]))
    _put(made, PUT_EDGES, EDGE, sorted((e.parent, e.child, e.on, e.otherwise) for e in _afters(net.edges)))


def _appended(net: Net, made: list[Query]) -> None:
    """What many may write at once: rows that nobody waits for."""
    _put(made, ADD_COUNTS, COUNT, [(queue, CODES[state], by) for (queue, state), by in net.counts.items()])
    _put(
        made,
        ADD_SHIFTS,
        SHIFT,
        [(key, s.used, s.blocked, s.awake, s.refund, s.close_until) for key, s in net.shifts.items()],
    )
    _put(made, ADD_EVENTS, EVENT, [_event(event) for event in net.events])
    if net.policy_bumps:
        made.append((BUMP_POLICY, [net.policy_bumps]))


def _put(made: list[Query], query: str, columns: dict[str, Column], values: Sequence[Values]) -> None:
    if values:
        made.append((query, arrays(columns, values)))


def _afters(changed: Iterable[Row[Any, Any]]) -> list[Any]:
    return [row.after for row in changed if row.after is not None]


def _space_and_key(row: Values) -> tuple[str, str]:
    return row[0], row[1]


def _event(event: Event) -> Values:
    return (event.at, event.what, event.queue, event.job, event.number, event.by, event.data)
