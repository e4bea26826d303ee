"""A connection of the application to the database that a store lies in, behind plain calls."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import psycopg

from tessera.store.protocol import JoinsTransaction, Store, run_blocking
from tests.conformance.rig import Rig
from tests.servers import schemas


class SqliteCaller:
    """The application's own sqlite3."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.connection = sqlite3.connect(str(rig.path), isolation_level=None)
        self.execute("CREATE TABLE orders (n)")

    def execute(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query).fetchall()

    def joined(self) -> Store:
        assert isinstance(self._rig.store, JoinsTransaction)
        return self._rig.store.joined(self.connection)

    def run(self, work: Any) -> Any:
        return run_blocking(work)

    @property
    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    def to_another_database(self, folder: Path) -> SqliteCaller:
        other = SqliteCaller.__new__(SqliteCaller)
        other._rig = self._rig
        other.connection = sqlite3.connect(folder / "other.db", isolation_level=None)
        return other

    def close(self) -> None:
        self.connection.close()


class PostgresCaller:
    """The application's own psycopg, of the rig's colour."""

    def __init__(self, rig: Rig, url: str = "") -> None:
        self._rig = rig
        connecting = psycopg.Connection if rig.blocking else psycopg.AsyncConnection
        self.connection = self._done(connecting.connect(url or schemas.direct_url(), autocommit=True))
        self.execute("CREATE TEMPORARY TABLE orders (n int)")

    def _done(self, found: Any) -> Any:
        return found if self._rig.blocking else self._rig.run(found)

    def execute(self, query: str) -> list[tuple[Any, ...]]:
        cursor = self._done(self.connection.execute(query))
        return self._done(cursor.fetchall()) if cursor.description else []

    def joined(self) -> Store:
        assert isinstance(self._rig.store, JoinsTransaction)
        return self._rig.store.joined(self.connection)

    def run(self, work: Any) -> Any:
        return self._rig.run(work)

    @property
    def in_transaction(self) -> bool:
        return self.connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS

    def to_another_database(self, folder: Path) -> PostgresCaller:
        return PostgresCaller(self._rig, re.sub(r"/\w+\?", "/template1?", schemas.direct_url()))

    def close(self) -> None:
        self._done(self.connection.close())


def caller_of(rig: Rig) -> SqliteCaller | PostgresCaller:
    return PostgresCaller(rig) if rig.store.name == "postgresql" else SqliteCaller(rig)
