"""What holds for every test: an environment of its own, fair time limits, an account of what was skipped,
servers that end with the run.
"""

import atexit
import os
from collections.abc import Callable

import pytest
from hypothesis import settings

from tests import evidence, skip_report
from tests.servers import run


def pytest_configure(config: pytest.Config) -> None:
    _forget_the_users_settings()
    # Coverage and neighbours slow a machine: pytest-timeout ends what hangs, a slow example is no failure.
    settings.register_profile("tessera", deadline=None, print_blob=True)
    settings.load_profile("tessera")
    skip_report.install(config)
    evidence.install(config)
    if not hasattr(config, "workerinput"):
        run.begin()
        atexit.register(run.end)  # the first to be registered comes last: others still drop their schemas


@pytest.fixture(scope="session")
def postgres_url() -> str:
    """``postgresql://user@host:port/database`` of a server that all tests share."""
    return run.postgres_url()


@pytest.fixture(scope="session")
def pgbouncer_url() -> str:
    """The same by way of PgBouncer: transaction mode, two server connections."""
    return run.pgbouncer_url()


@pytest.fixture(scope="session")
def schema_name() -> Callable[[], str]:
    """Makes names of schemas that nobody has; they are dropped at the end of the session."""
    from tests.servers.schemas import schema_name

    return schema_name


def _forget_the_users_settings() -> None:
    """A ``TESSERA_URL`` in the shell must not lead a test to the user's store; ``TESSERA_TEST_*`` is ours."""
    for name in [name for name in os.environ if name.startswith("TESSERA_")]:
        if not name.startswith("TESSERA_TEST_"):
            del os.environ[name]
