"""Every store in both colours, fresh for each test, and sound at its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.store.memory import MemoryStore, World
from tessera.store.protocol import Store
from tests.conformance.rig import ManualClock, Rig

STORES = ("memory", "sqlite")
COLOURS = ("blocking", "async")
INSTALLATION = bytes(range(16))


def build(name: str, folder: Path, clock: ManualClock, *, blocking: bool) -> tuple[Store, Path | None]:
    """A store of that name, not yet opened."""
    if name == "memory":
        return MemoryStore(World(INSTALLATION, clock), blocking=blocking), None
    from tessera.store.sqlite import SqliteFile, SqliteStore

    path = folder / "work.db"
    # What survives a power cut is tested elsewhere; here a sync a commit would be most of the time.
    file = SqliteFile(str(path), clock=clock, synchronous="normal", ballast_bytes=0)
    return SqliteStore(file, blocking=blocking), path


@pytest.fixture(params=[f"{store}-{colour}" for store in STORES for colour in COLOURS])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    name, colour = request.param.split("-")
    clock = ManualClock()
    blocking = colour == "blocking"
    store, path = build(name, tmp_path, clock, blocking=blocking)
    rig = Rig(store, blocking=blocking, clock=clock, path=path)
    rig.run(store.open())
    try:
        yield rig
        rig.check()
    finally:
        rig.end()


@pytest.fixture
def neighbour(rig: Rig, request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A second, blocking handle on the same store, as another thread of the process has."""
    store: Store
    if isinstance(rig.store, MemoryStore):
        store = MemoryStore(rig.store._world, blocking=True)
    else:
        from tessera.store.sqlite import SqliteStore

        assert isinstance(rig.store, SqliteStore)
        store = SqliteStore(rig.store._file, blocking=True)
    other = Rig(store, blocking=True, clock=rig.clock, path=rig.path)
    other.run(store.open())
    yield other
    other.end()
