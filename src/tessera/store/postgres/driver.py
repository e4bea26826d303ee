"""Flights to PostgreSQL, in both colours.

A flight is a list of statements in one round trip (libpq's pipeline) and, unless it is part of a transaction,
one transaction of its own. Connections keep no session state, so that a pooler in transaction mode may stand
between. Here is what one connection does; ``pool`` has several.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import psycopg

from tessera.model.errors import StoreBusy
from tessera.store.postgres.params import ADAPTERS

Rows: TypeAlias = list[tuple[Any, ...]]
Query: TypeAlias = tuple[str, Sequence[Any]]
"""SQL with $1, $2 ..., and the parameters."""

Connection: TypeAlias = "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]"

WAIT_SECONDS: Final = 30.0
"""How long a verb waits for a connection before it is StoreBusy."""
PREPARE_AFTER: Final = 3


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


class Colour(Protocol):
    """What blocking and async connections do differently. In the blocking one no method suspends."""

    async def acquire(self) -> None: ...
    def release(self) -> None: ...
    async def connect(self, conninfo: str) -> Any: ...
    async def send(self, connection: Any, queries: Sequence[Query], *, prepare: bool) -> list[Rows]: ...
    async def rollback(self, connection: Any) -> None: ...
    async def shut(self, connection: Any) -> None: ...


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
        return psycopg.connect(conninfo, autocommit=True, prepare_threshold=PREPARE_AFTER)

    async def send(
        self, connection: psycopg.Connection[Any], queries: Sequence[Query], *, prepare: bool
    ) -> list[Rows]:
        cursors = [pack_as_ours(psycopg.RawCursor(connection)) for _ in queries]
        kept = None if prepare else False
        if len(queries) == 1:
            cursors[0].execute(*queries[0], prepare=kept, binary=True)
        else:
            failed: BaseException | None = None
            try:
                with connection.pipeline():
                    try:
                        for cursor, query in zip(cursors, queries, strict=True):
                            cursor.execute(*query, prepare=kept, binary=True)
                    except BaseException as error:  # noqa: BLE001 - raised again below
                        failed = _abandoned(connection, error)
            except psycopg.Error as error:
                failed = failed or error
            if failed is not None:
                raise failed
        return [rows_of(cursor) for cursor in cursors]

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
        if not self._room.locked():
            await self._room.acquire()
            return
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._room.acquire()
        except TimeoutError:
            raise _all_in_use(self._connections) from None

    def release(self) -> None:
        self._room.release()

    async def connect(self, conninfo: str) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(
            conninfo, autocommit=True, prepare_threshold=PREPARE_AFTER
        )

    async def send(
        self, connection: psycopg.AsyncConnection[Any], queries: Sequence[Query], *, prepare: bool
    ) -> list[Rows]:
        cursors = [pack_as_ours(psycopg.AsyncRawCursor(connection)) for _ in queries]
        kept = None if prepare else False
        if len(queries) == 1:
            await cursors[0].execute(*queries[0], prepare=kept, binary=True)
        else:
            failed: BaseException | None = None
            try:
                async with connection.pipeline():
                    try:
                        for cursor, query in zip(cursors, queries, strict=True):
                            await cursor.execute(*query, prepare=kept, binary=True)
                    except BaseException as error:  # noqa: BLE001 - raised again below
                        failed = _abandoned(connection, error)
            except psycopg.Error as error:
                failed = failed or error
            if failed is not None:
                raise failed
        return [await arows_of(cursor) for cursor in cursors]

    async def rollback(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.rollback()

    async def shut(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.close()


C = TypeVar("C", bound="psycopg.RawCursor[Any] | psycopg.AsyncRawCursor[Any]")


def pack_as_ours(cursor: C) -> C:
    """A cursor that packs parameters our way, whatever the application has registered with psycopg."""
    cursor._adapters = ADAPTERS
    return cursor


def _abandoned(connection: Any, error: BaseException) -> BaseException:
    """The error that ended a pipeline early. Psycopg leaves a pipeline with a sync, which commits what was
    sent before: half a flight, unless the server itself refused the rest. Then only the end of the connection
    takes it back. (Raised inside the pipeline, an error would also be a line in psycopg's log.)
    """
    if getattr(error, "sqlstate", None) is None:
        connection.pgconn.finish()
    return error


def rows_of(cursor: psycopg.RawCursor[Any]) -> Rows:
    """What a statement answered; nothing for one that answers nothing."""
    return cursor.fetchall() if cursor.description is not None else []


async def arows_of(cursor: psycopg.AsyncRawCursor[Any]) -> Rows:
    """See ``rows_of``."""
    return await cursor.fetchall() if cursor.description is not None else []


def _all_in_use(connections: int) -> StoreBusy:
    return StoreBusy(f"all {connections} connections to PostgreSQL were in use for {WAIT_SECONDS:.0f} s")


def quoted(name: str) -> str:
    """A name as SQL writes it, whatever is in it."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
