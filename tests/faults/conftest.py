"""Tests of this folder run real processes on one SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A file, and no process yet."""
    with Rig(tmp_path) as rig:
        yield rig
