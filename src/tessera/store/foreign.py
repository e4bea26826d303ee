"""Connections of the application: what is the driver's own connection behind a wrapper of SQLAlchemy's or
Django's, and whether a transaction is open on it.

Told by names, so that nothing is imported that the application has not imported itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tessera.model.errors import NotInTransaction


class Unwrapped(msgspec.Struct, frozen=True):
    """The driver's connection, and what has to be awaited before it can be used."""

    connection: Any
    begin: Callable[[], Awaitable[object]] | None = None
    """SQLAlchemy begins its transaction with the first statement that goes through it."""


def kind_of(connection: object) -> str:
    """``module.Class`` of the nearest class that is not the application's own."""
    for base in type(connection).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("sqlalchemy", "django", "psycopg", "asyncpg", "sqlite3", "_sqlite3"):
            return f"{root}.{base.__name__}"
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


def unwrapped(connection: Any) -> Unwrapped:  # noqa: ANN401 - whatever the application has
    """The driver's connection behind the application's. Raises NotInTransaction where the wrapper knows that
    none is open.
    """
    kind = kind_of(connection)
    if kind in ("sqlalchemy.Session", "sqlalchemy.scoped_session"):
        return unwrapped(connection.connection())
    if kind in ("sqlalchemy.AsyncSession", "sqlalchemy.async_scoped_session"):
        if not connection.in_transaction():
            raise NotInTransaction("the SQLAlchemy session has no open transaction; begin one first")
        return _of_alchemy(connection.sync_session.connection(), connection.execute)
    if kind == "sqlalchemy.AsyncConnection":
        return _of_alchemy(connection.sync_connection, connection.execute)
    if kind == "sqlalchemy.Connection":
        return _of_alchemy(connection, None)
    if kind.startswith("django."):
        if not connection.in_atomic_block:
            raise NotInTransaction("no transaction.atomic() block is open on this Django connection")
        connection.ensure_connection()
        return Unwrapped(connection.connection)
    return Unwrapped(connection)


def _of_alchemy(connection: Any, execute: Callable[[Any], Awaitable[object]] | None) -> Unwrapped:  # noqa: ANN401
    if connection is None or connection.closed:
        raise NotInTransaction("the SQLAlchemy connection is closed, or was not started")
    if not connection.in_transaction():
        raise NotInTransaction("the SQLAlchemy connection has no open transaction; begin one first")
    driver = connection.connection.driver_connection
    if execute is None:
        return Unwrapped(driver)
    from sqlalchemy import text

    return Unwrapped(driver, lambda: execute(text("SELECT 1")))
