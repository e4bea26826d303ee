"""A commit inside the caller's own transaction: true with his COMMIT, gone with his ROLLBACK, and nothing
of his is touched.
"""

from __future__ import annotations

import asyncio
import inspect
import shutil
import sqlite3
from typing import Any

import pytest

from tessera.model.changes import (
    AddJob,
    Done,
    EditJob,
    Edits,
    Group,
    LogEvent,
    PublishBlob,
    PutRecord,
    Refused,
)
from tessera.model.errors import ForeignStore, NotFound, NotInTransaction, StoreBusy, StoreFull, Unsupported
from tessera.model.queries import Filter, Page
from tessera.model.states import State
from tessera.store.protocol import JoinsTransaction, Store, run_blocking
from tessera.store.sqlite import SqliteStore
from tessera.store.sqlite.joined import JoinedStore
from tests.store.sqlite.rig import Handle, adding, job_of, key_of, wanting


class Application:
    """A user with a table of his own in the same file."""

    def __init__(self, path: str, **options) -> None:
        self.connection = sqlite3.connect(path, **options)
        self.connection.execute("CREATE TABLE IF NOT EXISTS orders (name TEXT)")
        self.connection.commit()

    def begin(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")

    def order(self, name: str) -> None:
        self.connection.execute("INSERT INTO orders VALUES (?)", (name,))

    def orders(self) -> list[str]:
        return [row[0] for row in self.connection.execute("SELECT name FROM orders ORDER BY rowid")]


@pytest.fixture
def application(path, handle):
    application = Application(path)
    yield application
    application.connection.close()


def join(handle: Handle, application: Application) -> JoinedStore:
    return handle.store.joined(application.connection)


def test_the_store_says_that_it_joins(handle):
    assert isinstance(handle.store, JoinsTransaction)


def test_a_commit_of_the_caller_makes_order_and_job_true_together(handle, application):
    application.begin()
    application.order("o")
    assert run_blocking(join(handle, application).commit(adding("a"))) == [Done()]
    assert handle.names() == []
    application.connection.commit()
    assert (application.orders(), handle.names()) == (["o"], ["a"])
    assert handle.verify() == []


def test_a_rollback_of_the_caller_takes_the_job_along_and_leaves_a_committed_neighbour(handle, application):
    handle.add("control")
    application.begin()
    application.order("o")
    assert run_blocking(join(handle, application).commit(adding("a", "b"))) == [Done(), Done()]
    application.connection.rollback()
    assert (application.orders(), handle.names()) == ([], ["control"])
    assert handle.verify() == []


@pytest.mark.parametrize("isolation", [None, "", "IMMEDIATE"])
def test_every_way_of_the_module_to_begin_is_joined(handle, path, isolation):
    application = Application(path, isolation_level=isolation)
    if isolation is None:
        application.begin()
    application.order("o")  # the module begins by itself in the other two
    assert run_blocking(join(handle, application).commit(adding("a"))) == [Done()]
    assert application.connection.in_transaction
    application.connection.rollback()
    assert handle.names() == []
    application.order("p")
    if isolation is None:
        application.begin()
    assert run_blocking(join(handle, application).commit(adding("a"))) == [Done()]
    application.connection.commit()
    application.connection.close()
    assert handle.names() == ["a"]


if hasattr(sqlite3.Connection, "autocommit"):  # from Python 3.12 on

    def test_a_connection_with_autocommit_off_is_joined(handle, path):
        options: dict[str, Any] = {"autocommit": False}
        connection = sqlite3.connect(path, **options)
        assert run_blocking(handle.store.joined(connection).commit(adding("a"))) == [Done()]
        connection.commit()
        connection.close()
        assert handle.names() == ["a"]


def test_a_connection_without_a_transaction_is_refused(handle, application):
    with pytest.raises(NotInTransaction, match="BEGIN IMMEDIATE"):
        join(handle, application)


def test_a_view_is_worth_nothing_after_its_transaction(handle, application):
    application.begin()
    view = join(handle, application)
    application.connection.commit()
    with pytest.raises(NotInTransaction):
        run_blocking(view.commit(adding("a")))


@pytest.mark.parametrize("place", [":memory:", "other.db"])
def test_a_connection_to_another_database_is_refused(handle, tmp_path, place):
    other = Application(place if place == ":memory:" else str(tmp_path / place))
    other.begin()
    with pytest.raises(ForeignStore):
        join(handle, other)
    other.connection.close()


def test_a_copy_of_the_file_is_another_database(handle, path, tmp_path):
    handle.close()
    copy = str(tmp_path / "copy.db")
    shutil.copy(path, copy)
    run_blocking(handle.store.open())
    other = Application(copy)
    other.begin()
    with pytest.raises(ForeignStore, match=r"copy\.db"):
        join(handle, other)
    other.connection.close()


def test_another_name_of_the_same_file_is_the_same_database(handle, path, tmp_path):
    (tmp_path / "link.db").symlink_to(path)
    application = Application(str(tmp_path / "link.db"))
    application.begin()
    assert run_blocking(join(handle, application).commit(adding("a"))) == [Done()]
    application.connection.commit()
    application.connection.close()
    assert handle.names() == ["a"]


@pytest.mark.parametrize("thing", [None, "sqlite:///work.db", object()])
def test_what_is_no_sqlite3_connection_is_unsupported(handle, thing):
    with pytest.raises(Unsupported, match=type(thing).__qualname__):
        handle.store.joined(thing)


def test_factories_of_the_caller_are_neither_used_nor_lost(handle, application):
    def row_factory(cursor, row):
        raise AssertionError("our rows are not the caller's")

    def text_factory(data: bytes) -> str:
        raise AssertionError("our texts are not the caller's")

    application.begin()
    application.connection.row_factory = row_factory
    application.connection.text_factory = text_factory
    view = join(handle, application)
    assert run_blocking(view.commit(adding("a"))) == [Done()]
    [job] = run_blocking(view.get_jobs([key_of("a")]))
    assert job is not None
    assert job.queue == "q"
    assert application.connection.row_factory is row_factory
    assert application.connection.text_factory is text_factory
    application.connection.rollback()


def test_what_fails_in_our_half_leaves_the_callers_half_as_it_was(handle, application):
    application.begin()
    application.order("o")
    view = join(handle, application)
    run_blocking(view.commit(adding("a")))
    too_big = Group(changes=(AddJob(job_of("b", failures=1)), EditJob(key_of("b"), Edits(attempt=2**70))))
    with pytest.raises(OverflowError):
        run_blocking(view.commit([*adding("c"), too_big]))
    assert application.connection.in_transaction
    assert run_blocking(view.commit(adding("d"))) == [Done()]
    application.connection.commit()
    assert (application.orders(), handle.names()) == (["o"], ["d", "a"])
    assert handle.verify() == []


def test_savepoints_of_the_caller_enclose_ours(handle, application):
    application.begin()
    view = join(handle, application)
    run_blocking(view.commit(adding("a")))
    application.connection.execute("SAVEPOINT mine")
    run_blocking(view.commit(adding("b")))
    application.connection.execute("ROLLBACK TO mine")
    run_blocking(view.commit(adding("c")))
    application.connection.commit()
    assert handle.names() == ["c", "a"]
    assert handle.verify() == []


def test_a_refused_group_changes_nothing_and_its_neighbour_is_done(handle, application):
    handle.add("a")
    application.begin()
    view = join(handle, application)
    other = Group(changes=(AddJob(job_of("a", kind="other")),))
    first, second = run_blocking(view.commit([other, *adding("b")]))
    assert isinstance(first, Refused)
    assert second == Done()
    application.connection.commit()
    assert handle.names() == ["b", "a"]


def test_the_request_id_of_a_repeat_is_known_inside_the_transaction(handle, application):
    application.begin()
    view = join(handle, application)
    first = run_blocking(view.commit(adding("a"), request_id="r"))
    assert run_blocking(view.commit(adding("never"), request_id="r")) == first
    application.connection.commit()
    assert handle.names() == ["a"]


def test_a_deferred_transaction_that_comes_too_late_is_busy(handle, application):
    application.connection.execute("BEGIN")
    application.orders()  # its snapshot stands from here on
    handle.add("a")
    with pytest.raises(StoreBusy):
        run_blocking(join(handle, application).commit(adding("b")))
    application.connection.rollback()


def test_while_the_disk_is_full_a_joined_enqueue_is_refused_too(path, open_handle):
    handle = open_handle(ballast_bytes=4_096)
    application = Application(path)
    application.begin()
    view = join(handle, application)
    handle.file.ballast.give_up()
    with pytest.raises(StoreFull):
        run_blocking(view.commit(adding("a")))
    assert run_blocking(view.commit([Group(changes=(LogEvent("noted"),))])) == [Done()]
    application.connection.commit()
    application.connection.close()


@pytest.mark.parametrize("verb", ["claim", "stage", "migrate"])
def test_what_a_callers_transaction_is_no_place_for_is_refused(handle, application, verb):
    application.begin()
    arguments = {"claim": (wanting(),), "stage": ("u", 0, b"x"), "migrate": ()}[verb]
    with pytest.raises(Unsupported, match=verb):
        run_blocking(getattr(join(handle, application), verb)(*arguments))
    application.connection.rollback()


def test_questions_see_what_the_transaction_wrote(handle, application):
    run_blocking(handle.store.stage("u", 0, b"abc"))
    handle.commit([Group(changes=(PublishBlob("u", b"s" * 32, 3),))])
    application.begin()
    view = join(handle, application)
    run_blocking(view.open())
    record = Group(changes=(PutRecord("notes", "one", b"1"), LogEvent("noted", job=key_of("a"))))
    run_blocking(view.commit([*adding("a"), record]))

    async def chunks(digest: bytes) -> list[bytes]:
        return [chunk async for chunk in view.blob(digest)]

    assert [job.id for job in run_blocking(view.find_jobs(Filter(), Page())).jobs] == [key_of("a")]
    assert run_blocking(view.count_jobs()) == {("q", State.AVAILABLE): 1}
    assert run_blocking(view.due(1)).lapsed == ()
    assert run_blocking(view.edges(key_of("a"))) == []
    assert run_blocking(view.counters(["none"])) == []
    assert [found and found.value for found in run_blocking(view.get([("notes", "one")]))] == [b"1"]
    assert [found.key for found in run_blocking(view.scan("notes"))] == ["one"]
    assert [found.version for found in run_blocking(view.history("notes", "one"))] == [1]
    assert [event.what for event in run_blocking(view.events())] == ["noted"]
    assert run_blocking(view.policy_version()) == 0
    assert run_blocking(view.schema()) == run_blocking(handle.store.schema())
    assert run_blocking(view.verify()) == []
    assert run_blocking(chunks(b"s" * 32)) == [b"abc"]
    with pytest.raises(NotFound):
        run_blocking(chunks(b"t" * 32))
    assert view.installation == handle.store.installation
    run_blocking(view.close())
    application.connection.rollback()
    assert handle.names() == []


def test_the_view_of_an_async_store_is_blocking(handle, application):
    async def main() -> None:
        store = SqliteStore(handle.file, blocking=False)
        await store.open()
        application.begin()
        assert run_blocking(store.joined(application.connection).commit(adding("a"))) == [Done()]
        application.connection.commit()
        await store.close()

    asyncio.run(main())
    assert handle.names() == ["a"]


def test_a_joined_commit_wakes_whoever_waits_once_it_is_true(handle, application):
    assert run_blocking(handle.store.wait(10))  # the application made its table
    application.begin()
    run_blocking(join(handle, application).commit(adding("a")))
    assert not run_blocking(handle.store.wait(0.05))
    application.connection.commit()
    assert run_blocking(handle.store.wait(10))


def test_a_job_that_a_joined_transaction_changed_is_not_remembered_as_it_was(handle, application):
    handle.add("a")
    [job] = handle.claim().jobs
    application.begin()
    edit = Group(changes=(EditJob(job.id, Edits(cancel_requested=True)),))
    assert run_blocking(join(handle, application).commit([edit])) == [Done()]
    application.connection.commit()
    handle.commit([Group(changes=(EditJob(job.id, Edits(priority=3)),))])
    found = handle.job("a")
    assert (found.cancel_requested, found.priority) == (True, 3)


def test_the_view_has_every_verb_of_a_store():
    verbs = {
        name for name, value in vars(Store).items() if inspect.isfunction(value) and not name.startswith("_")
    }
    assert {verb for verb in verbs if not hasattr(JoinedStore, verb)} == set()


def test_a_connection_that_was_closed_is_refused(handle, application):
    application.begin()
    application.connection.close()
    with pytest.raises(NotInTransaction, match="closed"):
        join(handle, application)
