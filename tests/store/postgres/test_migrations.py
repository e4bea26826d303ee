"""Schema steps: made whole, taken beside the work, back, contracted, adopted, raced for, refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from tessera.model.errors import (
    InvalidArgument,
    SchemaTooNew,
    SchemaTooOld,
    StoreBusy,
    StoreError,
)
from tessera.model.policy import Policy
from tessera.model.queries import ClaimRequest, Want
from tessera.store.postgres import adopting, migrations
from tessera.store.postgres.migrations import Schema
from tessera.store.postgres.server import Server
from tessera.store.postgres.store import PostgresStore
from tessera.store.sql import schemafiles
from tests.servers.run import pgbouncer_url
from tests.servers.schemas import direct_url
from tests.store.postgres.schema_rig import RELEASED, Place, next_steps, one_more
from tests.store.sqlite.rig import child, output_of, tell

pytestmark = [pytest.mark.store("postgresql"), pytest.mark.capability("F22")]

N = len(RELEASED)
NOTE = f"{N + 1:04}_note"


@pytest.fixture(params=["blocking", "async", "pgbouncer"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    url = pgbouncer_url() if request.param == "pgbouncer" else ""
    place = Place("migrations", blocking=request.param != "async", url=url)
    yield place
    place.end()


@pytest.fixture
def direct() -> Iterator[Place]:
    place = Place("migrations", blocking=True)
    yield place
    place.end()


@pytest.fixture
def other(direct: Place) -> Iterator[psycopg.Connection]:
    """Somebody else's session."""
    with psycopg.connect(direct_url()) as connection:
        yield connection


def made(place: Place, steps=RELEASED) -> Schema:
    schema = place.schema(steps)
    place.run(schema.open())
    return schema


# First use --------------------------------------------------------------------------------------------------


def test_an_empty_database_gets_the_newest_schema_on_first_use(place):
    schema = place.schema()
    assert place.run(schema.version()) == 0
    installation = place.run(schema.open())
    assert len(installation) == 16
    assert (place.run(schema.version()), place.run(schema.form())) == (N, N)
    assert place.run(place.schema().open()) == installation
    assert place.run(schema.migrate(None)) == []


def test_processes_that_create_one_schema_at_once_agree_on_one_installation(direct):
    source = (
        "import sys; from tessera.store.postgres.server import Server\n"
        "from tessera.store.postgres.migrations import Schema\n"
        "from tessera.store.protocol import run_blocking\n"
        "server = Server(sys.argv[1], schema=sys.argv[2]); driver = server.driver(blocking=True)\n"
        "sys.stdin.readline()\n"
        "print(run_blocking(Schema(driver, sys.argv[2], blocking=True).open()).hex()); server.close()"
    )
    processes = [child(source, direct.url, direct.name) for _ in range(8)]
    for process in processes:
        tell(process, "go")
    assert len({output_of(process) for process in processes}) == 1


def test_a_schema_of_the_applications_own_keeps_its_tables(direct):
    direct.sql.execute(f"CREATE SCHEMA {direct.name}; CREATE TABLE {direct.name}.customer (name text)")
    made(direct)
    assert "table customer" in direct.contents()


def test_a_name_that_needs_quotes_is_a_name(direct):
    direct.name = 'tessera_test_Odd "name.$1'
    direct.sql.execute('DROP SCHEMA IF EXISTS "tessera_test_Odd ""name.$1" CASCADE')
    try:
        schema = made(direct)
        direct.run(direct.schema(next_steps()).migrate(None))
        direct.run(direct.schema(next_steps()).contract())
        direct.sql.execute('TRUNCATE "tessera_test_Odd ""name.$1".migration')
        direct.run(adopting.adopt(direct.schema(next_steps())))
        assert direct.run(schema.version()) == N + 1
    finally:
        direct.sql.execute('DROP SCHEMA "tessera_test_Odd ""name.$1" CASCADE')
        direct.name = "tessera_test_none"


