"""PostgreSQL schemas of the tests' own: two a process, emptied for each test, dropped at its end. In one of
them a clock stands that only the test moves.
"""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from functools import cache
from itertools import count

import psycopg

from tessera.store.postgres.server import Server
from tessera.store.postgres.store import PostgresStore
from tessera.store.protocol import run_blocking
from tests.conformance.rig import START, ManualClock
from tests.servers.programs import is_alive
from tests.servers.run import pgbouncer_url, postgres_url

EMPTIED = (
    "job", "done", "job_tag", "count", "count_delta", "slot", "counter", "counter_shift", "floor", "pass",
    "edge", "record", "record_history", "event", "chunk", "staged", "blob", "blob_chunk",
)  # fmt: skip
LEFTOVERS = 7_357
"""The advisory lock of whoever drops what dead processes left."""
_numbers = count()
CLOCKS = ("now_ms() RETURNS bigint LANGUAGE sql STABLE", "clock_ms() RETURNS bigint LANGUAGE sql VOLATILE")


def direct_url() -> str:
    """The server, with commits that wait for no disk."""
    return postgres_url() + "?options=-csynchronous_commit%3Doff"


class Clock(ManualClock):
    """The test's clock; the server reads what it shows."""

    def __init__(self, connection: psycopg.Connection, schema: str) -> None:
        self._connection = connection
        self._schema = schema
        self._latest = 0
        self.is_forward_only = False
        """Whether the server's clock stands still where the test's is set back."""
        super().__init__()

    @property
    def now(self) -> int:
        return self._now

    @now.setter
    def now(self, now: int) -> None:
        self._now = now
        self._latest = max(self._latest, now) if self.is_forward_only else now
        self._connection.execute(f"UPDATE {self._schema}.test_clock SET now = %s", (self._latest,))


@cache
def connection_of_this_process() -> psycopg.Connection:
    """For what the tests themselves ask. Nothing is left of dead processes' schemas."""
    connection = psycopg.connect(direct_url(), autocommit=True)
    atexit.register(connection.close)
    _drop_what_dead_processes_left(connection)
    return connection


def _drop_what_dead_processes_left(connection: psycopg.Connection) -> None:
    query = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'tessera\\_test\\_%'"
    connection.execute("SELECT pg_advisory_lock(%s)", (LEFTOVERS,))  # two at once would wait for each other
    connection.execute("SET lock_timeout = '2s'")
    for (name,) in connection.execute(query).fetchall():
        pid = name.split("_")[-1]
        if pid.isdecimal() and not is_alive(int(pid)):
            with suppress(psycopg.errors.LockNotAvailable):  # a child of the dead one still works in it
                connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
    connection.execute("RESET lock_timeout")
    connection.execute("SELECT pg_advisory_unlock(%s)", (LEFTOVERS,))


def schema_name(use: str = "named") -> str:
    """A name that no schema has yet. What is made under it is dropped when this process ends."""
    name = f"tessera_test_{use}_{next(_numbers)}_{os.getpid()}"
    atexit.register(_drop, connection_of_this_process(), name)
    return name


@cache
def schema_of_this_process(use: str) -> str:
    """The name of an installed schema. ``use``: ``clock`` for one with a clock of the test's."""
    schema = f"tessera_test_{use}_{os.getpid()}"
    connection = connection_of_this_process()
    connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    server = Server(direct_url(), schema=schema)
    store = PostgresStore(server, blocking=True)
    run_blocking(store.open())
    server.close()
    if use == "clock":
        connection.execute(f"CREATE TABLE {schema}.test_clock (now bigint NOT NULL)")
        connection.execute(f"INSERT INTO {schema}.test_clock VALUES ({START})")
        for clock in CLOCKS:
            connection.execute(
                f"CREATE OR REPLACE FUNCTION {schema}.{clock} AS $$ SELECT now FROM {schema}.test_clock $$"
            )
    atexit.register(_drop, connection, schema)
    return schema


def _drop(connection: psycopg.Connection, schema: str) -> None:
    with suppress(psycopg.Error):  # a server of the run's own may have ended with it
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def emptied(use: str) -> str:
    """The schema of this process, with nothing in it."""
    schema = schema_of_this_process(use)
    deleted = "; ".join(f"DELETE FROM {schema}.{table}" for table in EMPTIED)
    connection_of_this_process().execute(f"{deleted}; UPDATE {schema}.meta SET policy = 0, events = 0")
    return schema


def with_clock(installation: bytes, *, pooled: bool) -> tuple[Server, Clock]:
    """An empty installation and its clock. ``pooled``: behind PgBouncer in transaction mode."""
    schema = emptied("clock")
    connection = connection_of_this_process()
    connection.execute(f"UPDATE {schema}.meta SET installation = %s", (installation,))
    clock = Clock(connection, schema)
    url = pgbouncer_url() if pooled else direct_url()
    return Server(url, schema=schema, clock=clock), clock


def durable_url() -> str:
    """The URL of an empty installation whose commits wait for the disk."""
    return f"{postgres_url()}?schema={emptied('durable')}"


def real_url() -> str:
    """The URL of an empty installation that goes by the server's own clock."""
    return f"{direct_url()}&schema={emptied('real')}"
