"""PostgreSQL for tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import psycopg

from tests.servers.programs import as_server_user, free_port, hand_over, is_listening, program

STARTS_WITHIN = 60.0
FAST_AND_LOOSE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""For tests that no power cut is part of."""


def running_url() -> str | None:
    """A server that listens where PostgreSQL does, and a database on it."""
    if not is_listening(5432):
        return None
    for user in filter(None, (os.environ.get("PGUSER"), os.environ.get("USER"), "root", "postgres")):
        for database in ("test", "postgres"):
            url = f"postgresql://{user}@127.0.0.1:5432/{database}"
            try:
                psycopg.connect(url, connect_timeout=5).close()
            except psycopg.OperationalError:
                continue
            return url
    return None


class PrivatePostgres:
    """A server of the test's own: its folder, its port, ended by its pid."""

    def __init__(self, folder: Path | None = None, **settings: str) -> None:
        self._mine = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="tessera-postgres-")) if folder is None else folder
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        initdb = program("initdb", "postgresql")
        assert initdb is not None, "the caller has asked is_installed()"
        self._bin = Path(initdb).parent
        hand_over(self.folder)
        self._run(
            "initdb",
            "-D",
            self._data,
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
            "--locale=C",
        )

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    @property
    def command(self) -> list[str]:
        """What starts it."""
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", **self._settings}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return as_server_user([str(self._bin / "postgres"), "-D", self._data, "-p", str(self.port), *options])

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._launch()
        self.wait_until_it_answers()

    def _launch(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def wait_until_it_answers(self) -> None:
        end = time.monotonic() + STARTS_WITHIN
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
            except psycopg.OperationalError:
                if time.monotonic() > end:
                    raise
                if self._process is not None and self._process.poll() is not None:
                    self._launch()  # backends of the one that was killed still held its memory
                time.sleep(0.05)
                continue
            return

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

    def backends(self, application: str) -> list[int]:
        """Process ids of the server's side of connections."""
        with psycopg.connect(self.url) as connection:
            query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
            return [pid for (pid,) in connection.execute(query, (application,))]

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(STARTS_WITHIN)
            self._process = None

    def _run(self, name: str, *arguments: str) -> None:
        command = as_server_user([str(self._bin / name), *arguments])
        subprocess.run(command, check=True, capture_output=True, cwd="/", timeout=120)

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
