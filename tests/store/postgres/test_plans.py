"""Every statement, as it is sent, over a hundred thousand rows: none walks a table that grows.

The statements are taken from the flights of real verbs, so that none is forgotten and none is made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from tessera import seam
from tessera.model.changes import (
    After,
    DropJob,
    Edge,
    EditJob,
    Edits,
    Group,
    Held,
    InState,
    MoveJob,
    PutRecord,
)
from tessera.model.ids import JobId
from tessera.model.job import Need
from tessera.model.policy import Ceiling, Policy
from tessera.model.queries import Filter, Page
from tessera.model.states import EventLevel, State
from tessera.store.postgres.driver import Query, Rows, pack_as_ours
from tessera.store.postgres.server import Server
from tessera.store.postgres.store import PostgresStore
from tests.conformance.rig import ManualClock, Rig, add, key_of
from tests.servers import schemas

ROWS = 100_000
GROWING = ("job", "done", "event", "record", "record_history", "slot", "edge", "job_tag", "counter")
FILL = """
INSERT INTO {s}.job (id, kind, queue, state, np, pass, due, fence, attempt, holder, lease_until, claimed_at,
    cancel_requested, blocked_on, expires_at, created_at, body, payload, gated)
SELECT gen_random_uuid(), 'work', 'q' || n % 5,
    CASE WHEN n % 50 = 0 THEN 4 WHEN n % 10 = 1 THEN 1 ELSE 2 END,
    n % 3, 0, n, n, 0, 'h' || n % 20, n, 0, false, '', 0, n, '', '', false
FROM generate_series(1, {n}) AS n;
INSERT INTO {s}.done (id, kind, queue, state, np, due, fence, attempt, created_at, finished_at, gone_at,
    reason, last_fence, last_end, body, payload, loud)
SELECT gen_random_uuid(), 'work', 'q' || n % 5, CASE WHEN n % 100 = 0 THEN 8 ELSE 7 END, 0, n, n, 1, n, n,
    4000000000000 + n, '', n, 'completed', '', '', n % 100 = 0