# Two releases side by side ----------------------------------------------------------------------------------


def test_newer_code_waits_for_migrate_and_older_code_works_until_contract(place):
    """INV-32."""
    older, newer = made(place), place.schema(next_steps())
    with pytest.raises(SchemaTooOld, match=rf"version {N}, .* needs {N + 1}; run: tessera migrate"):
        place.run(newer.open())
    assert place.run(newer.migrate(None)) == [NOTE]
    assert place.run(older.open()) == place.run(newer.open())
    assert (place.run(newer.version()), place.run(newer.form())) == (N + 1, N)
    assert place.run(older.migrate(None)) == []
    assert place.run(newer.contract()) == [f"{NOTE} (contract)"]
    assert place.run(newer.form()) == N + 1
    assert place.run(newer.contract()) == []
    with pytest.raises(SchemaTooNew, match=rf"version {N + 1} and this Tessera knows {N}; upgrade"):
        place.run(older.open())
    with pytest.raises(SchemaTooNew):
        place.run(older.migrate(None))


def test_older_code_takes_no_more_work_soon_after_the_tables_were_contracted(direct, monkeypatch):
    """FM-27: also where it had opened them before."""
    made(direct)
    server = Server(direct.url, schema=direct.name)
    store = PostgresStore(server, blocking=True)
    try:
        direct.run(store.open())
        newer = direct.schema(next_steps())
        direct.run(newer.migrate(None))
        monkeypatch.setattr(migrations, "LOOK_SECONDS", 0.0)
        request = ClaimRequest("w", (Want("q", 1),), 1, 1_000, Policy())
        assert direct.run(store.claim(request)).jobs == ()
        direct.run(newer.contract())
        for _ in range(2):
            with pytest.raises(SchemaTooNew, match="upgrade Tessera"):
                direct.run(store.claim(request))
    finally:
        server.close()


def test_older_code_neither_contracts_nor_takes_back_what_it_does_not_know(direct):
    older, newer = made(direct), direct.schema(next_steps())
    direct.run(newer.migrate(None))
    with pytest.raises(SchemaTooNew, match="contract with the newer one"):
        direct.run(older.contract())
    with pytest.raises(SchemaTooNew, match="the way back"):
        direct.run(older.migrate(0))


@pytest.mark.parametrize("contracted", [False, True])
def test_up_and_down_and_up_again_ends_where_it_began(place, contracted):
    released = made(place)
    before = place.contents()
    newer = place.schema(next_steps())
    seen = []
    for _ in range(2):
        place.run(newer.migrate(None))
        if contracted:
            place.run(newer.contract())
        seen.append(place.contents())
        assert place.run(newer.migrate(N)) == [f"{NOTE} (back)"]
        assert place.contents() == before
        place.run(released.open())
    assert seen[0] == seen[1] != before


STEPS_BELOW = """-- pre
ALTER TABLE {schema}.note ADD COLUMN at bigint;
-- apart
-- concurrently
CREATE INDEX note_at ON {schema}.note (at);
-- post
ALTER TABLE {schema}.note ALTER COLUMN at SET DEFAULT 0;
-- down
ALTER TABLE IF EXISTS {schema}.note DROP COLUMN IF EXISTS at;
"""


def test_a_migrated_schema_is_a_fresh_one_whichever_way_it_came(direct):
    [step] = one_more("later", STEPS_BELOW)[-1:]
    steps = (*next_steps(), step._replace(version=N + 2))
    made(direct, steps)
    fresh = direct.contents()
    direct.drop()
    made(direct)
    for newest in range(N + 1, N + 3):
        schema = direct.schema(steps[:newest])
        direct.run(schema.migrate(None))
        direct.run(schema.contract())
    assert direct.contents() == fresh
    direct.drop()
    made(direct)
    direct.run(direct.schema(steps).migrate(None))
    direct.run(direct.schema(steps).contract())
    assert direct.contents() == fresh


