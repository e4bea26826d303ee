"""Flights over a few connections, opened by who needs one.

The pool is our own: it is short, and it is back within a connect of the server's return, while psycopg_pool
waits for longer and longer between attempts. A connection that the server has left is noticed before a flight
is sent by it; one that is lost in flight is thrown away. A forked child begins with none.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

import psycopg
from psycopg import pq

from tessera.store.postgres.driver import Colour, Connection, Query, Rows, Transaction
from tessera.store.postgres.errors import Unprepared, translated

_BEGIN: Final[Query] = ("BEGIN ISOLATION LEVEL READ COMMITTED", ())
"""Whatever the database's default is: a statement after a wait for a lock must see what was committed."""
_COMMIT: Final[Query] = ("COMMIT", ())
_ROLLBACK: Final[Query] = ("ROLLBACK", ())
_WHO_SERVES: Final[Query] = ("SELECT pg_backend_pid()", ())
_log = logging.getLogger("tessera.store")
_inherited: list[_Pool] = []
"""Those of parent processes, kept so that no finaliser closes their connections."""


class Settings(Protocol):
    """What the drivers need to know: see ``server.Server``."""

    conninfo: str
    connections: int
    prepare: bool


class PooledDriver:
    """Flights over a few connections of one colour. See ``Driver``."""

    def __init__(self, settings: Settings, colour: Callable[[int], Colour]) -> None:
        self._settings = settings
        self._make_colour = colour
        self._pools: dict[int, _Pool] = {}
        self._closed = True

    async def flight(self, queries: Sequence[Query]) -> list[Rows]:
        try:
            return await self._flight(queries)
        except Unprepared:  # and from now on nothing is prepared
            return await self._flight(queries)

    async def _flight(self, queries: Sequence[Query]) -> list[Rows]:
        pool = self._pool
        connection = await pool.take()
        try:
            found = await pool.fly(connection, queries, commits=True)
        except BaseException as error:
            await pool.give_back_after(error, connection)
            raise
        await self._give_back(pool, connection)
        return found

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        pool = self._pool
        connection = await pool.take()
        opened = _Opened(pool, connection)
        try:
            yield opened
            if opened.is_begun and not opened.is_over:
                await pool.fly(connection, [_ROLLBACK], commits=False)
        except BaseException as error:
            await pool.give_back_after(error, connection)
            raise
        await self._give_back(pool, connection)

    def open(self) -> None:
        """Keep connections for the next flight, also after a close."""
        self._closed = False

    @property
    def holds_any(self) -> bool:
        """Whether it is open, or still has a connection."""
        return bool(self._pool.free) or not self._closed

    def end(self) -> None:
        """Close at once, from whatever thread and loop: connections in use close when they come back."""
        self._closed = True
        for connection in self._pool.emptied():
            connection.pgconn.finish()

    async def close(self) -> None:
        self._closed = True
        pool = self._pool
        for connection in pool.emptied():
            await pool.colour.shut(connection)

    async def _give_back(self, pool: _Pool, connection: Connection) -> None:
        await pool.give_back(connection)
        if self._closed:  # now, or while it flew
            for left in pool.emptied():
                await pool.colour.shut(left)

    @property
    def _pool(self) -> _Pool:
        """That of this process. A parent's is not ours: its connections are forgotten, and kept, so that
        nobody says goodbye on its sockets.
        """
        pid = os.getpid()
        if pid not in self._pools:
            _inherited.extend(self._pools.values())
            self._pools.setdefault(pid, _Pool(self._settings, self._make_colour(self._settings.connections)))
        return self._pools[pid]


