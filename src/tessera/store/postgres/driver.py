"""Flights to PostgreSQL, in both colours.

A flight is a list of statements in one round trip (libpq's pipeline) and, unless it is part of a transaction,
one transaction of its own. Connections keep no session state, so that a pooler in transaction mode may stand
between. The pool is our own: it is short, it opens a connection when somebody needs one, and so is back
within a connect of the server's return, while psycopg_pool waits for longer and longer between attempts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import psycopg
from psycopg import pq

from tessera.model.errors import StoreBusy
from tessera.store.postgres.errors import translated
from tessera.store.postgres.params import ADAPTERS

Rows: TypeAlias = list[tuple[Any, ...]]
Query: TypeAlias = tuple[str, Sequence[Any]]
"""SQL with $1, $2 ..., and the parameters."""

WAIT_SECONDS: Final = 30.0
"""How long a verb waits for a connection before it is StoreBusy."""
PREPARE_AFTER: Final = 3
_BEGIN: Final[Query] = ("BEGIN", ())
_COMMIT: Final[Query] = ("COMMIT", ())
_ROLLBACK: Final[Query] = ("ROLLBACK", ())
WHO_SERVES: Final[Query] = ("SELECT pg_backend_pid()", ())

# One line an aborted pipeline, for an error that we raise ourselves.
logging.getLogger("psycopg").setLevel(logging.CRITICAL)


class Flights(Protocol):
    """What statements go by: a driver, an open transaction, a connection of the application's."""

    async def flight(self, queries: Sequence[Query]) -> list[Rows]:
        """All in one round trip; the rows of each."""
        ...


class Transaction(Flights, Protocol):
    """An open transaction. ``last=True`` commits with that flight."""

    async def flight(self, queries: Sequence[Query], *, last: bool = False) -> list[Rows]:
        """See ``Flights.flight``."""
        ...


class Driver(Flights, Protocol):
    """Flights of one colour. A flight of a driver is a transaction of its own: all or nothing."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """A transaction over several flights; rolled back unless one of them was the last."""
        ...

    async def close(self) -> None:
        """Give up the connections of this colour, and loop."""
        ...


class Settings(Protocol):
    """What the drivers need to know: see ``server.Server``."""

    conninfo: str
    connections: int
    prepare: bool


class Colour(Protocol):
    """What blocking and async connections do differently. In the blocking one no method suspends."""

    async def acquire(self) -> None: ...
    def release(self) -> None: ...
    async def connect(self, conninfo: str) -> Any: ...
    async def send(self, connection: Any, queries: Sequence[Query], *, prepare: bool) -> list[Rows]: ...
    async def rollback(self, connection: Any) -> None: ...
    async def shut(self, connection: Any) -> None: ...


class PooledDriver:
    """Flights over a few connections of one colour. See ``Driver``."""

    def __init__(self, settings: Settings, colour: Callable[[int], Colour]) -> None:
        self._settings = settings
        self._make_colour = colour
        self._colour = colour(settings.connections)
        self._free: list[Any] = []
        self._pid = os.getpid()
        self._closed = True

    async def flight(self, queries: Sequence[Query]) -> list[Rows]:
        connection = await self._take()
        try:
            found = await self._fly(connection, queries, may_be_written=True)
        except BaseException as error:
            await self._give_back_after(error, connection)
            raise
        await self._give_back(connection)
        return found

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        connection = await self._take()
        opened = _Opened(self, connection)
        try:
            yield opened
            if opened.is_begun and not opened.is_over:
                await self._fly(connection, [_ROLLBACK], may_be_written=False)
        except BaseException as error:
            await self._give_back_after(error, connection)
            raise
        await self._give_back(connection)

    def open(self) -> None:
        """Keep connections for the next flight, also after a close."""
        self._closed = False

    @property
    def holds_any(self) -> bool:
        """Whether it is open, or still has a connection."""
        return bool(self._free) or not self._closed

    def end(self) -> None:
        """Close at once, from whatever thread and loop: connections in use close when they come back."""
        self._closed = True
        if self._pid == os.getpid():
            free, self._free = self._free, []
            for connection in free:
                connection.pgconn.finish()

    async def close(self) -> None:
        self._closed = True
        free, self._free = self._free, []
        if self._pid == os.getpid():
            for connection in free:
                await self._colour.shut(connection)

    async def _fly(self, connection: Any, queries: Sequence[Query], *, may_be_written: bool) -> list[Rows]:
        """Send, with our errors for the driver's."""
        try:
            return await self._colour.send(connection, queries, prepare=self._settings.prepare)
        except psycopg.Error as error:
            raise translated(error, may_be_written=may_be_written) from error

    # The pool -----------------------------------------------------------------------------------------------

    async def _take(self) -> Any:
        if self._pid != os.getpid():
            # The parent's connections are not ours: forget them, and say no goodbye on their sockets.
            _inherited.extend(self._free)
            self._free = []
            self._colour = self._make_colour(self._settings.connections)
            self._pid = os.getpid()
        await self._colour.acquire()
        try:
            while self._free:
                connection = self._free.pop()
                if not _is_dead(connection):
                    return connection
                await self._colour.shut(connection)
            return await self._connected()
        except BaseException as error:
            self._colour.release()
            if isinstance(error, psycopg.Error | OSError):
                raise translated(error, may_be_written=False) from error
            raise

    async def _connected(self) -> Any:
        """A new connection. Behind a pooler a prepared statement may be another client's of the same name,
        and does what that client meant: nothing is prepared there. A pooler is told by its own word for who
        serves, which is not the server's.
        """
        connection = await self._colour.connect(self._settings.conninfo)
        if self._settings.prepare:
            [[(pid,)]] = await self._colour.send(connection, [WHO_SERVES], prepare=False)
            if pid != connection.info.backend_pid:
                self._settings.prepare = False
                _log.info("PostgreSQL is reached through a pooler: statements are not prepared")
        return connection

    async def _give_back(self, connection: Any) -> None:
        if self._closed or connection.closed:
            await self._colour.shut(connection)
        else:
            self._free.append(connection)
        self._colour.release()

    async def _give_back_after(self, error: BaseException, connection: Any) -> None:
        """After an error: as it was before the flight, or not at all."""
        if isinstance(error, Exception) and not connection.closed:
            try:
                if connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
                    await self._colour.rollback(connection)
                if connection.pgconn.transaction_status == pq.TransactionStatus.IDLE:
                    # Psycopg takes a statement for prepared that stood, in a pipeline, behind the one that
                    # failed, and has no public way to be told.
                    connection._prepared.clear()
                    return await self._give_back(connection)
            except psycopg.Error:  # it is lost: away with it
                pass
        await self._colour.shut(connection)
        self._colour.release()
        return None


