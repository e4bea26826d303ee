"""What holds for every test: an environment of its own, fair time limits, an account of what was skipped."""

import os

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


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        run.remove_run_folder()


def _forget_the_users_settings() -> None:
    """A ``TESSERA_URL`` in the shell must not lead a test to the user's store; ``TESSERA_TEST_*`` is ours."""
    for name in [name for name in os.environ if name.startswith("TESSERA_")]:
        if not name.startswith("TESSERA_TEST_"):
            del os.environ[name]
