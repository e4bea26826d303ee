"""The same random life is led in memory and in SQLite: every answer must agree, also with a plain model.

``TESSERA_TEST_SEED`` repeats the run whose seed a failure printed.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tessera.store.memory import World
from tessera.store.postgres import claiming, lanes
from tessera.store.postgres.store import PostgresStore
from tessera.store.sql import tags
from tests.conformance.conftest import INSTALLATION
from tests.conformance.rig import Rig
from tests.model.gated import GatedMemoryStore
from tests.model.lives import Lives
from tests.servers import schemas

COMMON = settings(
    stateful_step_count=50,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


@pytest.mark.capability("T1")
@pytest.mark.timeout(600)
def test_memory_and_sqlite_lead_the_same_life():
    """INV-1 to INV-9, INV-14, INV-15, INV-17, INV-19 to INV-21, INV-25, INV-26: always the same lives."""
    run_state_machine_as_test(Lives, settings=settings(COMMON, max_examples=90, derandomize=True))


@pytest.mark.timeout(600)
def test_memory_and_sqlite_lead_the_same_life_from_a_fresh_seed(record_property):
    """As above: other lives in each run."""
    number = int(os.environ.get("TESSERA_TEST_SEED") or int.from_bytes(os.urandom(4), "big"))
    record_property("seed", number)
    print(f"TESSERA_TEST_SEED={number}")
    fresh = seed(number)(type("Fresh", (Lives,), {}))
    run_state_machine_as_test(fresh, settings=settings(COMMON, max_examples=60))


class GatedLives(Lives):
    """The same on PostgreSQL, against a memory store with a gate."""

    def make_rigs(self) -> list[Rig]:
        server, clock = schemas.with_clock(INSTALLATION, pooled=False)
        self.server = server
        clock.is_forward_only = True
        stores = (GatedMemoryStore(World(INSTALLATION, clock)), PostgresStore(server, blocking=True))
        return [Rig(store, blocking=True, clock=clock) for store in stores]

    def teardown(self) -> None:
        super().teardown()
        self.server.close()


@pytest.fixture
def nothing_by_the_clock_of_this_machine(monkeypatch):
    """What a process remembers for a moment, it forgets at once: else an answer would hang on the hour."""
    monkeypatch.setattr(claiming, "GATED_SECONDS", 0.0)
    monkeypatch.setattr(lanes, "SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(tags, "FLOORS_KEPT_SECONDS", 0.0)


@pytest.mark.store("postgresql")
@pytest.mark.capability("T1")
@pytest.mark.timeout(600)
def test_postgresql_and_memory_with_a_gate_lead_the_same_life(nothing_by_the_clock_of_this_machine):
    """As above."""
    run_state_machine_as_test(GatedLives, settings=settings(COMMON, max_examples=20, derandomize=True))


@pytest.mark.store("postgresql")
@pytest.mark.timeout(600)
def test_postgresql_and_memory_lead_the_same_life_from_a_fresh_seed(
    nothing_by_the_clock_of_this_machine, record_property
):
    """As above: other lives in each run."""
    number = int(os.environ.get("TESSERA_TEST_SEED") or int.from_bytes(os.urandom(4), "big"))
    record_property("seed", number)
    print(f"TESSERA_TEST_SEED={number}")
    fresh = seed(number)(type("Fresh", (GatedLives,), {}))
    run_state_machine_as_test(fresh, settings=settings(COMMON, max_examples=12))