class _Opened:
    """One open transaction."""

    def __init__(self, driver: PooledDriver, connection: Any) -> None:
        self._driver = driver
        self._connection = connection
        self.is_begun = False
        self.is_over = False

    async def flight(self, queries: Sequence[Query], *, last: bool = False) -> list[Rows]:
        before = [] if self.is_begun else [_BEGIN]
        self.is_begun = True
        sent = [*before, *queries, *([_COMMIT] if last else [])]
        found = await self._driver._fly(self._connection, sent, may_be_written=last)
        self.is_over = last
        return found[len(before) : len(before) + len(queries)]


class Blocking:
    """See ``Colour``."""

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self._room = threading.Semaphore(connections)

    async def acquire(self) -> None:
        if not self._room.acquire(timeout=WAIT_SECONDS):
            raise _all_in_use(self._connections)

    def release(self) -> None:
        self._room.release()

    async def connect(self, conninfo: str) -> psycopg.Connection[Any]:
        connection = psycopg.connect(conninfo, autocommit=True)
        connection.prepare_threshold = PREPARE_AFTER
        return connection

    async def send(
        self, connection: psycopg.Connection[Any], queries: Sequence[Query], *, prepare: bool
    ) -> list[Rows]:
        cursors = [pack_as_ours(psycopg.RawCursor(connection)) for _ in queries]
        if len(queries) == 1:
            cursors[0].execute(*queries[0], prepare=None if prepare else False, binary=True)
        else:
            with connection.pipeline():
                for cursor, query in zip(cursors, queries, strict=True):
                    cursor.execute(*query, prepare=None if prepare else False, binary=True)
        return [_rows(cursor) for cursor in cursors]

    async def rollback(self, connection: psycopg.Connection[Any]) -> None:
        connection.rollback()

    async def shut(self, connection: psycopg.Connection[Any]) -> None:
        connection.close()


class Async:
    """See ``Colour``. It belongs to the event loop in which it is made."""

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self._room = asyncio.Semaphore(connections)

    async def acquire(self) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._room.acquire()
        except TimeoutError:
            raise _all_in_use(self._connections) from None

    def release(self) -> None:
        self._room.release()

    async def connect(self, conninfo: str) -> psycopg.AsyncConnection[Any]:
        connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
        connection.prepare_threshold = PREPARE_AFTER
        return connection

    async def send(
        self, connection: psycopg.AsyncConnection[Any], queries: Sequence[Query], *, prepare: bool
    ) -> list[Rows]:
        cursors = [pack_as_ours(psycopg.AsyncRawCursor(connection)) for _ in queries]
        if len(queries) == 1:
            await cursors[0].execute(*queries[0], prepare=None if prepare else False, binary=True)
        else:
            async with connection.pipeline():
                for cursor, query in zip(cursors, queries, strict=True):
                    await cursor.execute(*query, prepare=None if prepare else False, binary=True)
        return [await _arows(cursor) for cursor in cursors]

    async def rollback(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.rollback()

    async def shut(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.close()


_log = logging.getLogger("tessera.store")
_inherited: list[Any] = []
"""Connections of a parent process, kept so that no finaliser closes them."""
C = TypeVar("C", bound="psycopg.RawCursor[Any] | psycopg.AsyncRawCursor[Any]")


def pack_as_ours(cursor: C) -> C:
    """A cursor that packs parameters our way, whatever the application has registered with psycopg."""
    cursor._adapters = ADAPTERS
    return cursor


def _rows(cursor: psycopg.RawCursor[Any]) -> Rows:
    return cursor.fetchall() if cursor.description is not None else []


async def _arows(cursor: psycopg.AsyncRawCursor[Any]) -> Rows:
    return await cursor.fetchall() if cursor.description is not None else []


def _all_in_use(connections: int) -> StoreBusy:
    return StoreBusy(f"all {connections} connections to PostgreSQL were in use for {WAIT_SECONDS:.0f} s")


def _is_dead(connection: Any) -> bool:
    """Whether an idle connection has lost its server: then a farewell, or the end, lies in its socket. One
    system call.
    """
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
