"""Flights over a connection of the application's, inside its open transaction.

They begin nothing, commit nothing, roll nothing back and set no savepoint. Statements go one by one: the
connection's pipeline, row factory and adapters are the application's own affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import pq

from tessera.model.errors import InvalidArgument, NotInTransaction, StoreError, Unsupported
from tessera.store.foreign import Unwrapped, kind_of
from tessera.store.postgres.driver import Flights, Query, Rows, arows_of, pack_as_ours, rows_of
from tessera.store.postgres.errors import translated
from tessera.store.postgres.params import Array, Uuid, Uuids

_OPEN: Final = (pq.TransactionStatus.INTRANS, pq.TransactionStatus.ACTIVE)


def flights_over(found: Unwrapped, *, blocking: bool) -> Flights:
    """Flights over the driver's connection. Raises NotInTransaction (autocommit), Unsupported (no connection
    to PostgreSQL that it knows), InvalidArgument (the other colour).
    """
    connection = found.connection
    kind = kind_of(connection)
    is_async = kind in ("psycopg.AsyncConnection", "asyncpg.Connection", "asyncpg.PoolConnectionProxy")
    if not is_async and kind != "psycopg.Connection":
        raise Unsupported("postgresql", f"working inside a transaction of {kind}")
    if is_async and blocking:
        raise InvalidArgument("connection", "is an async one; await the call with the a in front of it")
    if not is_async and not blocking:
        raise InvalidArgument("connection", "is a blocking one; make the call without the a in front of it")
    if kind.startswith("asyncpg."):
        return _AsyncpgFlights(connection, found)
    _check_transaction(connection)
    return _AsyncPsycopgFlights(connection, found) if is_async else _PsycopgFlights(connection)


def _check_transaction(connection: Any) -> None:  # noqa: ANN401 - of either colour
    if connection.closed:
        raise NotInTransaction("the psycopg connection is closed")
    status = connection.info.transaction_status
    if status == pq.TransactionStatus.INERROR:
        raise NotInTransaction("the transaction on the psycopg connection has failed; roll it back")
    if connection.autocommit and status not in _OPEN:
        raise NotInTransaction(
            "the psycopg connection commits each statement by itself; begin a transaction first"
        )


class _PsycopgFlights:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    async def flight(self, queries: Sequence[Query]) -> list[Rows]:
        found: list[Rows] = []
        try:
            for text, parameters in queries:
                cursor = pack_as_ours(psycopg.RawCursor(self._connection))
                cursor.execute(text, parameters, binary=True)
                found.append(rows_of(cursor))
        except psycopg.Error as error:
            raise _said(error) from error
        return found


class _AsyncPsycopgFlights:
    def __init__(self, connection: psycopg.AsyncConnection[Any], found: Unwrapped) -> None:
        self._connection = connection
        self._begin = found.begin

    async def flight(self, queries: Sequence[Query]) -> list[Rows]:
        found: list[Rows] = []
        if self._begin is not None:
            await self._begin()
            self._begin = None
        try:
            for text, parameters in queries:
                cursor = pack_as_ours(psycopg.AsyncRawCursor(self._connection))
                await cursor.execute(text, parameters, binary=True)
                found.append(await arows_of(cursor))
        except psycopg.Error as error:
            raise _said(error) from error
        return found


class _AsyncpgFlights:
    def __init__(self, connection: Any, found: Unwrapped) -> None:  # noqa: ANN401 - asyncpg has no types
        self._connection = connection
        self._begin = found.begin

    async def flight(self, queries: Sequence[Query]) -> list[Rows]:
        from asyncpg import PostgresError

        if self._begin is not None:
            await self._begin()
            self._begin = None
        if not self._connection.is_in_transaction():
            raise NotInTransaction("the asyncpg connection has no open transaction; begin one first")
        found: list[Rows] = []
        try:
            for text, parameters in queries:
                rows = await self._connection.fetch(text, *map(_plain, parameters))
                found.append([tuple(row) for row in rows])
        except PostgresError as error:
            raise _said(error) from error
        return found


def _plain(parameter: object) -> object:
    """A parameter as asyncpg's own codecs take it."""
    if isinstance(parameter, Uuids):
        return [None if value is None else UUID(bytes=bytes(value)) for value in parameter.values]
    if isinstance(parameter, Array):
        return list(parameter.values)
    return UUID(bytes=parameter.value) if isinstance(parameter, Uuid) else parameter


def _said(error: Exception) -> BaseException:
    """Our error: whether anything is written is for the application's commit to say."""
    meant = translated(error, may_be_written=False)
    if meant is error or not isinstance(meant, Exception):
        return StoreError(f"PostgreSQL refused: {error}")
    return meant
