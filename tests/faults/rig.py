"""Processes on one SQLite file or one server, and what is needed to strike them and to look at what is left.

Everything that is started here is known by its pid and is gone when the rig closes, whatever happened.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from tessera.connect import Backend, connect
from tessera.model.ids import show_id
from tessera.model.job import Job
from tessera.model.queries import Filter, Page
from tessera.model.states import State
from tessera.store.protocol import Store, run_blocking
from tests.faults import checker, history, nursery
from tests.faults.history import Event, History

ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE: Final = 40.0
"""Seconds after which what should have happened is a failure."""
QUIET: Final = (State.COMPLETED, State.DEAD, State.CANCELLED, State.QUARANTINED)


class Process:
    """One process that was started here."""

    def __init__(self, pid: int, name: str, path: Path) -> None:
        self.pid = pid
        self.name = name
        self.path = path
        """Its history."""
        self.status: int | None = None
        """How it ended: an exit status, or a signal as a negative number; None while it lives."""
        self._ended = threading.Event()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended yet."""
        return not self._ended.is_set()

    def has_ended(self, status: int) -> None:
        """Note how."""
        self.status = status
        self._ended.set()

    def send(self, number: int) -> None:
        """Send a signal to the process alone, if it is there."""
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """How it ended."""
        assert self._ended.wait(seconds), f"{self.name} (pid {self.pid}) did not end within {seconds:g} s"
        assert self.status is not None
        return self.status

    def events(self) -> list[Event]:
        """What it has written down so far."""
        return history.read_file(self.path) if self.path.exists() else []


class Born:
    """The rig's end of a nursery."""

    def __init__(self, folder: Path, within: Sequence[str]) -> None:
        # Coverage of what is killed at random says nothing, and doubles the time of a start.
        env = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}
        with (folder / "nursery.log").open("wb") as log:
            self._nursery = subprocess.Popen(
                [*within, sys.executable, "-m", "tests.faults.nursery"],
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._births: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._processes: dict[int, Process] = {}
        self._early: dict[int, int] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def bear(self, birth: nursery.Birth, name: str) -> Process:
        """Have a process started."""
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(msgspec.json.encode(birth) + b"\n")
        self._nursery.stdin.flush()
        process = Process(self._births.get(timeout=PATIENCE), name, Path(birth.history))
        with self._lock:
            self._processes[process.pid] = process
            if process.pid in self._early:
                process.has_ended(self._early.pop(process.pid))
        return process

    def close(self) -> None:
        """End all that is left."""
        for process in self._processes.values():
            process.send(signal.SIGKILL)
        for process in self._processes.values():
            process.wait()
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.close()
        self._nursery.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._nursery.stdout.close()

    def _read(self) -> None:
        assert self._nursery.stdout is not None
        for line in self._nursery.stdout:
            news = msgspec.json.decode(line, type=nursery.News)
            if news.status is None:
                self._births.put(news.pid)
                continue
            with self._lock:
                process = self._processes.get(news.pid)
                if process is None:
                    self._early[news.pid] = news.status
                else:
                    process.has_ended(news.status)


class Pulse:
    """How late this machine is: what a small write to its disk, ten times a second, ever took.

    A bound on the time that Tessera takes holds on a machine that gives it the time. Others work here too.
    """

    def __init__(self, path: Path) -> None:
        self.worst_seconds = 0.0
        self._path = path
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop measuring."""
        self._closed.set()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            due = time.monotonic()
            while not self._closed.is_set():
                file.write(b"x" * 4_096)
                os.fsync(file.fileno())
                self.worst_seconds = max(self.worst_seconds, time.monotonic() - due)
                due = time.monotonic() + 0.1
                self._closed.wait(0.1)


class Rig:
    """A store, its processes and their histories. Use as a context."""

    def __init__(
        self,
        folder: Path,
        *,
        synchronous: str = "normal",
        database: Path | None = None,
        within: Sequence[str] = (),
        url: str = "",
    ) -> None:
        """``within``: a command that the processes are started by. ``url``: a store that is no file."""
        self.folder = folder
        self.database = database or folder / "work.db"
        self.url = url or f"sqlite:///{self.database}?synchronous={synchronous}"
        self.processes: list[Process] = []
        self.seed = int.from_bytes(os.urandom(4), "big")
        self.random = random.Random(self.seed)
        self.own = History(folder / "rig.history", "rig")
        self.pulse = Pulse(folder / "pulse")
        self._born = Born(folder, within)
        self._backend: Backend | None = None
        self._store: Store | None = None
        print(f"seed {self.seed}")

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self._born.close()
        self.pulse.close()
        self.close_store()
        self.own.close()

    # Processes ----------------------------------------------------------------------------------------------

    def start(self, module: str, argument: object) -> Process:
        """Start a process, with a history and a log of its own."""
        name = f"{module}-{len(self.processes)}"
        told = msgspec.json.encode(argument).decode()
        path, log = self.folder / f"{name}.history", self.folder / f"{name}.log"
        process = self._born.bear(nursery.Birth(module, told, str(path), str(log)), name)
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
        """kill -9, and reap it. Noted before: whatever it wrote down lies before that or was already under
        way."""
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
        """SIGTERM to all, then wait for all; each must end well, but for one that had not begun to listen."""
        for process in processes:
            self.own.note("asked", pid=process.pid)
            process.send(signal.SIGTERM)
        for process in processes:
            status = process.wait()
            is_early = status == -signal.SIGTERM and all(event.what == "lives" for event in process.events())
            assert status == 0 or is_early, f"{process.name} ended with {status}:\n{self.log_of(process)}"

    def log_of(self, process: Process) -> str:
        """What it printed."""
        log = self.folder / f"{process.name}.log"
        return log.read_text(errors="replace")[-4_000:] if log.exists() else ""

    # Waiting ------------------------------------------------------------------------------------------------

    def until(self, holds: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        """Wait until something holds."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"not within {seconds:g} s: {what}\n{self.counts()}"
            time.sleep(0.02)

    def drain(self, seconds: float = PATIENCE) -> None:
        """Wait until every job has come to an end."""
        self.until(
            lambda: all(state in QUIET for (_, state), n in self.counts().items() if n),
            "all jobs end",
            seconds,
        )

    # Looking ------------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """A blocking handle of the test itself."""
        if self._store is None:
            self._backend = connect(self.url)
            self._store = self._backend.handle(blocking=True)
            run_blocking(self._store.open())
        return self._store

    def close_store(self) -> None:
        """Give that handle up."""
        if self._store is not None:
            run_blocking(self._store.close())
            self._store = None
        if self._backend is not None:
            self._backend.close()
            self._backend = None

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
        if not self.database.exists():
            return found
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
