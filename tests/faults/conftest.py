"""Tests of this folder run real processes on one SQLite file, or on one server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.rig import Rig
from tests.servers import schemas


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A file, and no process yet."""
    with Rig(tmp_path) as rig:
        yield rig


@pytest.fixture(params=["sqlite", "postgresql"])
def any_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """A store that several processes can share, as durable as it is by default, and no process yet."""
    url = schemas.durable_url() if request.param == "postgresql" else ""
    with Rig(tmp_path, synchronous="full", url=url) as rig:
        yield rig
