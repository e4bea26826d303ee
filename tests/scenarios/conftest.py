"""An application on every store, and its client in both colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tessera import Tessera
from tests.scenarios.rig import Client
from tests.servers import schemas

STORES = ("memory", "sqlite", "postgresql")
COLOURS = ("blocking", "async")


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tessera]:
    with Tessera(_url(request.param, tmp_path)) as app:
        yield app


def _url(store: str, folder: Path) -> str:
    # What survives a power cut is tested elsewhere; here a sync a commit would be most of the time.
    if store == "postgresql":
        return schemas.real_url()
    return "memory://" if store == "memory" else f"sqlite:///{folder}/work.db?synchronous=normal"


@pytest.fixture(params=COLOURS)
def client(request: pytest.FixtureRequest) -> Client:
    return Client(request.param)


@pytest.fixture
def sibling(app: Tessera) -> Iterator[Callable[[], Tessera]]:
    """Makes further applications on the same store, as other programs have: other code, the same rows."""
    made: list[Tessera] = []

    def make() -> Tessera:
        other = Tessera(app.url)
        if app.url == "memory://":  # where the rows live in the process, that is what the two must share
            other._backend = app._connected()
        made.append(other)
        return other

    yield make
    for other in made:
        other.close()
