"""A schema of the test's own, at whatever version, and the release after this one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from psycopg.pq import TransactionStatus

from tessera.store.postgres import catalog, migrations
from tessera.store.postgres.migrations import Schema
from tessera.store.postgres.server import Server
from tessera.store.protocol import run_blocking
from tessera.store.sql.schemafiles import Step, steps_of
from tests.servers.schemas import connection_of_this_process, direct_url

NEXT = Path(__file__).parents[2] / "sql"
RELEASED = migrations.our_steps()


@cache
def next_steps() -> tuple[Step, ...]:
    """The steps of this release and of the one after it."""
    files = [*(Path(migrations.__file__).parent / "schema").glob("*.sql"), *NEXT.glob("*.sql")]
    return steps_in({file.name: file.read_text() for file in files})


def steps_in(files: dict[str, str]) -> tuple[Step, ...]:
    """The steps of files with this text."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        return steps_of(Path(folder))


def one_more(name: str, text: str) -> tuple[Step, ...]:
    """The released steps and one of the test's."""
    number = len(RELEASED) + 1
    [*_, step] = steps_in(
        {**{f"{n:04}_x.sql": "" for n in range(1, number)}, f"{number:04}_{name}.sql": text}
    )
    return (*RELEASED, step)


class Place:
    """One schema, and handles on it by code of any release."""

    def __init__(self, use: str, *, blocking: bool, url: str = "") -> None:
        self.name = f"tessera_test_{use}_{os.getpid()}"
        self.url = url or direct_url()
        self.blocking = blocking
        self.sql = connection_of_this_process()
        self._loop = None if blocking else asyncio.new_event_loop()
        self._servers: list[Server] = []
        self.drop()

    def schema(self, steps: Sequence[Step] = RELEASED, *, connections: int = 4) -> Schema:
        """As code with these steps sees it."""
        server = Server(self.url, schema=self.name, connections=connections)
        self._servers.append(server)
        driver = server.driver(blocking=self.blocking)
        driver.open()
        return Schema(driver, self.name, blocking=self.blocking, connections=connections, steps=steps)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return run_blocking(work) if self._loop is None else self._loop.run_until_complete(work)

    def contents(self) -> dict[str, str]:
        """All that the schema consists of."""
        return self.run(catalog.contents(self.schema().driver, self.name))

    def drop(self) -> None:
        if self.sql.info.transaction_status != TransactionStatus.IDLE:
            self.sql.execute("ROLLBACK")
        self.sql.execute(f"DROP SCHEMA IF EXISTS {self.name} CASCADE")

    def end(self) -> None:
        for server in self._servers:
            server.close()
        if self._loop is not None:
            self._loop.close()
        self.drop()
