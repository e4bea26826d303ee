"""PostgreSQL for the tests of promises: one schema a process, emptied for each test, with a clock that only
the test moves.
"""

from __future__ import annotations

import atexit
import os
from functools import cache

import psycopg

from tessera.store.postgres.server import Server
from tessera.store.postgres.store import PostgresStore
from tessera.store.protocol import run_blocking
from tests.conformance.rig import START, ManualClock

URL = "postgresql://127.0.0.1:5432/test?options=-csynchronous_commit%3Doff"
EMPTIED = (
    "job", "done", "job_tag", "count", "count_delta", "slot", "counter", "counter_shift", "floor", "pass",
    "edge", "record", "record_history", "event", "chunk", "staged", "blob", "blob_chunk",
)  # fmt: skip


class Clock(ManualClock):
    """The test's clock; the server reads what it shows."""

    def __init__(self, connection: psycopg.Connection, schema: str) -> None:
        self._connection = connection
        self._schema = schema
        super().__init__()

    @property
    def now(self) -> int:
        return self._now

    @now.setter
    def now(self, now: int) -> None:
        self._now = now
        self._connection.execute(f"UPDATE {self._schema}.test_clock SET now = %s", (now,))


@cache
def schema_of_this_process() -> tuple[psycopg.Connection, str]:
    """A connection of the tests' own, and the name of the schema."""
    schema = f"tessera_test_{os.getpid()}"
    connection = psycopg.connect(URL, autocommit=True)
    server = Server(URL, schema=schema)
    store = PostgresStore(server, blocking=True)
    run_blocking(store.open())
    server.close()
    connection.execute(f"CREATE TABLE {schema}.test_clock (now bigint NOT NULL)")
    connection.execute(f"INSERT INTO {schema}.test_clock VALUES ({START})")
    for function in (
        "now_ms() RETURNS bigint LANGUAGE sql STABLE",
        "clock_ms() RETURNS bigint LANGUAGE sql VOLATILE",
    ):
        connection.execute(
            f"CREATE OR REPLACE FUNCTION {schema}.{function} AS $$ SELECT now FROM {schema}.test_clock $$"
        )
    atexit.register(connection.execute, f"DROP SCHEMA {schema} CASCADE")
    return connection, schema


def fresh(installation: bytes) -> tuple[Server, Clock]:
    """An empty installation, and its clock."""
    connection, schema = schema_of_this_process()
    emptied = "; ".join(f"DELETE FROM {schema}.{table}" for table in EMPTIED)
    connection.execute(f"{emptied}; UPDATE {schema}.meta SET policy = 0, events = 0")
    connection.execute(f"UPDATE {schema}.meta SET installation = %s", (installation,))
    clock = Clock(connection, schema)
    return Server(URL, schema=schema, clock=clock), clock
