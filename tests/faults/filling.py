"""The disk of a store fills up and has room again, seen by a producer beside a worker; both go on as the same
processes.

Runs where the disk is small: on a tmpfs in a mount namespace of its own, or under a limit of file size
that it sets for itself and for the worker. At its end it copies the database to where the test can read
it.
"""

from __future__ import annotations

import os
import resource
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from tessera.model.errors import StoreFull
from tests.faults import history, work
from tests.faults.history import Event
from tests.faults.producer import handle_key

RUNNING = 6
"""Jobs that run when the disk fills up."""
AFTERWARDS = 4
DATA = "x" * 32_768
PATIENCE = 20.0
SPARE_BYTES = 3 * 1024 * 1024
_BLOCK = bytes(65_536)


class Plan(msgspec.Struct, frozen=True):
    """What the scenario is told."""

    url: str
    database: str
    gate: str
    folder: str
    """Where the histories are."""
    copy: str
    worker: int
    """The pid of the worker, for its limit."""
    is_small: bool
    """Whether the disk is; else files are limited in size."""


def main(argument: str) -> int:
    """Play it."""
    plan = msgspec.json.decode(argument, type=Plan)
    app = work.use(plan.url)
    note = history.mine().note
    disk = SmallDisk(Path(plan.database).parent / "filler") if plan.is_small else SmallFiles(plan)
    for _ in range(RUNNING):
        _enqueue_gated(plan)
    _until(lambda: _count(plan, "started") == RUNNING, "the jobs run")
    disk.fill()
    number = 0
    try:
        while True:
            handle = work.carry.enqueue(data=DATA)
            note("acked", job=handle_key(handle), kind="carry")
            number += 1
    except StoreFull:
        note("refused", how="StoreFull", number=number)
    if plan.is_small:
        _refused("while jobs run")
    Path(plan.gate).touch()
    _until(lambda: _count(plan, "finished", "completed") == RUNNING, "what ran can finish")
    note("marked", how="finished while full")
    if plan.is_small:
        _refused("after they have finished")
    disk.free()
    freed = time.monotonic()
    _until(lambda: _tries(plan), "new jobs are taken again")
    note("marked", how="taken again", number=round((time.monotonic() - freed) * 1_000))
    for _ in range(AFTERWARDS - 1):
        _enqueue_gated(plan)
    _until(lambda: _count(plan, "finished", "completed") == RUNNING + AFTERWARDS, "the worker goes on")
    app.close()
    with closing(sqlite3.connect(plan.database)) as source, closing(sqlite3.connect(plan.copy)) as copy:
        source.backup(copy)
    note("marked", how="copied")
    return 0


class SmallDisk:
    """A file that takes all but a little of the room."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def fill(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            while os.statvfs(self._path).f_bavail * os.statvfs(self._path).f_frsize > SPARE_BYTES:
                file.write(_BLOCK)

    def free(self) -> None:
        self._path.unlink()


class SmallFiles:
    """No file of the two processes may grow beyond what the log has now, and a little."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def fill(self) -> None:
        self._limit(os.stat(self._plan.database + "-wal").st_size + SPARE_BYTES // 2)

    def free(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        for pid in (os.getpid(), self._plan.worker):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _enqueue_gated(plan: Plan) -> None:
    handle = work.gated.enqueue(gate=plan.gate)
    history.mine().note("acked", job=handle_key(handle), kind="gated")


def _tries(plan: Plan) -> bool:
    try:
        _enqueue_gated(plan)
    except StoreFull:
        return False
    return True


def _refused(when: str) -> None:
    """New jobs, however small, are refused."""
    try:
        handle = work.nap.enqueue(ms=1)
    except StoreFull:
        history.mine().note("refused", how="StoreFull")
    else:
        history.mine().note("acked", job=handle_key(handle), kind="nap")
        raise AssertionError(f"a new job was taken {when}")


def _count(plan: Plan, what: str, how: str = "") -> int:
    """Jobs of the gate of which the worker has written this down."""
    found: Sequence[Event] = history.read(Path(plan.folder))
    mine = {event.job for event in found if event.what == "acked" and event.kind == "gated"}
    return len({e.job for e in found if e.what == what and e.job in mine and how in ("", e.how)})


def _until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.05)
