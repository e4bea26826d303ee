"""What the manual says of connections, counted on the server."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tessera.store.postgres.upkeep import worker_connections
from tests.faults.rig import Rig
from tests.servers import schemas

pytestmark = [pytest.mark.store("postgresql"), pytest.mark.timeout(90)]

MIX = {"nap": 1, "doze": 1}


class Watch:
    """The most connections of a name that were ever seen at once."""

    def __init__(self, application: str) -> None:
        self.most = 0
        self._application = application
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(20)

    def _run(self) -> None:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        with psycopg.connect(schemas.direct_url(), autocommit=True) as connection:
            while not self._closed.wait(0.01):
                [(count,)] = connection.execute(query, (self._application,)).fetchall()
                self.most = max(self.most, count)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, url=schemas.real_url()) as rig:
        yield rig


@pytest.mark.parametrize("connections", [1, 4])
def test_a_worker_opens_no_more_connections_than_the_manual_says(rig: Rig, connections: int):
    rig.store  # noqa: B018  opened under its own name
    name = f"tessera-test-{os.getpid()}-{connections}"
    producer = rig.producer(MIX, rate=0, limit=300, longest_ms=20)
    producer.wait()
    rig.url += f"&connections={connections}&application_name={name}"
    watch = Watch(name)
    try:
        worker = rig.worker(concurrency=40, lease_seconds=5)
        rig.drain()
        rig.stop(worker)
    finally:
        watch.close()
    rig.report(most=watch.most, said=worker_connections(connections))
    assert 2 <= watch.most <= worker_connections(connections)
