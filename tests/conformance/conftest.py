"""Every store in both colours, fresh for each test, and sound at its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.store.memory import MemoryStore, World
from tessera.store.protocol import Store
from tests.conformance.rig import ManualClock, Rig

STORES = ("memory", "sqlite", "postgresql", "pgbouncer")
COLOURS = ("blocking", "async")
INSTALLATION = bytes(range(16))


def build(
    name: str, folder: Path, *, blocking: bool, clock: ManualClock | None = None
) -> tuple[Store, Path | None, ManualClock]:
    """A store of that name, not yet opened, and the clock it goes by."""
    if name in ("postgresql", "pgbouncer"):
        from tessera.store.postgres.store import PostgresStore
        from tests.servers import schemas

        server, servers_clock = schemas.with_clock(INSTALLATION, pooled=name == "pgbouncer")
        return PostgresStore(server, blocking=blocking), None, servers_clock
    clock = clock or ManualClock()
    if name == "memory":
        return MemoryStore(World(INSTALLATION, clock), blocking=blocking), None, clock
    from tessera.store.sqlite import SqliteFile, SqliteStore

    path = folder / "work.db"
    # What survives a power cut is tested elsewhere; here a sync a commit would be most of the time.
    file = SqliteFile(str(path), clock=clock, synchronous="normal", ballast_bytes=0)
    return SqliteStore(file, blocking=blocking), path, clock


@pytest.fixture(params=[f"{store}-{colour}" for store in STORES for colour in COLOURS])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    name, colour = request.param.split("-")
    blocking = colour == "blocking"
    store, path, clock = build(name, tmp_path, blocking=blocking)
    rig = Rig(store, blocking=blocking, clock=clock, path=path)
    rig.run(store.open())
    try:
        yield rig
        rig.check()
    finally:
        rig.end()
        if rig.store.name == "postgresql":
            store._server.close()  # type: ignore[attr-defined]


@pytest.fixture
def neighbour(rig: Rig, request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A second, blocking handle on the same store, as another thread of the process has."""
    store: Store
    if isinstance(rig.store, MemoryStore):
        store = MemoryStore(rig.store._world, blocking=True)
    elif rig.store.name == "postgresql":
        from tessera.store.postgres.store import PostgresStore

        assert isinstance(rig.store, PostgresStore)
        store = PostgresStore(rig.store._server, blocking=True)
    else:
        from tessera.store.sqlite import SqliteStore

        assert isinstance(rig.store, SqliteStore)
        store = SqliteStore(rig.store._file, blocking=True)
    other = Rig(store, blocking=True, clock=rig.clock, path=rig.path)
    other.run(store.open())
    yield other
    other.end()
