"""The servers of one test run: shared by all its processes, each found or started once.

A run is a pytest process, or the controller of its workers. Its name stands in the environment, where workers
find it. The first process that needs a server starts it, under a lock, and writes its URL into the run's
folder.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.servers import bouncer, postgres
from tests.servers.keeper import Kept
from tests.servers.programs import is_alive, is_allowed, is_listening, why_not_installed

VARIABLE = "TESSERA_TEST_RUN"
PREFIX = "tessera-test-run-"
ENDS_WITHIN = 20.0
_kept: list[Kept] = []
"""What this process started for the run."""


class CannotBeHad(Exception):
    """Nothing on this machine, as the environment stands, is such a server; the text says why."""


def begin() -> None:
    """Give the run of this process a name. Workers, and they alone, share the name that they find."""
    os.environ[VARIABLE] = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"


def run_pid() -> int:
    """The process that the run lives and dies with."""
    return int(_name().removeprefix(PREFIX).partition("-")[0])


def run_folder() -> Path:
    """A folder that all processes of this run know of."""
    folder = Path(tempfile.gettempdir()) / _name()
    if not folder.exists():
        _remove_what_dead_runs_left()
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    return folder


def end() -> None:
    """At the end of the run, by the process that it is: servers are ended, and waited for."""
    folder = Path(tempfile.gettempdir()) / _name()
    if not folder.exists() or run_pid() != os.getpid():
        return
    keepers = [int(one.read_text()) for one in folder.glob("*.keeper")]
    # Keepers miss the folder by its name, and end their servers.
    gone = folder.rename(folder.with_name(f"{folder.name}-ended"))
    limit = time.monotonic() + ENDS_WITHIN
    while any(map(is_alive, keepers)) and time.monotonic() < limit:
        for kept in _kept:
            kept.keeper.poll()  # or it would stay a zombie
        time.sleep(0.02)
    shutil.rmtree(gone, ignore_errors=True)


@cache
def postgres_url() -> str:
    """A PostgreSQL server. Skips the test, with what would not skip it, where none can be had."""
    return _url_or_skip("postgres", _postgres)


@cache
def pgbouncer_url() -> str:
    """A PgBouncer in transaction mode with a pool of two in front of it."""
    postgres_url()
    return _url_or_skip("pgbouncer", _pgbouncer)


def _postgres() -> str:
    if is_allowed("USE_RUNNING") and (url := postgres.running_url()):
        return url
    if not postgres.is_installed():
        if not is_allowed("USE_RUNNING"):
            also = "; one that listens is used with TESSERA_TEST_USE_RUNNING=1"
        elif is_listening(postgres.LISTENS_AT):
            also = "; the one that listens lets us in nowhere (PGUSER, PGPASSWORD)"
        else:
            also = "; none listens at 127.0.0.1:5432"
        raise CannotBeHad(f"no PostgreSQL: {why_not_installed('postgresql')}{also}")
    folder = run_folder() / "postgres"
    server = postgres.PrivatePostgres(folder, max_connections="200", **postgres.FAST_AND_LOOSE)
    _ended_with_the_run("postgres", server.keep(run_pid(), run_folder()))
    return server.url


def _pgbouncer() -> str:
    if not bouncer.is_installed():
        raise CannotBeHad(f"no PgBouncer: {why_not_installed('pgbouncer')}")
    url, kept = bouncer.start(postgres_url(), run_folder() / "pgbouncer", run_pid(), run_folder())
    _ended_with_the_run("pgbouncer", kept)
    return url


def _ended_with_the_run(name: str, kept: Kept) -> None:
    """It is ours, so that the end of the run waits for its end."""
    _kept.append(kept)
    (run_folder() / f"{name}.keeper").write_text(str(kept.keeper.pid))


def _url_or_skip(name: str, start: Callable[[], str]) -> str:
    """What the first process of the run found or started. What failed there is not tried a second time."""
    folder = run_folder()
    url, missing, failed = (folder / f"{name}.{what}" for what in ("url", "missing", "failed"))
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (url.exists() or missing.exists() or failed.exists()):
            try:
                url.write_text(start(), encoding="utf-8")
            except CannotBeHad as reason:
                missing.write_text(str(reason), encoding="utf-8")
            except Exception as error:
                failed.write_text(f"{error}", encoding="utf-8")
                raise
    if missing.exists():
        pytest.skip(missing.read_text(encoding="utf-8"))
    if failed.exists():
        raise RuntimeError(failed.read_text(encoding="utf-8"))
    return url.read_text(encoding="utf-8")


def _name() -> str:
    if VARIABLE not in os.environ:
        begin()
    return os.environ[VARIABLE]


def _remove_what_dead_runs_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdecimal() and not is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
