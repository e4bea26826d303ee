"""Two releases at work on one PostgreSQL schema while it is migrated, taken back, migrated and contracted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest

from tests.faults import checker
from tests.faults.newer import FIELD
from tests.faults.rig import Process, Rig
from tests.servers.run import postgres_url
from tests.store.postgres.schema_rig import RELEASED, Place, next_steps

pytestmark = [pytest.mark.store("postgresql"), pytest.mark.timeout(120)]

MIX = {"nap": 8, "doze": 4, "stumble": 4, "keyed": 4}
WORKER = {"queues": ["work"], "lease_seconds": 5, "concurrency": 4, "sweep_seconds": 0.2}
NOTE = f"{len(RELEASED) + 1:04}_note"
HELD_AT_MOST = 0.2


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place("rolling", blocking=True, url=postgres_url())
    yield place
    place.end()


class Metronome:
    """Takes a lock on the hot table again and again, as every claim and finish does: the longest wait."""

    def __init__(self, schema: str) -> None:
        self.worst_seconds = 0.0
        self._statement = f"UPDATE {schema}.job SET rev = rev WHERE id = gen_random_uuid()"
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(20)

    def _run(self) -> None:
        with psycopg.connect(postgres_url(), autocommit=True) as connection:
            while not self._closed.wait(0.005):
                began = time.monotonic()
                connection.execute(self._statement)
                self.worst_seconds = max(self.worst_seconds, time.monotonic() - began)


def newer(rig: Rig, what: str, **plan: object) -> Process:
    return rig.start(f"newer_{what}", {"url": rig.url, **plan})


def finished(rig: Rig) -> int:
    return sum(event.what == "finished" for event in rig.events())


def work_on(rig: Rig, jobs: int) -> None:
    """Wait until so many more have come to an end."""
    goal = finished(rig) + jobs
    rig.until(lambda: finished(rig) >= goal, f"{jobs} more jobs end")


@pytest.mark.capability("F22")
def test_two_releases_share_the_tables_while_they_are_migrated_under_load(place: Place, tmp_path: Path):
    """T-rolling. INV-32."""
    schema = place.schema(next_steps())
    place.run(place.schema().open())
    url = f"{postgres_url()}?schema={place.name}"
    with Rig(tmp_path, url=url) as rig:
        assert rig.store.name == "postgresql"  # opened while this release may
        metronome = Metronome(place.name)
        try:
            old = [rig.worker(**WORKER) for _ in range(2)]
            old_producer = rig.producer(MIX, rate=20)
            work_on(rig, 10)
            assert place.run(schema.migrate(None)) == [NOTE]
            new = [newer(rig, "worker", settings=WORKER) for _ in range(2)]
            mix = {"who": "n1", "mix": MIX, "rate": 20.0, "seed": 1}
            new_producer = newer(rig, "producer", **mix)
            work_on(rig, 30)
            # Back, as long as nobody contracted: the older release goes on alone.
            rig.stop(*new, new_producer)
            assert place.run(schema.migrate(len(RELEASED))) == [f"{NOTE} (back)"]
            work_on(rig, 10)
            assert place.run(schema.migrate(None)) == [NOTE]
            new = [newer(rig, "worker", settings=WORKER) for _ in range(2)]
            new_producer = newer(rig, "producer", **{**mix, "who": "n2"})
            work_on(rig, 30)
            rig.stop(*old, old_producer)
            assert not [row for row in rig.rows().values() if has_field(row.body)]
            assert place.run(schema.contract()) == [f"{NOTE} (contract)"]
            work_on(rig, 20)
        finally:
            metronome.close()
        late = rig.worker(**WORKER)
        assert late.wait() != 0
        assert "upgrade Tessera" in rig.log_of(late)
        rig.stop(new_producer)
        rig.drain()
        rig.stop(*new)
        for key, row in rig.rows().items():
            for a, b in zip(row.ends, row.ends[1:]):
                if b.started_at < a.ended_at:
                    print("ENDS", key, row.kind, a.ended_at - b.started_at, row.ends)
                    print([e for e in rig.events() if e.job == key])
        events, rows = rig.check()
        found = [*checker.burnt(rows), *checker.overlapping_runs(events)]
        rig.report(jobs=len(rows), longest_wait=metronome.worst_seconds, machine_late=rig.pulse.worst_seconds)
        assert not found, "\n".join(found[:10])
        assert any(has_field(row.body) for row in rows.values())
        assert metronome.worst_seconds < 2 * HELD_AT_MOST + rig.pulse.worst_seconds


def has_field(body: bytes) -> bool:
    return bool(body) and FIELD in msgspec.msgpack.decode(body)
