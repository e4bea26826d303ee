"""A driver of either colour, behind plain calls, and a table of the test's own that it flies to."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tessera.store.postgres.driver import Query, Rows
from tessera.store.postgres.pool import PooledDriver
from tessera.store.postgres.server import Server
from tessera.store.protocol import run_blocking
from tests.servers.schemas import connection_of_this_process, direct_url

PATIENCE = 20.0
_numbers = count()


def until(holds: Callable[[], object], what: str) -> None:
    """Wait for something outside this process, which has no signal for it."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.005)


@cache
def schema() -> str:
    """A schema of this process, dropped at its end."""
    name = f"tessera_test_driver_{os.getpid()}"
    connection = connection_of_this_process()
    connection.execute(f"CREATE SCHEMA {name}")
    connection.execute(f"CREATE TABLE {name}.t (k bigint PRIMARY KEY, v text)")
    atexit.register(_drop, name)
    return name


def _drop(name: str) -> None:
    with psycopg.connect(direct_url(), autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {name} CASCADE")


class Flyer:
    """One driver, and a second connection that looks on."""

    def __init__(self, server: Server, *, blocking: bool) -> None:
        self.server = server
        self.blocking = blocking
        self.table = f"{schema()}.t"
        self._loop = None if blocking else asyncio.new_event_loop()
        self.driver: PooledDriver = server.driver(blocking=blocking)
        self.driver.open()
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="flyer")
        self.onlooker = psycopg.connect(direct_url(), autocommit=True)
        self.onlooker.execute(f"TRUNCATE {self.table}")

    # Calls --------------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            return run_blocking(work)
        return self._loop.run_until_complete(work)

    def flight(self, *queries: Query) -> list[Rows]:
        return self.run(self.driver.flight(queries))

    def meanwhile(self, work: Coroutine[Any, Any, Any], other: Callable[[], None]) -> Any:
        """What the work comes to, with something done beside it, from another thread."""
        beside = self._threads.submit(other)
        try:
            return self.run(work)
        finally:
            beside.result(PATIENCE)

    # Statements ---------------------------------------------------------------------------------------------

    def put(self, k: int, v: str = "") -> Query:
        return f"INSERT INTO {self.table} VALUES ($1, $2)", [k, v]

    def wait_for_key(self, key: int) -> Query:
        """Waits until nobody else has the advisory lock of that number."""
        return "SELECT pg_advisory_xact_lock($1)::text", [_of_this_process(key)]

    # Looking on ---------------------------------------------------------------------------------------------

    def keys(self) -> list[int]:
        return [k for (k,) in self.onlooker.execute(f"SELECT k FROM {self.table} ORDER BY k")]

    def my_backends(self) -> list[int]:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s ORDER BY pid"
        return [pid for (pid,) in self.onlooker.execute(query, (self.application,))]

    @property
    def application(self) -> str:
        return str(conninfo_to_dict(self.server.conninfo)["application_name"])

    def until_no_backend(self) -> None:
        until(lambda: not self.my_backends(), "the end of all connections")

    @contextmanager
    def other(self, url: str | None = None, options: str = "", **settings: Any) -> Iterator[Flyer]:
        """One of the same colour on a server object of its own."""
        url = url or direct_url() + (f"%20{quote(options)}" if options else "")
        other = Flyer(server_of(url, **settings), blocking=self.blocking)
        yield other
        other.close()

    def url_of(self, database: str) -> str:
        """The same server, another database."""
        return urlunsplit(urlsplit(direct_url())._replace(path=f"/{database}"))

    @contextmanager
    def key_held(self, key: int) -> Iterator[None]:
        """Nobody gets past ``wait_for_key``."""
        with psycopg.connect(direct_url(), autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", (_of_this_process(key),))
            yield

    def until_waiting(self, key: int) -> int:
        """The backend that waits for that key."""
        found: list[int] = []

        def look() -> bool:
            query = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
            with psycopg.connect(direct_url(), autocommit=True) as other:
                found[:] = [pid for (pid,) in other.execute(query, (_of_this_process(key),))]
            return bool(found)

        until(look, "a flight that waits")
        return found[0]

    def end_backend(self, pid: int) -> None:
        """End it, and wait until it is gone."""
        with psycopg.connect(direct_url(), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (pid,))
            query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
            until(lambda: other.execute(query, (pid,)).fetchone() is None, "the end of a backend")

    def close(self) -> None:
        self._threads.shutdown()
        self.run(self.driver.close())
        self.server.close()
        self.onlooker.close()
        if self._loop is not None:
            self._loop.close()


def _of_this_process(key: int) -> int:
    """Keys are the whole database's; tests run beside each other."""
    return os.getpid() * 100 + key


def server_of(url: str | None = None, **options: Any) -> Server:
    """A server object whose connections bear a name of their own."""
    url = url or direct_url()
    application = f"driver-test-{os.getpid()}-{next(_numbers)}"
    return Server(f"{url}{'&' if '?' in url else '?'}application_name={application}", **options)


def in_threads(many: int, work: Callable[[int], object]) -> None:
    """Run it in so many threads at once; the first error is raised."""
    ready = threading.Barrier(many)

    def begin(number: int) -> None:
        ready.wait(PATIENCE)
        work(number)

    with ThreadPoolExecutor(many) as threads:
        for done in [threads.submit(begin, number) for number in range(many)]:
            done.result(PATIENCE * 2)
