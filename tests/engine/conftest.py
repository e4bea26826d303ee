"""A fresh engine for each test, and a sound store at its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tessera import seam
from tests.engine.lab import Lab, LoadedSeam


@pytest.fixture
def lab() -> Iterator[Lab]:
    world = LoadedSeam()
    with seam.use(world):
        lab = Lab(world)
        yield lab
        lab.check()