FROM generate_series(1, {n}) AS n;
INSERT INTO {s}.event (pos, at, what, queue, job, number, by, data)
SELECT n, n, 'x', 'q', gen_random_uuid(), 1, '', '' FROM generate_series(1, {n}) AS n;
INSERT INTO {s}.record (space, key, version, value, written_at, due_at, expires_at)
SELECT 'notes', 'k' || n, 1, '', 0, 0, 0 FROM generate_series(1, {n}) AS n;
INSERT INTO {s}.slot (key, owner, expires_at)
SELECT 'u:' || n, gen_random_uuid(), 0 FROM generate_series(1, {n}) AS n;
INSERT INTO {s}.edge (parent, child, "on", otherwise)
SELECT gen_random_uuid(), gen_random_uuid(), 'ended', 'go' FROM generate_series(1, {n}) AS n;
INSERT INTO {s}.job_tag (tag, job)
SELECT 't' || n % 1000, gen_random_uuid() FROM generate_series(1, {n}) AS n;
INSERT INTO {s}.counter
SELECT 'c/' || n, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 FROM generate_series(1, {n}) AS n;
INSERT INTO {s}.count (queue, state, n) SELECT queue, state, count(*) FROM {s}.job GROUP BY 1, 2;
INSERT INTO {s}.count (queue, state, n) SELECT queue, state, count(*) FROM {s}.done GROUP BY 1, 2;
UPDATE {s}.meta SET events = {n};
"""


class Watched(Rig):
    """A store whose statements are explained as they go by."""

    def __init__(self, store: PostgresStore, connection: psycopg.Connection) -> None:
        super().__init__(store, blocking=True, clock=ManualClock(seam.now_ms()))
        self._connection = connection
        large = "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND reltuples > 10000"
        found = connection.execute(large, (store._server.schema,)).fetchall()
        self._large = {name for (name,) in found}
        assert self._large >= {"job", "event", "record", "slot", "edge", "job_tag", "counter"}
        self.walked: list[str] = []
        self.seen: set[str] = set()
        send = store._driver._pool.colour.send

        async def watched(connection: Any, queries: Sequence[Query], **how: Any) -> list[Rows]:
            for text, parameters in queries:
                if text.strip().split()[0].upper() in ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE"):
                    self._explain(text, parameters)
            return await send(connection, queries, **how)

        store._driver._pool.colour.send = watched  # type: ignore[method-assign]

    def _explain(self, text: str, parameters: Sequence[Any]) -> None:
        cursor = pack_as_ours(psycopg.RawCursor(self._connection))
        cursor.execute(f"EXPLAIN (FORMAT JSON) {text}", parameters, prepare=False)
        [(found,)] = cursor.fetchall()
        self.seen.add(text)
        for node in _nodes(found[0]["Plan"]):
            if node["Node Type"] == "Seq Scan" and node["Relation Name"] in self._large:
                self.walked.append(f"{node['Relation Name']}: {' '.join(text.split())[:200]}")


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


@pytest.fixture(scope="module")
def filled() -> str:
    """A schema with many rows, as the statistics know."""
    schema = schemas.emptied("plans")
    connection = schemas.connection_of_this_process()
    connection.execute(FILL.replace("{s}", schema).replace("{n}", str(ROWS)))
    connection.execute(f"ANALYZE {', '.join(f'{schema}.{table}' for table in GROWING)}")
    return schema


@pytest.fixture
def rig(filled: str) -> Iterator[Watched]:
    server = Server(schemas.direct_url(), schema=filled, prepare=False)
    with psycopg.connect(schemas.direct_url(), autocommit=True) as connection:
        rig = Watched(PostgresStore(server, blocking=True), connection)
        rig.run(rig.store.open())
        yield rig
        server.close()


def fresh(**more: Any) -> Any:
    """An AddJob with a key of today."""
    change = add("x", "q0", **{"events": EventLevel.ODD, **more})
    job = type(change.job)(
        **{**{f: getattr(change.job, f) for f in change.job.__struct_fields__}, "id": seam.new_id()}
    )
    return type(change)(job, change.due, change.expires, change.deadline, change.after)


def test_no_statement_of_a_claim_a_commit_or_a_sweep_walks_a_table(rig: Watched):
    """PERFORMANCE: with and without counters, by one flight and with a look, small batches and large."""
    policy = Policy(rig.run(rig.store.policy_version()))
    for count in (1, 100, 500):  # a worker's batches are no larger
        rig.do(*(fresh() for _ in range(count)))
        for holder in ("w", "v"):
            jobs = list(rig.ask_claim("q0", "q1", n=count, holder=holder, policy=policy).jobs)
            groups = [
                Group((Held(job.id, job.fence, "completed"),), (MoveJob(job.id, State.COMPLETED),))
                for job in jobs
            ]
            renewals = [
                Group((Held(j.id, j.fence),), (EditJob(j.id, Edits(lease=After(9_000))),)) for j in jobs
            ]
            rig.commit(*renewals)
            if holder == "v":  # as one that forgot what it has claimed
                rig.store._server.memory.forget(groups)  # type: ignore[attr-defined]
            rig.commit(*groups)
    rig.declare({"c": Ceiling(1)})
    parent = fresh(needs=(Need("c"),), slots=("u:new",), tags=("red",), tenant="t", stride=1_000)
    child = fresh(events=EventLevel.FULL)
    child = type(child)(child.job, after=(Edge(parent.job.id, child.job.id),))
    rig.do(parent, child, fresh(needs=(Need("c"),)), fresh(needs=(Need("c"),)))
    for job in rig.claim("q0", n=200):
        rig.complete(job)
    rig.claim("q0", n=50)
    due = rig.run(rig.store.due(500))
    rig.commit(
        *(
            Group((InState(j.id, (j.state,), due=j.due),), (MoveJob(j.id, State.AVAILABLE),))
            for j in due.scheduled
        )
    )
    rig.do(PutRecord("notes", "k5", b"1"), DropJob(parent.job.id))
    rig.run(rig.store.maintain())  # type: ignore[attr-defined]
    assert len(rig.seen) > 40
    assert "\n".join(rig.walked) == ""


@pytest.mark.parametrize(
    "which",
    [
        Filter(holder="h3"),
        Filter(holder="h3", cancel_requested=True),
        Filter(parent=JobId(bytes(16))),
        Filter(tags_any=("t1", "t2")),
        Filter(states=(State.RUNNING,)),
        Filter(states=(State.DEAD,), queues=("q0",)),
        Filter(states=(State.BLOCKED, State.WAITING)),
        Filter(blocked_on="c"),
        Filter(ids=(key_of("a"), key_of("b"))),
        Filter(kinds=("work",)),
    ],
    ids=str,
)
def test_no_search_walks_a_table_further_than_its_page(rig: Watched, which: Filter):
    rig.run(rig.store.find_jobs(which, Page(limit=50)))
    assert rig.walked == []


def test_no_question_walks_a_table(rig: Watched):
    job = key_of("none")
    for verb in (
        rig.store.get_jobs([job]),
        rig.store.edges(job),
        rig.store.counters(["c/1", "c/2"]),
        rig.store.get([("notes", "k1"), ("notes", "k2")]),
        rig.store.scan("notes", "k1"),
        rig.store.history("notes", "k1"),
        rig.store.events(50_000),
        rig.store.events(0, 10, job),
        rig.store.count_jobs(),
        rig.store.due(100, ["q1"]),
    ):
        rig.run(verb)
    assert rig.walked == []
