"""A process forks in the midst of its work with a store; both go on with it. The numbers go to the history
as ``marked``."""

from __future__ import annotations

import os
import threading
import time

import msgspec

from tests.faults import history, work
from tests.faults.producer import handle_key

CHILDREN = 5
PER_CHILD = 10
THREADS = 2


class Plan(msgspec.Struct, frozen=True):
    """What the scenario is told."""

    url: str
    database: str


def main(argument: str) -> int:
    """Enqueue in threads, fork five times meanwhile, and enqueue in every child."""
    plan = msgspec.json.decode(argument, type=Plan)
    app = work.use(plan.url)
    _enqueue()
    assert app._backend is not None
    stopping = threading.Event()
    threads = [threading.Thread(target=_enqueue_until, args=(stopping,)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    statuses = []
    for _ in range(CHILDREN):
        time.sleep(0.1)
        pid = os.fork()
        if pid == 0:
            os._exit(_child(plan))
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    time.sleep(0.1)
    stopping.set()
    for thread in threads:
        thread.join()
    _enqueue()
    app.close()
    history.mine().note("marked", how="statuses", number=sum(status != 0 for status in statuses))
    return 0


def _child(plan: Plan) -> int:
    """What a child does: nothing of the file is open in it at first, then its own connections are."""
    before = _open_files(plan.database)
    history.mine().note("marked", how="inherited", number=before)
    for _ in range(PER_CHILD):
        _enqueue()
    history.mine().note("marked", how="own", number=_open_files(plan.database))
    work.app.close()
    history.mine().note("marked", how="left", number=_open_files(plan.database))
    return 0


def _enqueue() -> None:
    handle = work.nap.enqueue(ms=5)
    history.mine().note("acked", job=handle_key(handle))


def _enqueue_until(stopping: threading.Event) -> None:
    while not stopping.is_set():
        _enqueue()
        time.sleep(0.005)


def _open_files(database: str) -> int:
    """Descriptors of the database in this process."""
    real = os.path.realpath(database)
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}") == real
        except OSError:  # the one that listed them
            continue
    return found
