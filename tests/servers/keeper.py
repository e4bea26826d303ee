"""Keeps a server alive as long as the test run: ``python -m tests.servers.keeper PID COMMAND...``.

However that run ends, also by kill -9, the server is ended within a second.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main(run: int, command: list[str], log: Path) -> int:
    with log.open("ab") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the terminal's Ctrl-C is for the run
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while server.poll() is None and _is_alive(run):
            time.sleep(0.3)
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGQUIT)  # PostgreSQL: at once; what a test wrote is worth nothing
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
    return server.wait()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[3:], Path(sys.argv[2])))
