"""PostgreSQL for tests."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import psycopg

from tests.servers.keeper import Kept
from tests.servers.programs import free_port, hand_over, is_listening, program, server_identity

STARTS_WITHIN = 60.0
LISTENS_AT = 5432
FAST_AND_LOOSE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""For tests that no power cut is part of."""
STILL_HELD = "is still in use"
"""What a server says whose predecessor was killed, as long as the backends of that one live."""
ALWAYS = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "shared_buffers": "16MB"}


def running_url() -> str | None:
    """A server that listens where PostgreSQL does, and a database on it in which we may make schemas."""
    if not is_listening(LISTENS_AT):
        return None
    for user in dict.fromkeys(filter(None, (os.environ.get("PGUSER"), getpass.getuser(), "postgres"))):
        for database in ("test", "postgres"):
            url = f"postgresql://{user}@127.0.0.1:{LISTENS_AT}/{database}"
            try:
                with psycopg.connect(url, connect_timeout=5) as connection:
                    query = "SELECT has_database_privilege(current_database(), 'CREATE')"
                    if connection.execute(query).fetchone() == (True,):
                        return url
            except psycopg.OperationalError:
                continue
    return None


class PrivatePostgres:
    """A server of the test's own: its folder, its port, ended by its pid, at the latest with this process.

    ``settings`` are those of ``postgresql.conf``. Without any, commits wait for the disk.
    """

    def __init__(self, folder: Path | None = None, **settings: str) -> None:
        self._mine = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="tessera-postgres-")) if folder is None else folder
        self.folder.mkdir(exist_ok=True)
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._settings = ALWAYS | settings
        self._kept: Kept | None = None
        initdb = program("initdb", "postgresql")
        assert initdb is not None, "the caller has asked is_installed()"
        self._bin = Path(initdb).parent
        hand_over(self.folder)
        self._initdb("-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    @property
    def command(self) -> list[str]:
        """What starts it."""
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._bin / "postgres"), "-D", self._data, "-p", str(self.port), *options]

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / "log"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._launch()
        self.wait_until_it_answers()

    def _launch(self) -> None:
        self._kept = Kept(self.command, self.log, os.getpid(), self.folder, remove=self._mine)

    def keep(self, run: int, folder: Path) -> Kept:
        """Start it for a process that outlives this one, and wait; the folder goes with that process."""
        kept = Kept(self.command, self.log, run, folder, remove=True)
        self._wait(kept)
        return kept

    def wait_until_it_answers(self) -> None:
        """Within a minute, else the error says what the server's log ends with."""
        self._wait(self._kept)

    def _wait(self, kept: Kept | None) -> None:
        end = time.monotonic() + STARTS_WITHIN
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
            except psycopg.OperationalError as error:
                has_ended = kept is not None and kept.has_ended
                if has_ended and kept is self._kept and STILL_HELD in self._last_words():
                    self._launch()
                    kept = self._kept
                elif has_ended or time.monotonic() > end:
                    self.stop("immediate")
                    raise RuntimeError(f"PostgreSQL does not start: {self._last_words() or error}") from error
                time.sleep(0.05)
                continue
            return

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-1000:]

    def stop(self, mode: str = "fast") -> None:
        """``fast`` ends connections, ``immediate`` is a crash with a recovery at the next start."""
        self._signal({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])

    def kill(self) -> None:
        """kill -9 of the postmaster; its backends follow by themselves."""
        self._signal(signal.SIGKILL)
        end = time.monotonic() + STARTS_WITHIN
        while is_listening(self.port) and time.monotonic() < end:
            time.sleep(0.02)

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    @property
    def pid(self) -> int | None:
        """Of the postmaster; None if it does not run."""
        return None if self._kept is None or self._kept.has_ended else self._kept.pid

    def backends(self, application: str) -> list[int]:
        """Process ids of the server's side of connections."""
        with psycopg.connect(self.url) as connection:
            query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
            return [pid for (pid,) in connection.execute(query, (application,))]

    def _signal(self, number: signal.Signals) -> None:
        if self._kept is not None:
            self._kept.end(number, STARTS_WITHIN)
            self._kept = None

    def _initdb(self, *options: str) -> None:
        done = subprocess.run(
            [str(self._bin / "initdb"), "-D", self._data, *options],
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
            timeout=120,
            **server_identity(),
        )
        if done.returncode:
            raise RuntimeError(f"initdb: {done.stderr.strip()}")

    def __enter__(self) -> PrivatePostgres:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop("immediate")
        if self._mine:
            shutil.rmtree(self.folder, ignore_errors=True)


def is_installed() -> bool:
    """Whether a private server can be had here."""
    return program("initdb", "postgresql") is not None
