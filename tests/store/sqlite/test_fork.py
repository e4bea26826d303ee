"""A forked child opens connections of its own: the parent's are neither used nor closed there."""

from __future__ import annotations

import os
import sqlite3
import threading
import traceback
from collections.abc import Callable
from functools import partial

import pytest

from tessera.model.changes import Done
from tessera.store.sqlite import file as files
from tests.store.sqlite.rig import Handle

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def in_a_child(work: Callable[[], None]) -> None:
    """Run in a forked child, to a good end there."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the child ends here and says so
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def test_parent_and_child_go_on_with_the_same_handle(handle):
    handle.add("before")

    def work() -> None:
        assert handle.names() == ["before"]
        assert handle.add("child") == [Done()]
        [job] = handle.claim().jobs
        handle.complete([job])
        handle.close()

    in_a_child(work)
    assert handle.add("parent") == [Done()]
    assert sorted(handle.names()) == ["before", "child", "parent"]
    assert handle.verify() == []


def test_before_a_fork_every_connection_is_closed(handle):
    handle.add("a")
    handle.names()
    life = handle.file.life()
    in_a_child(lambda: None)
    assert life.writer._connection is None
    assert life.readers._idle == []
    assert handle.names() == ["a"]


def test_a_child_that_ends_leaves_the_parents_log_alone(path, handle):
    handle.add("a")
    in_a_child(lambda: handle.add("b"))
    assert os.path.exists(path + "-wal")
    check = sqlite3.connect(path)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


def test_a_child_does_without_what_could_not_be_closed_in_time(handle, monkeypatch):
    handle.add("a")
    life = handle.file.life()
    monkeypatch.setattr(files, "FORK_SECONDS", 0.05)
    assert life.line.hold(1)  # somebody writes for longer than a fork waits
    inherited = life.writer._connection

    def work() -> None:
        assert handle.add("child") == [Done()]
        assert handle.file.life() is not life
        assert handle.file.life().writer._connection is not inherited
        inherited.execute("SELECT 1")  # still open: closing it here could remove the parent's log

    in_a_child(work)
    life.line.resume()
    assert handle.add("parent") == [Done()]
    assert sorted(handle.names()) == ["a", "child", "parent"]
    assert handle.verify() == []


def test_a_fork_while_others_write_loses_nothing(handle):
    stop = threading.Event()
    added: list[str] = []

    def write() -> None:
        while not stop.is_set():
            name = f"w{len(added)}"
            handle.add(name)
            added.append(name)

    writer = threading.Thread(target=write)
    writer.start()
    for number in range(5):
        in_a_child(partial(_one_more, handle, number))
    stop.set()
    writer.join(10)
    assert {f"c{number}" for number in range(5)} | set(added) == _all_names(handle)
    assert handle.verify() == []


def _one_more(handle: Handle, number: int) -> None:
    assert handle.add(f"c{number}") == [Done()]


def _all_names(handle: Handle) -> set[str]:
    return {
        key.rstrip(b"\0").decode()
        for (key,) in handle.file.life().readers.read(
            lambda reads: reads.cursor.execute("SELECT id FROM tessera_job").fetchall()
        )
    }


def test_a_child_of_a_closed_file_stays_closed(handle):
    handle.close()
    in_a_child(lambda: None)
