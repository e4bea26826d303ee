"""The servers of one test run: shared by all its processes, each found or started once."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.servers import bouncer, postgres
from tests.servers.programs import is_allowed

_keepers: list[subprocess.Popen[bytes]] = []


def run_pid() -> int:
    """The process that the run lives and dies with: pytest's own, or the controller of its workers."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def run_folder() -> Path:
    """A folder that all processes of this run know of."""
    folder = Path(tempfile.gettempdir()) / f"tessera-test-run-{run_pid()}"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    return folder


def remove_run_folder() -> None:
    """At the end of the run, by the process that it is."""
    shutil.rmtree(run_folder(), ignore_errors=True)


@cache
def postgres_url() -> str:
    """A PostgreSQL server. Skips the test, with what would not skip it, where none can be had."""
    return _once("postgres", _postgres) or pytest.skip(
        "no PostgreSQL: none is installed, and none that runs may be used"
    )


@cache
def pgbouncer_url() -> str:
    """A PgBouncer in transaction mode with a pool of two in front of it."""
    upstream = postgres_url()
    return _once("pgbouncer", lambda: bouncer.start(upstream, run_folder(), keep)) or pytest.skip(
        "no PgBouncer is installed"
    )


def keep(command: list[str], log: Path) -> None:
    """Run a server as long as this test run lasts."""
    keeper = [sys.executable, "-m", "tests.servers.keeper", str(run_pid()), str(log), *command]
    root = Path(__file__).parent.parent.parent
    process = subprocess.Popen(
        keeper,
        cwd=root,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _keepers.append(process)  # it outlives this process: nobody waits for it


def _postgres() -> str | None:
    if is_allowed("USE_RUNNING") and (url := postgres.running_url()):
        return url
    if not postgres.is_installed():
        return None
    folder = run_folder() / "postgres"
    folder.mkdir()
    server = postgres.PrivatePostgres(folder, max_connections="200", **postgres.FAST_AND_LOOSE)
    keep(server.command, folder / "log")
    server.wait_until_it_answers()
    return server.url


def _once(name: str, start: Callable[[], str | None]) -> str | None:
    """What the first process of the run found or started; '' in the file = nothing can be had."""
    kept = run_folder() / f"{name}.url"
    with (run_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(start() or "", encoding="utf-8")
        return kept.read_text(encoding="utf-8") or None
