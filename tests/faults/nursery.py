"""Where the processes of a rig are born: ``python -m tests.faults.nursery``, told by lines at stdin,
answering by lines at stdout.

It has imported everything once and forks: a worker is there in hundredths of a second. Started anew by
kill -9 every 300 ms, interpreters would take a whole core to come up, and the tests would measure that. It
has one thread and no open store, so that a fork carries nothing over. When stdin ends, because the rig
closed or died, it kills what is left and ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import msgspec

import tessera.store.postgres.store  # noqa: F401 - or each child would import the driver anew
from tests.faults import filling, forking, history, newer, producer, worker

MAINS: dict[str, Callable[[str], int]] = {
    "worker": worker.main,
    "producer": producer.main,
    "filling": filling.main,
    "forking": forking.main,
    "newer_worker": newer.worker_main,
    "newer_producer": newer.producer_main,
}


class Birth(msgspec.Struct, frozen=True):
    """A process to start."""

    module: str
    argument: str
    history: str
    log: str


class News(msgspec.Struct, frozen=True):
    """A process that was started, or one that has ended; its status as ``subprocess`` has it."""

    pid: int
    status: int | None = None


class Nursery:
    """See the module."""

    def __init__(self) -> None:
        self._living: set[int] = set()

    def live(self) -> None:
        """Serve until stdin ends."""
        wake_out, wake_in = os.pipe()
        for end in (wake_out, wake_in):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        told = b""
        while True:
            ready, _, _ = select.select([0, wake_out], [], [])
            if wake_out in ready:
                os.read(wake_out, 4_096)
                self._reap()
            if 0 in ready:
                chunk = os.read(0, 65_536)
                if not chunk:
                    break
                *lines, told = (told + chunk).split(b"\n")
                for line in lines:
                    self._bear(msgspec.json.decode(line, type=Birth))
        for pid in self._living:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._living:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._living.discard(pid)
            _say(News(pid, os.waitstatus_to_exitcode(status)))

    def _bear(self, birth: Birth) -> None:
        pid = os.fork()
        if pid == 0:
            _be(birth)
        self._living.add(pid)
        _say(News(pid))


def _say(news: News) -> None:
    os.write(1, msgspec.json.encode(news) + b"\n")


def _be(birth: Birth) -> NoReturn:
    """The rest of a newborn's life. It leaves as any interpreter does, by the end of its main function."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(birth.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for old, new in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    os.closerange(3, 64)
    os.environ[history.VARIABLE] = birth.history
    sys.exit(MAINS[birth.module](birth.argument))


if __name__ == "__main__":
    Nursery().live()
