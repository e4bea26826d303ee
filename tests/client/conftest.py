"""An application on each store, and its face in both colours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera import Tessera
from tests.client.colours import Colour
from tests.servers import schemas


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://"
    if request.param == "postgresql":
        return schemas.real_url()
    # What survives a power cut is tested elsewhere; here a sync a commit would be most of the time.
    return f"sqlite:///{tmp_path}/work.db?synchronous=normal"


@pytest.fixture
def app(url: str) -> Iterator[Tessera]:
    with Tessera(url) as app:
        yield app


@pytest.fixture(params=["blocking", "async"])
def colour(request: pytest.FixtureRequest, app: Tessera) -> Iterator[Colour]:
    with Colour(app, is_async=request.param == "async") as colour:
        yield colour