def test_all_the_way_down_leaves_only_the_books_and_the_way_up_begins_anew(place):
    schema = made(place)
    first = place.run(schema.open())
    assert place.run(schema.migrate(0)) == [f"{step.name} (back)" for step in reversed(RELEASED)]
    assert place.contents() == {}
    assert place.run(schema.version()) == 0
    assert place.run(schema.migrate(None)) == [step.name for step in RELEASED]
    assert place.run(schema.open()) != first


def test_a_dry_run_names_the_steps_and_takes_none(place):
    made(place)
    before = place.contents()
    newer = place.schema(next_steps())
    assert place.run(newer.migrate(None, dry_run=True)) == [NOTE]
    assert place.run(newer.contract(dry_run=True)) == []
    place.run(newer.migrate(None))
    assert place.run(newer.contract(dry_run=True)) == [f"{NOTE} (contract)"]
    assert place.run(newer.migrate(0, dry_run=True))[0] == f"{NOTE} (back)"
    place.run(newer.migrate(N))
    assert place.contents() == before


def test_a_version_that_does_not_exist_is_refused(direct):
    with pytest.raises(InvalidArgument, match=f"no schema version {N + 7}"):
        direct.run(made(direct).migrate(N + 7))


def test_an_applied_step_that_was_edited_is_told_and_not_built_upon(direct):
    schema = made(direct)
    schema.steps = (schema.steps[0]._replace(checksum=b"other"), *next_steps()[1:])
    assert any("0001_core is not what was applied" in line for line in direct.run(schema.differences()))
    for work in (schema.migrate(None), schema.contract(), schema.migrate(0), adopting.adopt(schema)):
        with pytest.raises(StoreError, match="0001_core is not what was applied"):
            direct.run(work)


# Locks ------------------------------------------------------------------------------------------------------


def test_a_step_gives_way_to_a_long_transaction_and_says_so(direct, other, monkeypatch):
    """T-rolling: who waits for a lock is in front of everybody who comes after it."""
    made(direct)
    before = direct.contents()
    monkeypatch.setattr(migrations, "ATTEMPTS", 3)
    other.execute(f"SELECT * FROM {direct.name}.job")
    with pytest.raises(StoreBusy, match=r"within 200 ms, 3 times.*tessera doctor"):
        direct.run(direct.schema(next_steps()).migrate(None))
    assert direct.contents() == before


def test_a_step_goes_on_when_the_lock_is_free(direct, other, monkeypatch):
    made(direct)
    other.execute(f"SELECT * FROM {direct.name}.job")
    rests = []

    async def rest(self, seconds):
        rests.append(seconds)
        other.rollback()

    monkeypatch.setattr(Schema, "_rest", rest)
    assert direct.run(direct.schema(next_steps()).migrate(None)) == [NOTE]
    assert len(rests) == 1


SLOW = """-- pre
LOCK TABLE {schema}.job IN ACCESS EXCLUSIVE MODE;
DO $$ BEGIN PERFORM pg_sleep(0.15); END $$;
DO $$ BEGIN PERFORM pg_sleep(0.15); END $$;
CREATE TABLE {schema}.slow (a int);
-- down
DROP TABLE IF EXISTS {schema}.slow;
"""


def test_a_piece_holds_its_locks_no_longer_than_it_may_wait_for_them(direct, monkeypatch):
    """T-rolling: all statements of a piece together, not each by itself."""
    made(direct)
    monkeypatch.setattr(migrations, "ATTEMPTS", 2)
    with pytest.raises(StoreBusy, match="2 times"):
        direct.run(direct.schema(one_more("slow", SLOW)).migrate(None))
    assert "table slow" not in direct.contents()


BROKEN = """-- pre
CREATE TABLE {schema}.first (a int);
-- apart
CREATE TABLE {schema}.second (a int);
CREATE TABLE {schema}.job (a int);
-- down
DROP TABLE IF EXISTS {schema}.first, {schema}.second, {schema}.third;
"""


