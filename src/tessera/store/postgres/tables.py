"""Columns of the tables, and rows of them as parameters: one array a column, so that a batch of any size is
one statement with one plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from tessera.model.changes import Counter
from tessera.model.job import Job
from tessera.model.states import EventLevel
from tessera.store.postgres.params import Bigints, Bools, Byteas, Ints, Texts, Uuids
from tessera.store.sql import rows
from tessera.store.sql.rows import DONE_COLUMNS, JOB_COLUMNS, Values


class Column(NamedTuple):
    """How an array of a column's values travels, and what it is cast to."""

    wrap: Callable[[Sequence[Any]], Any]
    cast: str


UUID: Final = Column(Uuids, "uuid[]")
TEXT: Final = Column(Texts, "text[]")
BIGINT: Final = Column(Bigints, "bigint[]")
INT: Final = Column(Ints, "int[]")
BYTEA: Final = Column(Byteas, "bytea[]")
BOOL: Final = Column(Bools, "bool[]")

JOB: Final = {
    "id": UUID, "kind": TEXT, "queue": TEXT, "state": INT, "np": INT, "pass": BIGINT, "due": BIGINT,
    "fence": BIGINT, "attempt": INT, "holder": TEXT, "lease_until": BIGINT, "claimed_at": BIGINT,
    "cancel_requested": BOOL, "blocked_on": TEXT, "parent": UUID, "expires_at": BIGINT, "created_at": BIGINT,
    "body": BYTEA, "payload": BYTEA, "rest": BYTEA, "gated": BOOL,
}  # fmt: skip
"""In the order of ``rows.JOB_COLUMNS``, and last whether only a claim behind the gate may lease it."""
CONTENT: Final = ("kind", "parent", "created_at", "body", "payload")
"""What seldom changes in the life of a job, and may be long."""
DONE: Final = {
    "id": UUID, "kind": TEXT, "queue": TEXT, "state": INT, "np": INT, "due": BIGINT, "fence": BIGINT,
    "attempt": INT, "parent": UUID, "created_at": BIGINT, "finished_at": BIGINT, "gone_at": BIGINT,
    "reason": TEXT, "last_fence": BIGINT, "last_end": TEXT, "ends": BYTEA, "body": BYTEA, "payload": BYTEA,
    "result": BYTEA, "rest": BYTEA, "loud": BOOL,
}  # fmt: skip
SLOT: Final = {"key": TEXT, "owner": UUID, "expires_at": BIGINT}
COUNTER: Final = {name: TEXT if name == "key" else BIGINT for name in Counter.__struct_fields__}
SHIFT: Final = {
    "key": TEXT, "used": BIGINT, "blocked": BIGINT, "awake": BIGINT, "refund": BIGINT, "close_until": BIGINT,
}  # fmt: skip
RECORD: Final = {
    "space": TEXT, "key": TEXT, "version": BIGINT, "value": BYTEA, "written_at": BIGINT, "due_at": BIGINT,
    "expires_at": BIGINT,
}  # fmt: skip
EDGE: Final = {"parent": UUID, "child": UUID, '"on"': TEXT, "otherwise": TEXT}
EVENT: Final = {
    "at": BIGINT, "what": TEXT, "queue": TEXT, "job": UUID, "number": BIGINT, "by": TEXT, "data": BYTEA,
}  # fmt: skip
COUNT: Final = {"queue": TEXT, "state": INT, "n": BIGINT}
FLOOR: Final = {"queue": TEXT, "priority": INT, "pass": BIGINT}
PASS: Final = {"queue": TEXT, "priority": INT, "tenant": TEXT, "pass": BIGINT}
TAG: Final = {"tag": TEXT, "job": UUID}

BRIEF_MS: Final = 3_600_000

assert tuple(JOB)[:-1] == JOB_COLUMNS, "the decoder goes by this order"
assert tuple(DONE)[:-1] == DONE_COLUMNS, "the decoder goes by this order"


def is_gated(job: Job) -> bool:
    """Whether leasing it takes more than its row: counters, a pass to set right, an event to write."""
    return bool(job.needs or job.stride or job.events is EventLevel.FULL)


def is_loud(job: Job) -> bool:
    """Whether an archived job goes by itself: more than the row goes with it, or it was to be kept for so
    short a time that the end of its day is no answer.
    """
    is_brief = 0 <= job.gone_at < job.finished_at + BRIEF_MS
    return is_brief or bool(job.slots or job.tags or job.heirs or job.events is EventLevel.FULL)


def row_of_job(job: Job) -> Values:
    """The columns ``JOB``."""
    return (*rows.row_of_job(job), is_gated(job))


def row_of_done(job: Job) -> Values:
    """The columns ``DONE``."""
    return (*rows.row_of_done(job), is_loud(job))


def selected(columns: Iterable[str], table: str = "") -> str:
    """The columns as they are read: keys as bytes, under the same names. An ``ORDER BY`` must name the table
    with the column, or it means these bytes, of which there is no index.
    """
    at = f"{table}." if table else ""
    keys = ("id", "parent", "child", "owner", "job")
    return ", ".join(
        f"uuid_send({at}{name}) AS {name}" if name in keys else f"{at}{name}" for name in columns
    )


def unnested(columns: dict[str, Column]) -> str:
    """``unnest($1::uuid[], ...) AS u (id, ...)``."""
    arrays = ", ".join(f"${number}::{column.cast}" for number, column in enumerate(columns.values(), 1))
    return f"unnest({arrays}) AS u ({', '.join(columns)})"


def arrays(columns: dict[str, Column], values: Sequence[Values]) -> list[Any]:
    """Rows turned into one array a column."""
    if not values:
        return [column.wrap([]) for column in columns.values()]
    turned = zip(*values, strict=True)
    return [column.wrap(list(one)) for column, one in zip(columns.values(), turned, strict=True)]
