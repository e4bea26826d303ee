"""A rig for each test."""

from __future__ import annotations

import pytest

from tessera.store.protocol import run_blocking
from tests.worker.rig import Rig


@pytest.fixture
def rig() -> Rig:
    """An empty world, opened."""
    made = Rig()
    run_blocking(made.store.open())
    return made