def test_what_was_done_before_a_failure_stays_and_is_not_done_again(place):
    older = made(place)
    before = place.contents()
    broken = one_more("broken", BROKEN)
    schema = place.schema(broken)
    for _ in range(2):
        with pytest.raises(StoreError, match="already exists"):
            place.run(schema.migrate(None))
        found = place.contents()
        assert ("table first" in found, "table second" in found) == (True, False)
    assert place.run(schema.version()) == N
    place.run(older.open())
    with pytest.raises(SchemaTooOld):
        place.run(schema.open())
    mended = broken[-1]._replace(pre=one_more("broken", BROKEN.replace("job", "third"))[-1].pre)
    schema.steps = (*RELEASED, mended)
    assert place.run(schema.migrate(None)) == [mended.name]
    assert place.run(schema.migrate(N)) == [f"{mended.name} (back)"]
    assert place.contents() == before


def test_a_step_that_failed_half_way_can_be_taken_back(direct):
    made(direct)
    before = direct.contents()
    schema = direct.schema(one_more("broken", BROKEN))
    with pytest.raises(StoreError, match="already exists"):
        direct.run(schema.migrate(None))
    assert direct.run(schema.migrate(N)) == [f"{N + 1:04}_broken (back)"]
    assert direct.contents() == before


# Indexes built beside the work ------------------------------------------------------------------------------


def test_an_index_that_an_attempt_left_invalid_is_dropped_and_made_again(place):
    made(place)
    newer = place.schema(next_steps())
    place.run(newer.migrate(None))
    whole = place.contents()
    # The step as it is after its first piece, and what an index build that failed leaves behind.
    place.sql.execute(
        f"UPDATE {place.name}.migration SET pre = 1, applied_at = NULL WHERE version = {N + 1};"
        f"DROP INDEX {place.name}.job_note; DROP TABLE {place.name}.note; DROP FUNCTION {place.name}.noted"
    )
    place.sql.execute(
        f"INSERT INTO {place.name}.gate (name) VALUES ('a'), ('b');"
        f"CREATE FUNCTION {place.name}.same(text) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1'"
    )
    with pytest.raises(psycopg.errors.UniqueViolation):
        place.sql.execute(
            f"CREATE UNIQUE INDEX CONCURRENTLY job_note ON {place.name}.gate ({place.name}.same(name))"
        )
    assert place.contents()["index job_note"].endswith("invalid")
    assert place.run(newer.migrate(None)) == [NOTE]
    found = place.contents()
    assert found["index job_note"] == whole["index job_note"]
    assert "CONCURRENTLY" not in found["index job_note"]


def test_an_index_is_built_while_others_write(direct, other):
    """It waits for open transactions, and they do not wait for it."""
    made(direct)
    newer = direct.schema(next_steps())
    other.execute(
        f"INSERT INTO {direct.name}.slot (key, owner, expires_at) VALUES ('k', gen_random_uuid(), 0)"
    )
    assert direct.run(newer.migrate(None)) == [NOTE]
    other.commit()


def test_many_that_migrate_at_once_take_each_step_once_and_none_waits_for_ever(direct):
    """A session that waited inside the server for its turn would stop the index that is being built."""
    made(direct)
    schemas = [direct.schema(next_steps()) for _ in range(6)]
    taken: list[str] = []
    gate = threading.Barrier(len(schemas))

    def migrate(schema: Schema) -> None:
        gate.wait(20)
        taken.extend(direct.run(schema.migrate(None)))

    threads = [threading.Thread(target=migrate, args=(schema,)) for schema in schemas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not any(thread.is_alive() for thread in threads)
    assert taken == [NOTE]
    assert not [line for line in direct.contents().values() if line.endswith("invalid")]


def test_one_connection_is_not_enough_for_an_index_and_that_is_said(direct):
    made(direct)
    with pytest.raises(StoreError, match="two connections; say connections=2"):
        direct.run(direct.schema(next_steps(), connections=1).migrate(None))


def test_who_is_locked_out_too_long_hears_it(direct, other, monkeypatch):
    made(direct)
    monkeypatch.setattr(migrations, "LOCK_SECONDS", 0.05)
    key = f'tessera "{direct.name}"'
    other.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (key,))
    with pytest.raises(StoreBusy, match="somebody else is changing the tables"):
        direct.run(direct.schema(next_steps()).migrate(None))


