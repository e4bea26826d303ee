"""A store whose clock the test moves, and looks at its tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tessera.store.postgres import partitions
from tessera.store.postgres.store import PostgresStore
from tests.conformance.rig import Rig
from tests.servers import schemas

DAY = partitions.DAY_MS


@contextmanager
def rigged(*, pooled: bool) -> Iterator[Rig]:
    """Sound at its end, and without partitions afterwards."""
    server, clock = schemas.with_clock(bytes(16), pooled=pooled)
    rig = Rig(PostgresStore(server, blocking=True), blocking=True, clock=clock)
    rig.run(rig.store.open())
    try:
        yield rig
        rig.check()
    finally:
        rig.end()
        server.close()
        for name in days():
            sql(f"DROP TABLE {schema()}.{name}")
        sql(f"DELETE FROM {schema()}.closing")


def schema() -> str:
    return schemas.schema_of_this_process("clock")


def sql(text: str) -> None:
    schemas.connection_of_this_process().execute(text)


def rows(table: str) -> int:
    found = schemas.connection_of_this_process().execute(f"SELECT count(*) FROM {schema()}.{table}")
    [(count,)] = found.fetchall()
    return count


def days() -> list[str]:
    """The archive's partitions of days."""
    query = (
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
        "WHERE i.inhparent = %s::regclass"
    )
    found = schemas.connection_of_this_process().execute(query, (f"{schema()}.done",)).fetchall()
    return sorted(name for (name,) in found if partitions.day_of(name) is not None)


def keep_partitions(rig: Rig) -> list[str]:
    return rig.run(partitions.keep_partitions(rig.store._site))  # type: ignore[attr-defined]
