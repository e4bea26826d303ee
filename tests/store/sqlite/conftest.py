"""A file of its own for each test, and no thread left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tessera.store.sqlite import SqliteFile
from tests.store.sqlite.rig import Clock, Handle


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "work.db")


@pytest.fixture
def open_handle(path, clock) -> Iterator[Callable[..., Handle]]:
    """Opens handles, each on a ``SqliteFile`` of its own as another process would have, and closes them."""
    handles = []

    def open_one(**options) -> Handle:
        options = {"clock": clock, "synchronous": "normal", "ballast_bytes": 0, "path": path} | options
        handle = Handle(SqliteFile(options.pop("path"), **options))
        handles.append(handle)
        return handle

    yield open_one
    for handle in handles:
        handle.close()


@pytest.fixture
def handle(open_handle) -> Handle:
    return open_handle()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("tessera-sqlite")]
    assert ours == []
