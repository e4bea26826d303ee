"""Drivers to a table of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.postgres.driver_rig import Flyer, server_of


@pytest.fixture(params=["blocking", "async"])
def flyer(request: pytest.FixtureRequest) -> Iterator[Flyer]:
    """One of either colour, straight to the server."""
    flyer = Flyer(server_of(), blocking=request.param == "blocking")
    yield flyer
    flyer.close()


@pytest.fixture
def async_flyer() -> Iterator[Flyer]:
    flyer = Flyer(server_of(), blocking=False)
    yield flyer
    flyer.close()


@pytest.fixture
def blocking_flyer() -> Iterator[Flyer]:
    flyer = Flyer(server_of(), blocking=True)
    yield flyer
    flyer.close()
