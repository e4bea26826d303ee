"""What the driver raises becomes one of our errors; nothing is reported as failed that may have happened."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from typing import ClassVar

import pytest

from tessera.model.changes import Done
from tessera.model.errors import (
    InvalidArgument,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from tessera.model.queries import Filter, Page
from tessera.store.protocol import run_blocking
from tessera.store.sqlite import SqliteFile, connection
from tests.store.sqlite.rig import Handle, adding, completing


class Faulty(sqlite3.Connection):
    """Raises at the statements that a test names."""

    faults: ClassVar[dict[str, int]] = {}
    """Statement -> the SQLite error code it fails with, once."""

    def execute(self, sql, *values):
        code = self.faults.pop(sql, None)
        if code is not None:
            error = sqlite3.OperationalError(f"planned: {sql}")
            error.sqlite_errorcode = code
            raise error
        return super().execute(sql, *values)


@pytest.fixture
def faulty(monkeypatch, open_handle) -> Handle:
    def connect(path: str, busy_timeout_ms: int, *, create: bool) -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Faulty)

    monkeypatch.setattr(connection, "_connect", connect)
    monkeypatch.setattr(Faulty, "faults", {})
    return open_handle()


@pytest.mark.parametrize("path", ["", ":memory:", "file::memory:?cache=shared"])
def test_a_database_that_is_no_file_is_refused(path):
    with pytest.raises(InvalidArgument, match="use memory://"):
        SqliteFile(path)


def test_a_synchronous_that_does_not_exist_is_refused(path):
    with pytest.raises(InvalidArgument, match="synchronous"):
        SqliteFile(path, synchronous="off")


@pytest.mark.parametrize("synchronous,number", [("full", 2), ("normal", 1)])
def test_commits_reach_the_disk_as_the_setting_says(open_handle, synchronous, number):
    handle = open_handle(synchronous=synchronous)
    writer = handle.file.life().writer._open()
    assert writer.execute("PRAGMA synchronous").fetchone() == (number,)
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_folder_that_is_not_there_is_unavailable(tmp_path):
    with pytest.raises(StoreUnavailable):
        Handle(SqliteFile(str(tmp_path / "absent" / "work.db")))


def test_a_file_of_another_kind_is_unavailable_and_left_alone(path):
    with open(path, "w") as file:
        file.write("no database\n" * 1_000)
    with pytest.raises(StoreUnavailable, match="not a database"):
        Handle(SqliteFile(path, ballast_bytes=0))
    with open(path) as file:
        assert file.read() == "no database\n" * 1_000


def test_a_writer_that_holds_the_file_too_long_makes_others_busy_and_nothing_is_written(path, open_handle):
    handle = open_handle(busy_timeout_ms=50)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        handle.add("a")
    assert handle.names() == []  # readers are not kept out
    other.execute("ROLLBACK")
    other.close()
    assert handle.add("a") == [Done()]


def test_a_short_wait_for_another_writer_is_waited_out(path, handle):
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.1, lambda: other.execute("ROLLBACK"))
    timer.start()
    assert handle.add("a") == [Done()]
    timer.join()
    other.close()


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT])
def test_a_commit_that_fails_on_the_way_to_the_disk_has_an_unknown_outcome(faulty, code):
    Faulty.faults["COMMIT"] = code
    with pytest.raises(OutcomeUnknown):
        faulty.add("a")
    assert faulty.add("b") == [Done()]  # over a connection opened anew
    assert faulty.verify() == []


def test_nothing_is_known_of_any_verb_whose_commit_failed(faulty):
    Faulty.faults["COMMIT"] = sqlite3.SQLITE_IOERR_FSYNC
    line = faulty.file.life().line
    assert line.hold(1)
    errors = []

    def add(name: str) -> None:
        try:
            faulty.add(name)
        except OutcomeUnknown as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    while len(line._waiting) < 3:
        threading.Event().wait(0.005)
    line.resume()
    for thread in threads:
        thread.join(10)
    assert len(errors) == 3


@pytest.mark.parametrize("is_committed", [False, True])
def test_ctrl_c_at_the_commit_leaves_all_or_nothing_and_the_next_verb_works(
    faulty, monkeypatch, is_committed
):
    def interrupted(self, sql, *values):
        if sql != "COMMIT":
            return sqlite3.Connection.execute(self, sql, *values)
        if is_committed:
            sqlite3.Connection.execute(self, sql, *values)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Faulty, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            faulty.add("a")
    assert faulty.names() == ["a"] * is_committed
    assert faulty.add("b") == [Done()]
    assert faulty.verify() == []


def test_a_begin_that_fails_is_known_to_have_written_nothing(faulty):
    Faulty.faults["BEGIN IMMEDIATE"] = sqlite3.SQLITE_IOERR
    with pytest.raises(StoreUnavailable):
        faulty.add("a")
    assert faulty.names() == []
    assert faulty.add("a") == [Done()]


def test_a_rollback_that_fails_gives_the_connection_up(faulty):
    Faulty.faults.update({"COMMIT": sqlite3.SQLITE_BUSY, "ROLLBACK": sqlite3.SQLITE_IOERR})
    with pytest.raises(StoreBusy):
        faulty.add("a")
    assert faulty.names() == []
    assert faulty.add("a") == [Done()]


def test_a_question_that_fails_is_translated_and_the_next_one_answered(faulty):
    Faulty.faults["BEGIN"] = sqlite3.SQLITE_IOERR
    with pytest.raises(StoreUnavailable):
        faulty.names()
    assert faulty.names() == []


def test_a_statement_that_sqlite_refuses_is_a_store_error():
    assert type(connection.translated(sqlite3.OperationalError("no such table: x"))) is StoreError


def test_an_error_that_is_not_the_drivers_stays_as_it_is():
    error = ValueError("x")
    assert connection.translated(error) is error


def test_a_file_that_was_removed_takes_no_more_jobs_and_is_not_made_anew(path, handle):
    handle.add("a")
    for name in (path, path + "-wal", path + "-shm"):
        os.unlink(name)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            handle.add("b")
        with pytest.raises(StoreUnavailable):
            handle.names()
    assert not os.path.exists(path)


def test_a_backup_put_in_the_place_of_the_file_is_used_from_then_on(path, tmp_path, handle):
    handle.add("a")
    backup = sqlite3.connect(tmp_path / "backup.db")
    source = sqlite3.connect(path)
    source.backup(backup)
    source.close()
    backup.close()
    handle.add("b")
    _replace(path, tmp_path / "backup.db")
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        handle.add("c")
    assert handle.names() == ["a"]
    assert handle.add("c") == [Done()]
    assert handle.names() == ["c", "a"]


def test_another_store_in_the_place_of_the_file_is_not_written_to(path, tmp_path, handle, open_handle):
    other = open_handle(path=str(tmp_path / "other.db"))
    other.add("o")
    other.close()
    _replace(path, tmp_path / "other.db")
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        handle.add("c")
    with pytest.raises(StoreUnavailable, match="another installation"):
        handle.add("c")


def _replace(path: str, by: os.PathLike) -> None:
    """As an operator restores a backup: the old file with its log goes, the other takes its name."""
    for name in (path + "-wal", path + "-shm"):
        os.unlink(name)
    os.replace(by, path)


def test_a_second_process_writes_between_two_of_our_transactions_and_is_seen(path, open_handle):
    one, two = open_handle(), open_handle()
    one.add("a", "b")
    [a] = one.claim().jobs
    two.complete([a])
    assert one.commit(adding("c")) == [Done()]
    [answer] = one.commit(completing([a]))
    assert answer == Done(replayed=True)
    assert one.verify() == []


@pytest.mark.parametrize(
    "setting", ["rest = x'fffe'", "rest = x'01'", "rest = x''", "queue = CAST(x'61ad' AS TEXT)"]
)
def test_a_row_that_nobody_wrote_so_is_a_typed_error(open_handle, path, setting):
    handle = open_handle()
    handle.add("a")
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"UPDATE tessera_job SET {setting}")
        other.commit()
    with pytest.raises(StoreError):
        run_blocking(handle.store.find_jobs(Filter(), Page()))
    with pytest.raises(StoreError):
        handle.verify()
