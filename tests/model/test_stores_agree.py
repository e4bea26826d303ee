"""The same random life is led in memory and in SQLite: every answer must agree, also with a plain model.

``TESSERA_TEST_SEED`` repeats the run whose seed a failure printed.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.lives import Lives

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
