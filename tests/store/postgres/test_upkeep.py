"""Counts are folded and indexes rebuilt beside the work, and an operator can see how the tables are."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import psycopg
import pytest

from tessera.model.condition import BLOAT
from tessera.model.errors import StoreBusy, StoreError
from tessera.model.job import Keep
from tessera.model.states import EventLevel, State
from tessera.store.postgres import upkeep
from tessera.store.postgres.server import Server
from tessera.store.postgres.store import PostgresStore
from tests.conformance.rig import Rig, add, sweep
from tests.servers import schemas
from tests.store.postgres.upkeep_rig import rigged, rows, schema, sql

pytestmark = [pytest.mark.store("postgresql"), pytest.mark.capability("F15")]


@pytest.fixture(params=["direct", "pgbouncer"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rigged(pooled=request.param == "pgbouncer") as rig:
        yield rig


@pytest.fixture
def direct() -> Iterator[Rig]:
    with rigged(pooled=False) as rig:
        yield rig


@pytest.fixture
def other() -> Iterator[psycopg.Connection]:
    with psycopg.connect(schemas.direct_url(), application_name="tessera-test-other") as connection:
        yield connection


# Counts -----------------------------------------------------------------------------------------------------


def test_counts_are_the_same_before_a_fold_and_after(rig):
    """INV-15."""
    rig.do(*(add(f"a{n}") for n in range(5)), add("b", "other"))
    rig.complete(rig.take())
    before = rig.counts()
    assert rows("count_delta") > 0
    assert rig.run(upkeep.fold_counts(rig.store._site)) > 0
    assert rows("count_delta") == 0
    assert rig.counts() == before
    rig.do(add("c"))
    rig.run(rig.store.maintain())
    assert rig.counts()["q", State.AVAILABLE] == 5


def test_a_reader_that_meets_too_many_differences_folds_them(direct, monkeypatch):
    monkeypatch.setattr(upkeep, "FOLDED_BY_READERS", 3)
    for number in range(5):
        direct.do(add(f"a{number}"))
    assert direct.counts() == {("q", State.AVAILABLE): 5}
    assert rows("count_delta") == 0
    assert direct.counts() == {("q", State.AVAILABLE): 5}


def test_queues_that_are_empty_leave_nothing_in_the_counts(direct):
    direct.do(add("a"))
    direct.run(upkeep.fold_counts(direct.store._site))
    assert rows("count") == 1
    direct.complete(direct.take())
    direct.run(upkeep.fold_counts(direct.store._site))
    assert rows("count WHERE state = 2") == 0
    assert direct.counts() == {("q", State.COMPLETED): 1}


def test_one_fold_at_a_time_and_nobody_waits_for_it(direct, other):
    direct.do(add("a"))
    other.execute(f"SELECT 1 FROM {schema()}.gate WHERE name = 'fold' FOR UPDATE")
    assert direct.run(upkeep.fold_counts(direct.store._site)) == 0
    other.rollback()
    assert direct.run(upkeep.fold_counts(direct.store._site)) == 1


def test_sums_are_exact_for_every_reader_while_others_fold(direct):
    """INV-15: a reader sees a difference either folded or not, never both and never neither."""
    direct.do(*(add(f"a{n}") for n in range(10)))
    folder = PostgresStore(direct.store._server, blocking=True)
    direct.run(folder.open())
    stop = threading.Event()
    folds: list[int] = []

    def move_and_fold() -> None:
        # From one queue's count to the other's and back, and folded in between: the sum is always ten.
        with psycopg.connect(schemas.direct_url(), autocommit=True) as connection:
            while not stop.is_set():
                for by in (1, -1):
                    connection.execute(
                        f"INSERT INTO {schema()}.count_delta VALUES ('q', 2, {-by}), ('r', 2, {by})"
                    )
                folds.append(direct.run(upkeep.fold_counts(folder._site)))

    threads = [threading.Thread(target=move_and_fold) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            assert sum(direct.counts().values()) == 10
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert sum(folds) > 0


# Indexes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def bloated() -> Iterator[str]:
    """The name of an index whose pages are filled to a tenth and not to nine. It was built so: a VACUUM
    empties one of deleted rows only where no transaction, anywhere in the server, may still see them."""
    sql(
        f"CREATE TABLE {schema()}.fat AS "
        "SELECT n AS a, repeat('x', 20) || n AS b FROM generate_series(1, 20000) n"
    )
    sql(f"CREATE INDEX fat_b ON {schema()}.fat (b) WITH (fillfactor = 10)")
    sql(f"ALTER INDEX {schema()}.fat_b RESET (fillfactor)")
    sql(f"ANALYZE {schema()}.fat")
    yield "fat_b"
    sql(f"DROP TABLE {schema()}.fat")


def index(rig: Rig, name: str):
    condition = rig.run(rig.store.condition())  # type: ignore[attr-defined]
    return next((one for one in condition.indexes if one.name == name), None)


def test_a_bloated_index_is_told_and_rebuilt(rig, bloated):
    before = index(rig, bloated)
    assert before.bloat > 9
    site = rig.store._site
    assert bloated not in rig.run(upkeep.rebuild_indexes(site))  # too small to matter
    assert rig.run(upkeep.rebuild_indexes(site, least_bytes=1 << 20)) == [bloated]
    after = index(rig, bloated)
    assert after.is_valid
    assert after.size_bytes < before.size_bytes / 9
    assert after.bloat < BLOAT
    assert rig.run(upkeep.rebuild_indexes(site, least_bytes=1 << 20)) == []


def test_a_fresh_index_is_not_taken_for_bloated(direct):
    sql(
        f"CREATE TABLE {schema()}.thin AS "
        "SELECT n::bigint AS a, 'k' || n AS b FROM generate_series(1, 30000) n"
    )
    try:
        sql(f"CREATE INDEX thin_ab ON {schema()}.thin (b, a) WHERE a % 2 = 0")
        sql(f"VACUUM ANALYZE {schema()}.thin")
        assert 0.5 < index(direct, "thin_ab").bloat < 1.5
    finally:
        sql(f"DROP TABLE {schema()}.thin")


def test_what_an_interrupted_rebuild_left_is_dropped_first(direct):
    sql(f"CREATE TABLE {schema()}.torn AS SELECT 1 AS a FROM generate_series(1, 2)")
    try:
        with pytest.raises(psycopg.errors.UniqueViolation):
            sql(f"CREATE UNIQUE INDEX CONCURRENTLY torn_a_ccnew ON {schema()}.torn (a)")
        assert not index(direct, "torn_a_ccnew").is_valid
        direct.run(direct.store.rebuild_indexes())
        assert index(direct, "torn_a_ccnew") is None
    finally:
        sql(f"DROP TABLE {schema()}.torn")


def test_indexes_are_in_the_hands_of_one_at_a_time(direct, other):
    key = f'tessera "{schema()}"'
    other.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (key,))
    with pytest.raises(StoreBusy, match="somebody else is changing the tables"):
        direct.run(direct.store.rebuild_indexes())


# What an operator sees --------------------------------------------------------------------------------------


def test_tables_are_told_with_their_dead_rows(direct):
    sql(f"CREATE TABLE {schema()}.worn AS SELECT n FROM generate_series(1, 1000) n")
    try:
        sql(f"ANALYZE {schema()}.worn")
        condition = direct.run(direct.store.condition())
        worn = next(one for one in condition.tables if one.name == "worn")
        assert worn.size_bytes > 0
        assert worn.vacuumed_seconds_ago == -1
        assert {"job", "done_never", "count_delta"} <= {one.name for one in condition.tables}
        direct.do(add("a"))
        assert direct.run(direct.store.condition()).unfolded == 1
    finally:
        sql(f"DROP TABLE {schema()}.worn")


def test_who_holds_dead_rows_back_is_named(direct, other):
    """FM-2: one forgotten transaction anywhere in the server slows every queue."""
    other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    other.execute(f"SELECT * FROM {schema()}.meta")
    with psycopg.connect(schemas.direct_url(), autocommit=True) as connection:
        for _ in range(50):
            connection.execute(f"UPDATE {schema()}.meta SET policy = policy")
    oldest = direct.run(direct.store.condition()).oldest
    assert oldest is not None
    # Somebody else's may be older still, on a server that others use.
    if oldest.transactions <= 60:
        assert (oldest.what, oldest.pid) == ("session", other.info.backend_pid)
        assert "tessera-test-other" in oldest.name
        assert oldest.query.startswith("SELECT * FROM")
    assert oldest.seconds >= 0


def test_connections_are_reckoned_up(direct):
    found = direct.run(direct.store.condition()).connections
    assert (found.blocking, found.worker) == (5, 13)
    assert 0 < found.used <= found.allowed


# A user who may not change tables ---------------------------------------------------------------------------


@pytest.fixture
def workers_url() -> Iterator[str]:
    """The URL of a user with the rights that the manual asks for, and no others."""
    role = f"tessera_test_role_{os.getpid()}"
    sql(
        f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema()} TO {role};"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema()} TO {role}"
    )
    url, _, _ = schemas.direct_url().partition("?")
    yield f"{url}?options=-crole%3D{role}"
    sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_user_who_may_not_change_tables_works_and_folds_and_leaves_the_partitions(direct, workers_url):
    """Rows then lie in ``done_other`` and go one by one."""
    server = Server(workers_url, schema=schema(), clock=direct.clock)
    store = PostgresStore(server, blocking=True)
    worker = Rig(store, blocking=True, clock=direct.clock)
    try:
        worker.run(store.open())
        worker.start("a", keep=Keep(completed=1_000), events=EventLevel.ODD, tags=("red",))
        worker.move("a", State.COMPLETED)
        with pytest.raises(StoreError, match="may not do this: permission denied"):
            worker.run(store.maintain())
        assert rows("count_delta") == 0
        assert worker.run(store.condition()).tables
        worker.advance(2_000)
        sweep(worker)
        assert worker.counts() == {}
    finally:
        worker.end()
        server.close()
