"""A server that lives no longer than what it was started for.

What can go wrong: the test run is killed with -9 and ends nothing; it has ended and is a zombie that nobody
asks after; the folder of the server is removed under it; the keeper is killed itself. So each server is the
child of a keeper, a process that looks five times a second whether the run and the folder are still there,
and the kernel (where it is Linux) ends the server with its keeper.

``python -m tests.servers.keeper [--by=SIGNAL] [--remove] RUN FOLDER LOG COMMAND...`` prints the id of the
server's process.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.servers.programs import is_alive, server_identity

LOOKS_EVERY = 0.2
ENDS_WITHIN = 10.0
_PR_SET_PDEATHSIG = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)


class Kept:
    """A server that runs, seen from the process that wanted it."""

    def __init__(
        self,
        command: list[str],
        log: Path,
        run: int,
        folder: Path,
        *,
        remove: bool = False,
        by: signal.Signals = signal.SIGQUIT,
    ) -> None:
        """It lives for the process ``run`` in the ``folder``, which goes with the run too if ``remove``.
        ``by`` is the signal that ends it at once; for PostgreSQL it is the default.
        """
        options = [f"--by={int(by)}", *(["--remove"] if remove else [])]
        arguments = [*options, str(run), str(folder), str(log), *command]
        # Without site-packages: it starts at once, and nobody measures its coverage.
        self.keeper = subprocess.Popen(
            [sys.executable, "-S", "-m", "tests.servers.keeper", *arguments],
            cwd=Path(__file__).parent.parent.parent,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.keeper.stdout is not None
        assert self.keeper.stderr is not None
        with self.keeper.stdout as said, self.keeper.stderr as errors:
            line = said.readline()
            if not line:
                self.keeper.wait()
                raise RuntimeError(f"{command[0]} does not start: {errors.read().decode(errors='replace')}")
        self.pid = int(line)

    @property
    def has_ended(self) -> bool:
        return self.keeper.poll() is not None

    def end(self, number: signal.Signals, within: float) -> None:
        """Send the server a signal and wait, for so many seconds, until it has ended."""
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
        self.keeper.wait(within)


def main(run: int, folder: Path, log: Path, command: list[str], *, remove: bool, by: int) -> int:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the terminal's Ctrl-C is for the run
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with log.open("ab") as output:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            preexec_fn=partial(_before_it_starts, by),  # noqa: PLW1509  this process has one thread
            **server_identity(),
        )
    try:
        print(server.pid, flush=True)
        with Path(os.devnull).open("ab") as nowhere:  # the one who asked has read enough
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        while is_alive(run) and folder.exists():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return server.wait(LOOKS_EVERY)
    finally:
        _end(server, by)
        if remove and not is_alive(run):
            shutil.rmtree(folder, ignore_errors=True)
    return server.wait()


def _end(server: subprocess.Popen[bytes], by: int) -> None:
    if server.poll() is None:
        server.send_signal(by)  # what a test wrote is worth nothing
        try:
            server.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _before_it_starts(by: int) -> None:
    """In the child, after it has become another user, which would undo the first line."""
    if _prctl is not None and sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, by)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--by", type=int, default=int(signal.SIGQUIT))
    parser.add_argument("--remove", action="store_true")
    parser.add_argument("run", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    told = parser.parse_args()
    sys.exit(main(told.run, told.folder, told.log, told.command, remove=told.remove, by=told.by))
