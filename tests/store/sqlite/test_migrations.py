"""Schema steps: forwards, back, dry, raced for, and refused when they are not what was applied."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tessera.model.errors import InvalidArgument, SchemaTooNew, SchemaTooOld, StoreError
from tessera.store.protocol import run_blocking
from tessera.store.sql import schemafiles
from tessera.store.sqlite import SqliteFile, migrations
from tests.store.sqlite.rig import Handle, child, output_of, tell

ONE = migrations.our_steps()
TWO_SQL = """
-- A column and an index for a test; the semicolon of a text does not end a statement.
-- pre
ALTER TABLE tessera_slot ADD COLUMN note TEXT NOT NULL DEFAULT 'a;
b';
-- post
CREATE INDEX tessera_slot_note ON tessera_slot (note);
-- down
DROP INDEX tessera_slot_note;
ALTER TABLE tessera_slot DROP COLUMN note;
"""


@pytest.fixture
def steps(tmp_path) -> tuple[schemafiles.Step, ...]:
    """The released schema and one step more."""
    folder = tmp_path / "schema"
    folder.mkdir()
    released = Path(migrations.__file__).parent / "schema" / "0001_core.sql"
    (folder / released.name).write_text(released.read_text())
    (folder / "0002_note.sql").write_text(TWO_SQL)
    (folder / "README").write_text("no step")
    return schemafiles.steps_of(folder)


def schema_of(path: str) -> list[tuple]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
    finally:
        connection.close()


def test_an_empty_file_gets_the_newest_schema_on_first_use(handle):
    assert run_blocking(handle.store.schema()) == (len(ONE), len(ONE))
    assert run_blocking(handle.store.migrate()) == []


def test_a_file_of_the_application_keeps_its_tables(path, open_handle):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE customer (name TEXT)")
    connection.execute("INSERT INTO customer VALUES ('ada')")
    connection.commit()
    connection.close()
    handle = open_handle()
    handle.add("a")
    ours = {name for kind, name, _ in schema_of(path) if kind == "table" and not name.startswith("sqlite_")}
    assert {name for name in ours if not name.startswith("tessera_")} == {"customer"}
    assert handle.verify() == []


def test_an_older_schema_is_refused_and_the_message_says_what_to_do(path, handle, steps):
    with pytest.raises(SchemaTooOld, match=r"version 1 .* needs 2; run: tessera migrate"):
        Handle(SqliteFile(path, steps=steps))


def test_a_newer_schema_is_refused(path, open_handle, steps):
    open_handle(steps=steps)
    with pytest.raises(SchemaTooNew, match=r"version 2 .* knows 1"):
        Handle(SqliteFile(path))


def test_a_running_process_notices_that_another_migrated(path, handle, steps):
    connection = sqlite3.connect(path, isolation_level=None)
    migrations.migrate(connection, steps, None, 0)
    connection.close()
    with pytest.raises(SchemaTooNew):
        handle.add("a")
    assert handle.names() == []


def test_a_dry_run_names_the_steps_and_takes_none(path, open_handle, steps):
    handle = open_handle(steps=steps)
    before = schema_of(path)
    assert run_blocking(handle.store.migrate(0, dry_run=True)) == ["0002_note (back)", "0001_core (back)"]
    assert schema_of(path) == before


def test_up_one_keeps_the_rows_and_gives_the_schema_of_a_fresh_file(path, tmp_path, handle, steps):
    handle.add("a")
    handle.close()
    connection = sqlite3.connect(path, isolation_level=None)
    assert migrations.migrate(connection, steps, None, 0) == ["0002_note"]
    connection.close()
    migrated = Handle(SqliteFile(path, steps=steps, ballast_bytes=0))
    assert migrated.names() == ["a"]
    migrated.close()
    fresh = str(tmp_path / "fresh.db")
    Handle(SqliteFile(fresh, steps=steps, ballast_bytes=0)).close()
    assert schema_of(path) == schema_of(fresh)


def test_down_one_and_up_again_ends_where_it_began(path, open_handle, steps):
    handle = open_handle(steps=steps)
    handle.add("a")
    before = schema_of(path)
    assert run_blocking(handle.store.migrate(1)) == ["0002_note (back)"]
    with pytest.raises(SchemaTooOld):
        handle.add("b")
    assert run_blocking(handle.store.migrate()) == ["0002_note"]
    assert schema_of(path) == before
    assert handle.names() == ["a"]


def test_all_the_way_down_leaves_only_the_books(path, handle):
    assert run_blocking(handle.store.migrate(0)) == ["0001_core (back)"]
    assert [name for _, name, _ in schema_of(path)] == ["tessera_migration"]


def test_an_applied_step_that_was_edited_is_told_and_not_built_upon(path, handle, steps):
    edited = (steps[0]._replace(checksum=b"other"), steps[1])
    other = SqliteFile(path, steps=edited[:1], ballast_bytes=0)
    assert any("0001_core is not what was applied" in line for line in _verify(other))
    connection = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(StoreError, match="0001_core is not what was applied"):
        migrations.migrate(connection, edited, None, 0)
    connection.close()


def _verify(file: SqliteFile) -> list[str]:
    handle = Handle(file)
    try:
        return handle.verify()
    finally:
        handle.close()


def test_a_step_that_fails_leaves_nothing_of_itself(path, handle, steps):
    bad = (steps[0], steps[1]._replace(post=(schemafiles.Piece(("CREATE TABLE tessera_job (id)",)),)))
    before = schema_of(path)
    connection = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(sqlite3.OperationalError):
        migrations.migrate(connection, bad, None, 0)
    connection.close()
    assert schema_of(path) == before


def test_a_version_that_does_not_exist_is_refused(handle):
    with pytest.raises(InvalidArgument, match="no schema version 7"):
        run_blocking(handle.store.migrate(7))


def test_a_gap_in_the_numbers_is_refused(tmp_path):
    (tmp_path / "0002_late.sql").write_text("-- pre\n")
    with pytest.raises(InvalidArgument, match="not 1 to 1"):
        schemafiles.steps_of(tmp_path)


def test_a_statement_without_an_end_is_refused(tmp_path):
    (tmp_path / "0001_open.sql").write_text("-- pre\nCREATE TABLE a (b)\n")
    with pytest.raises(InvalidArgument, match="does not end"):
        schemafiles.steps_of(tmp_path)


def test_processes_that_create_one_file_at_once_agree_on_one_installation(path):
    source = (
        "import sys; from tests.store.sqlite.rig import *; sys.stdin.readline()\n"
        "handle = Handle(SqliteFile(sys.argv[1], ballast_bytes=0)); handle.add(sys.argv[2])\n"
        "print(handle.file.installation.hex()); handle.close()"
    )
    processes = [child(source, path, f"job{n}") for n in range(4)]
    for process in processes:
        tell(process, "go")
    assert len({output_of(process) for process in processes}) == 1
    handle = Handle(SqliteFile(path, ballast_bytes=0))
    assert sorted(handle.names()) == ["job0", "job1", "job2", "job3"]
    assert handle.verify() == []
    handle.close()
