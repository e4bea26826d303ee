"""Processes on one SQLite file, and what is needed to strike them and to look at what is left.

Everything that is started here is known by its pid and is gone when the rig closes, whatever happened.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from tessera.model.ids import show_id
from tessera.model.job import Job
from tessera.model.queries import Filter, Page
from tessera.model.states import State
from tessera.store.protocol import run_blocking
from tessera.store.sqlite import SqliteFile, SqliteStore
from tests.faults import checker, history
from tests.faults.history import Event, History

ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE: Final = 40.0
"""Seconds after which what should have happened is a failure."""
QUIET: Final = (State.COMPLETED, State.DEAD, State.CANCELLED, State.QUARANTINED)


class Process:
    """One process that was started here."""

    def __init__(self, popen: subprocess.Popen[bytes], name: str, path: Path) -> None:
        self._popen = popen
        self.name = name
        self.path = path
        """Its history."""

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._popen.poll() is None

    def send(self, number: int) -> None:
        """Send a signal to the process alone."""
        with suppress(ProcessLookupError):
            self._popen.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit status."""
        return self._popen.wait(seconds)

    def end(self) -> None:
        """Kill it and whatever is left of its process group, and reap it."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        self._popen.wait(PATIENCE)

    def events(self) -> list[Event]:
        """What it has written down so far."""
        return history.read_file(self.path) if self.path.exists() else []


class Rig:
    """A database file, its processes and their histories. Use as a context."""

    def __init__(self, folder: Path, *, synchronous: str = "normal", database: Path | None = None) -> None:
        self.folder = folder
        self.database = database or folder / "work.db"
        self.url = f"sqlite:///{self.database}?synchronous={synchronous}"
        self.processes: list[Process] = []
        self.seed = int.from_bytes(os.urandom(4), "big")
        self.random = random.Random(self.seed)
        self.own = History(folder / "rig.history", "rig")
        self._store: SqliteStore | None = None
        print(f"seed {self.seed}")

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.end()
        self.close_store()
        self.own.close()

    # Processes --------------------------------------------------------------------------------------------------------

    def start(self, module: str, argument: object, name: str = "") -> Process:
        """Start ``python -m tests.faults.<module>`` with a history of its own."""
        name = f"{name or module}-{len(self.processes)}"
        path = self.folder / f"{name}.history"
        # Coverage in a child that is killed at random measures nothing and doubles its start.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("COVERAGE_", "COV_CORE_"))}
        with (self.folder / f"{name}.log").open("wb") as log:
            popen = subprocess.Popen(
                [sys.executable, "-m", f"tests.faults.{module}", msgspec.json.encode(argument).decode()],
                cwd=ROOT,
                env={**env, history.VARIABLE: str(path), "PYTHONFAULTHANDLER": ""},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        process = Process(popen, name, path)
        self.processes.append(process)
        return process

    def worker(self, **settings: object) -> Process:
        """Start a worker of the queue ``work``, unless the settings name others."""
        usual = {"queues": ["work"], "lease_seconds": 1.5, "concurrency": 4, "sweep_seconds": 0.2}
        return self.start("worker", {"url": self.url, "settings": {**usual, **settings}})

    def producer(self, mix: Mapping[str, int], **plan: object) -> Process:
        """Start a producer."""
        who = f"p{len(self.processes)}"
        seed = self.random.getrandbits(30)
        return self.start("producer", {"url": self.url, "who": who, "mix": mix, "seed": seed, **plan})

    def kill(self, process: Process) -> None:
        """kill -9, and reap it. Noted before: whatever it wrote down lies before that or was already under way."""
        self.own.note("killed", pid=process.pid)
        process.send(signal.SIGKILL)
        process.wait()

    def pause(self, process: Process, seconds: float) -> None:
        """SIGSTOP for so long."""
        self.own.note("paused", pid=process.pid)
        process.send(signal.SIGSTOP)
        time.sleep(seconds)
        self.own.note("continued", pid=process.pid)
        process.send(signal.SIGCONT)

    def stop(self, *processes: Process) -> None:
        """SIGTERM to all, then wait for all; each must end well."""
        for process in processes:
            self.own.note("asked", pid=process.pid)
            process.send(signal.SIGTERM)
        for process in processes:
            assert process.wait() == 0, f"{process.name} did not end well:\n{self.log_of(process)}"

    def log_of(self, process: Process) -> str:
        """What it printed."""
        return (self.folder / f"{process.name}.log").read_text(errors="replace")[-4_000:]

    # Waiting ----------------------------------------------------------------------------------------------------------

    def until(self, holds: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        """Wait until something holds."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"not within {seconds:g} s: {what}\n{self.counts()}"
            time.sleep(0.02)

    def drain(self, seconds: float = PATIENCE) -> None:
        """Wait until every job has come to an end."""
        self.until(lambda: all(state in QUIET for (_, state), n in self.counts().items() if n), "all jobs end", seconds)

    # Looking ----------------------------------------------------------------------------------------------------------

    @property
    def store(self) -> SqliteStore:
        """A blocking handle of the test itself."""
        if self._store is None:
            self._store = SqliteStore(SqliteFile(str(self.database), synchronous="normal"), blocking=True)
            run_blocking(self._store.open())
        return self._store

    def close_store(self) -> None:
        """Give that handle up."""
        if self._store is not None:
            run_blocking(self._store.close())
            self._store = None

    def counts(self) -> dict[tuple[str, State], int]:
        """Jobs by queue and state."""
        return run_blocking(self.store.count_jobs())

    def rows(self) -> dict[str, Job]:
        """Every row, by printed key."""
        found: list[Job] = []
        page = Page(limit=200)
        while True:
            answer = run_blocking(self.store.find_jobs(Filter(), page))
            found += answer.jobs
            if not answer.after:
                return {show_id(job.id): job for job in found}
            page = Page(answer.after, 200)

    def events(self) -> list[Event]:
        """All histories, in the order of time."""
        return history.read(self.folder)

    def unsound(self) -> list[str]:
        """What the store finds wrong with itself, and SQLite with the file."""
        found = run_blocking(self.store.verify())
        self.close_store()
        with sqlite3.connect(self.database) as connection:
            found += [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
        connection.close()
        return found

    def check(self, planned: Mapping[str, State] | None = None) -> tuple[list[Event], dict[str, Job]]:
        """Read everything once all is quiet, and fail on the first ten things that are wrong."""
        events, rows = self.events(), self.rows()
        found = [*checker.problems(events, rows, planned), *self.unsound()]
        assert not found, "\n".join([f"{len(found)} problems, seed {self.seed}:", *found[:10]])
        return events, rows

    def report(self, **figures: Any) -> None:
        """Print what was measured, and keep it beside the histories."""
        line = ", ".join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in figures.items())
        print(line)
        (self.folder / "report.txt").write_text(line + "\n")


def _shown(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