class _Pool:
    """The connections of one driver in one process, opened by who needs one."""

    def __init__(self, settings: Settings, colour: Colour) -> None:
        self.colour = colour
        self.free: list[Connection] = []
        self._settings = settings

    async def fly(self, connection: Connection, queries: Sequence[Query], *, commits: bool) -> list[Rows]:
        """Send, with our errors for the driver's."""
        try:
            return await self.colour.send(connection, queries, prepare=self._settings.prepare)
        except psycopg.Error as error:
            meant = translated(error, may_be_written=commits and not _only_read(queries))
            if isinstance(meant, Unprepared):
                self._stop_preparing("PostgreSQL does not know what was prepared (a pooler?)")
            raise meant from error

    async def take(self) -> Connection:
        """A connection that is idle, and alive as far as one can know without asking the server."""
        await self.colour.acquire()
        try:
            while (connection := self._popped()) is not None:
                if not _is_dead(connection):
                    return connection
                await self.colour.shut(connection)
            return await self._connected()
        except BaseException as error:
            self.colour.release()
            if isinstance(error, psycopg.Error | OSError):
                raise translated(error, may_be_written=False) from error
            raise

    async def give_back(self, connection: Connection) -> None:
        if connection.closed:
            await self.colour.shut(connection)
        else:
            self.free.append(connection)
        self.colour.release()

    async def give_back_after(self, error: BaseException, connection: Connection) -> None:
        """After an error: as it was before the flight, or not at all."""
        try:
            if isinstance(error, Exception) and await self._is_idle_again(connection):
                # Psycopg takes a statement for prepared that stood, in a pipeline, behind the one that
                # failed, and has no public way to be told.
                connection._prepared.clear()
                self.free.append(connection)
            else:
                await self.colour.shut(connection)
        finally:
            self.colour.release()

    def emptied(self) -> list[Connection]:
        """All idle connections, which are the caller's now."""
        found = []
        while (connection := self._popped()) is not None:
            found.append(connection)
        return found

    def _popped(self) -> Connection | None:
        try:
            return self.free.pop()
        except IndexError:  # asking first would not do: another thread may be faster
            return None

    async def _is_idle_again(self, connection: Connection) -> bool:
        idle = pq.TransactionStatus.IDLE
        try:
            if not connection.closed and connection.pgconn.transaction_status != idle:
                await self.colour.rollback(connection)
        except psycopg.Error:  # it is lost
            return False
        return not connection.closed and connection.pgconn.transaction_status == idle

    async def _connected(self) -> Connection:
        """A new connection. Behind a pooler a prepared statement may be another client's of the same name,
        and does what that client meant: nothing is prepared there. A pooler is told by its own word for who
        serves, which is not the server's.
        """
        connection: Connection = await self.colour.connect(self._settings.conninfo)
        if self._settings.prepare:
            try:
                [[(pid,)]] = await self.colour.send(connection, [_WHO_SERVES], prepare=False)
            except BaseException:
                await self.colour.shut(connection)
                raise
            if pid != connection.info.backend_pid:
                self._stop_preparing("PostgreSQL is reached through a pooler")
        return connection

    def _stop_preparing(self, why: str) -> None:
        if self._settings.prepare:
            self._settings.prepare = False
            _log.info("%s: statements are not prepared", why)


class _Opened:
    """One open transaction."""

    def __init__(self, pool: _Pool, connection: Connection) -> None:
        self._pool = pool
        self._connection = connection
        self.is_begun = False
        self.is_over = False

    async def flight(self, queries: Sequence[Query], *, last: bool = False) -> list[Rows]:
        assert not self.is_over, "the transaction is over"
        before = [] if self.is_begun else [_BEGIN]
        self.is_begun = True
        sent = [*before, *queries, *([_COMMIT] if last else [])]
        try:
            found = await self._pool.fly(self._connection, sent, commits=last)
        except Unprepared:
            if not before:
                raise  # what came before is lost with it
            await self._pool.colour.rollback(self._connection)
            found = await self._pool.fly(self._connection, sent, commits=last)
        self.is_over = last
        return found[len(before) : len(before) + len(queries)]


def _only_read(queries: Sequence[Query]) -> bool:
    """Whether nothing can be written: no function that our statements call writes, ``pg_notify`` apart."""
    return all(text.split(None, 1)[0].upper() == "SELECT" for text, _ in queries)


def _is_dead(connection: Connection) -> bool:
    """Whether an idle connection has lost its server: then a farewell, or the end, lies in its socket. One
    system call.
    """
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