# By hand ----------------------------------------------------------------------------------------------------


def by_hand(place: Place, script: str) -> None:
    """As psql would run it: every statement by itself, so that an index can be built beside the work."""
    for statement in schemafiles._statements(script):
        place.sql.execute(statement)


def test_a_schema_made_by_hand_from_the_printed_sql_is_adopted(direct):
    made(direct, next_steps())
    fresh = direct.contents()
    direct.drop()
    schema = direct.schema(next_steps())
    by_hand(direct, direct.run(schema.script(None)))
    assert direct.run(schema.version()) == 0
    assert direct.run(adopting.adopt(schema)) == [step.name for step in next_steps()]
    assert direct.run(adopting.adopt(schema)) == []
    assert len(direct.run(schema.open())) == 16
    assert direct.run(schema.form()) == N + 1
    assert direct.contents() == fresh


def test_an_upgrade_by_hand_is_adopted_in_its_two_parts(direct):
    older = made(direct)
    schema = direct.schema(next_steps())
    script = direct.run(schema.script(None))
    assert "SET LOCAL lock_timeout = '200ms';" in script
    assert "CREATE INDEX CONCURRENTLY job_note" in script
    by_hand(direct, script)
    assert direct.run(adopting.adopt(schema)) == [NOTE]
    assert direct.run(older.open()) == direct.run(schema.open())
    assert direct.run(schema.form()) == N
    by_hand(direct, direct.run(schema.script(None, contract=True)))
    assert direct.run(adopting.adopt(schema)) == [NOTE]
    assert direct.run(schema.form()) == N + 1


@pytest.mark.parametrize(
    "damage, told",
    [
        ("DROP INDEX {s}.job_ready", "index job_ready is missing"),
        ("ALTER TABLE {s}.job DROP COLUMN rest", "column job.rest is missing"),
        ("ALTER TABLE {s}.job ALTER COLUMN np TYPE bigint", "column job.np is 'bigint not null"),
        ("DROP TABLE {s}.done_other", "table done_other is missing"),
        ("DROP FUNCTION {s}.reopen", r"function reopen\(\) is missing"),
        ("DROP INDEX {s}.job_ready; CREATE INDEX job_ready ON {s}.job (queue)", "index job_ready is 'CREATE"),
        ("ALTER TABLE {s}.slot DROP CONSTRAINT slot_pkey", "constraint slot.slot_pkey is missing"),
        ("DROP SCHEMA {s} CASCADE; CREATE SCHEMA {s}", "and [0-9]+ more"),
    ],
)
def test_a_schema_that_is_not_as_the_printed_sql_makes_it_is_not_adopted(direct, damage, told):
    schema = made(direct)
    direct.sql.execute(f"DROP TABLE {direct.name}.migration")
    direct.sql.execute(damage.replace("{s}", direct.name))
    with pytest.raises(StoreError, match=told):
        direct.run(adopting.adopt(schema))
    assert direct.run(schema.version()) == 0


def test_what_is_there_beside_is_somebodys_own(direct):
    schema = made(direct)
    direct.sql.execute(
        f"DROP TABLE {direct.name}.migration; CREATE TABLE {direct.name}.mine (a int);"
        f"CREATE INDEX job_mine ON {direct.name}.job (kind)"
    )
    assert direct.run(adopting.adopt(schema)) == [step.name for step in RELEASED]
