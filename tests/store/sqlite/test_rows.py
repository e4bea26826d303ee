"""Every field of a job comes back from its columns, and a plain job needs none of the rare ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.model.changes import Counter
from tessera.model.ids import JobId
from tessera.model.job import End, Job, Keep, Need
from tessera.model.states import FINAL, LIVE, EventLevel, State
from tessera.store.sql import rows
from tests.store.sqlite.rig import job_of

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
numbers = st.integers(-(2**62), 2**62)
needs = st.lists(st.builds(Need, texts, st.integers(0, 9)), max_size=2).map(tuple)
ends = st.lists(st.builds(End, numbers, texts, numbers, numbers, texts, texts), max_size=2).map(tuple)
words = st.lists(texts, max_size=2).map(tuple)
keys = st.binary(min_size=16, max_size=16).map(JobId)
OF_TYPE = {int: numbers, str: texts, bytes: st.binary(max_size=6), bool: st.booleans()}
OF_NAME = {
    "id": keys,
    "parent": st.none() | keys,
    "needs": needs,
    "holds": needs,
    "slots": words,
    "tags": words,
    "ends": ends,
    "keep": st.builds(Keep, numbers, numbers, numbers),
    "events": st.sampled_from(EventLevel),
    "result": st.none() | st.binary(max_size=6),
}


def _built(fields: dict[str, Any]) -> Job:
    return Job(**fields)


def jobs(states: frozenset[State]) -> st.SearchStrategy[Job]:
    """Any job in one of these states; each field says something in one of two."""
    needed = {"id": keys, "kind": texts, "queue": texts, "state": st.sampled_from(sorted(states))}
    optional = {
        field.name: OF_NAME[field.name] if field.name in OF_NAME else OF_TYPE[field.type]
        for field in msgspec.structs.fields(Job)
        if field.name not in needed
    }
    return st.fixed_dictionaries(needed, optional=optional).map(_built)


@given(jobs(LIVE))
def test_a_live_job_comes_back_as_it_was(job):
    assert rows.job_of(rows.row_of_job(job)) == job


@given(jobs(FINAL))
def test_an_archived_job_comes_back_as_it_was(job):
    assert rows.done_of(rows.row_of_done(job)) == job


def test_a_plain_job_has_no_rest():
    assert rows.row_of_job(job_of("a"))[-1] is None


def test_fields_that_a_later_release_adds_are_ignored():
    row = rows.row_of_job(job_of("a", watched=True))
    rest = msgspec.msgpack.decode(row[-1]) | {"of_tomorrow": [1]}
    assert rows.job_of((*row[:-1], msgspec.msgpack.encode(rest))) == job_of("a", watched=True)


def test_the_number_of_a_state_never_changes():
    assert [state.value for state in rows.STATES] == [
        "pending", "scheduled", "available", "blocked", "running", "waiting", "quarantined", "completed",
        "dead", "cancelled",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "table,columns",
    [
        ("tessera_job", rows.JOB_COLUMNS),
        ("tessera_done", rows.DONE_COLUMNS),
        ("tessera_counter", rows.COUNTER_COLUMNS),
    ],
)
def test_code_and_schema_name_the_same_columns(handle, table, columns):
    found = handle.file.life().readers.read(
        lambda reads: reads.cursor.execute(f"SELECT name FROM pragma_table_info('{table}')").fetchall()
    )
    assert tuple(name for (name,) in found) == columns


def test_a_counter_comes_back_as_it_was():
    counter = Counter(
        key="k", used=1, ceiling=2, refill=3, capacity=4, unit=5, level=6, level_at=7, wake_at=8
    )
    assert rows.counter_of(rows.row_of_counter(counter)) == counter
