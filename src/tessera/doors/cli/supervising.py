"""Several worker processes under one, and workers that start anew when their code changes.

The supervisor imports no code of the application, so that nothing there can take it down. A child that ends
is started again, later each time if it does not live long. A child notices the supervisor's death by the end
of its stdin, and stops as if it had been asked to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera import seam
from tessera.doors.cli.failing import SETTINGS, USAGE

logger = logging.getLogger("tessera.supervisor")

FIRST_BACKOFF_SECONDS: Final = 0.5
LONGEST_BACKOFF_SECONDS: Final = 30.0
LIVED_LONG_SECONDS: Final = 30.0
"""A child that lived so long starts again at once."""
HOPELESS: Final = (USAGE, SETTINGS)
"""Exit statuses that another start would only repeat."""
RELOAD_GRACE_SECONDS: Final = 5.0
WATCH_SECONDS: Final = 0.5
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


@dataclass
class Child:
    """One place, and the process that fills it now."""

    number: int
    process: asyncio.subprocess.Process | None = None
    backoff: float = FIRST_BACKOFF_SECONDS


class Supervisor:
    """``argv`` gives the command of each place, counted from 1, and ``on_end`` is told when its process has
    ended. ``watched``: the folder whose .py files restart the children when they change."""

    def __init__(
        self,
        argv: Callable[[int], Sequence[str]],
        count: int,
        *,
        watched: Path | None = None,
        on_end: Callable[[int], object] = lambda number: None,
    ) -> None:
        self._argv = argv
        self._children = [Child(number) for number in range(1, count + 1)]
        self._watched = watched
        self._on_end = on_end
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._signals = 0
        self._status = 0

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._stopping.is_set()

    async def run(self) -> int:
        """Keep the children running until a signal ends it all; the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):  # Windows has no such handlers; Ctrl-C raises there
                loop.add_signal_handler(number, self.stop)
        watch = seam.spawn(self._watch(self._watched), "watch") if self._watched is not None else None
        try:
            await asyncio.gather(*(self._keep(child) for child in self._children))
        finally:
            if watch is not None:
                watch.cancel()
            for child in self._children:  # only after an error: else none is left
                self._send(child, signal.SIGKILL)
        return self._status

    def stop(self) -> None:
        """Ask the children to stop; asked again, at once; the third time they are killed."""
        self._signals += 1
        self._stopping.set()
        for child in self._children:
            self._send(child, signal.SIGTERM if self._signals < 3 else signal.SIGKILL)

    async def _keep(self, child: Child) -> None:
        while not self._stopping.is_set():
            started = seam.monotonic()
            child.process = await seam.start_process(list(self._argv(child.number)), inherit=True)
            logger.info("worker process %d started, pid %d", child.number, child.process.pid)
            if self._stopping.is_set():  # asked while it started: the signal found nobody
                self._send(child, signal.SIGTERM)
            status = await child.process.wait()
            pid, child.process = child.process.pid, None
            self._on_end(child.number)
            if self._stopping.is_set():
                self._status = max(self._status, _as_status(status))
                return
            logger.warning("worker process %d (pid %d) ended: %s", child.number, pid, _told(status))
            if self._watched is None and status in HOPELESS:
                self._status = status
                self.stop()
                return
            if seam.monotonic() - started >= LIVED_LONG_SECONDS:
                child.backoff = FIRST_BACKOFF_SECONDS
            # Only another code can mend what is hopeless.
            await self._rest(child, None if status in HOPELESS else child.backoff)

    async def _rest(self, child: Child, seconds: float | None) -> None:
        """Wait before the next start; a change of the code or the end of it all ends the wait."""
        stopped = seam.spawn(self._stopping.wait(), "stop")
        changed = seam.spawn(self._changed.wait(), "change")
        await asyncio.wait((stopped, changed), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        child.backoff = min(child.backoff * 2, LONGEST_BACKOFF_SECONDS)
        if changed.done():
            child.backoff = FIRST_BACKOFF_SECONDS
        for task in (stopped, changed):
            task.cancel()

    async def _watch(self, folder: Path) -> None:
        seen = dict(python_files(folder))
        while True:
            await seam.sleep(WATCH_SECONDS)
            now = dict(python_files(folder))
            if now == seen:
                continue
            changed = sorted({path for path, _ in now.items() ^ seen.items()})
            logger.info(
                "%s changed; the workers start anew",
                ", ".join(changed[:3]) + (", ..." if len(changed) > 3 else ""),
            )
            seen = now
            await self._restart()

    async def _restart(self) -> None:
        self._changed.set()
        running = [child.process for child in self._children if child.process is not None]
        for again in (False, True):
            for process in running:
                if process.returncode is None:
                    process.send_signal(signal.SIGTERM)
            if again or not running:
                break
            waits = [seam.spawn(process.wait(), "end") for process in running]
            _, late = await asyncio.wait(waits, timeout=RELOAD_GRACE_SECONDS)
            if not late:
                break
        self._changed.clear()

    def _send(self, child: Child, number: int) -> None:
        if child.process is not None and child.process.returncode is None:
            with suppress(ProcessLookupError):
                child.process.send_signal(number)


def python_files(folder: Path) -> Iterator[tuple[str, int]]:
    """The .py files below a folder, each with the time of its last change. Hidden folders and environments
    are left out."""
    for place, folders, files in os.walk(folder):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(place, name)
                with suppress(OSError):  # gone between the two looks
                    yield os.path.relpath(path, folder), os.stat(path).st_mtime_ns


def stop_with_parent() -> None:
    """In a child: stop as by SIGTERM when the supervisor is gone. Its end of our stdin is closed then,
    however it died."""

    def wait() -> None:
        # Not sys.stdin: a daemon thread inside its lock would abort the interpreter at exit.
        while os.read(0, 1_024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    seam.start_thread(wait, "tessera-supervised")


def _as_status(status: int) -> int:
    """What a shell would say. A child killed by SIGTERM before it had learnt what that means did as asked."""
    if status >= 0:
        return status
    return 0 if status == -signal.SIGTERM else 128 - status


def _told(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
