"""One run of one job in this worker, from the start of its handler to the naming of its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from tessera import seam
from tessera.model.job import Job
from tessera.worker.leases import Hold
from tessera.worker.report import Report

if TYPE_CHECKING:
    from tessera.worker.handlers import Handler


class Stop(StrEnum):
    """Why a handler is asked to stop."""

    CANCEL = "cancel"
    """Somebody asked for it."""
    TIMEOUT = "timeout"
    """The attempt takes too long."""
    DEADLINE = "deadline"
    """The job's deadline over all attempts has passed."""
    SHUTDOWN = "shutdown"
    """The worker ends."""
    LEASE = "lease"
    """The lease is lost, or about to end unconfirmed: nothing of this run may be written any more."""


class Attempt:
    """See the module. Used in the worker's event loop only, apart from what is said otherwise."""

    __slots__ = (
        "abandoned",
        "hold",
        "hung",
        "in_handler",
        "kill",
        "runner",
        "runs",
        "started_at",
        "stop",
        "stopped_at",
        "thread",
    )

    def __init__(self, hold: Hold, handler: Handler | None) -> None:
        self.hold = hold
        self.runs = handler.runs if handler is not None else "loop"
        self.started_at = seam.monotonic()
        self.stop: Stop | None = None
        """Set once; read by the context from any thread."""
        self.stopped_at = 0.0
        self.runner: asyncio.Task[None] | None = None
        """The task that brings the attempt to its end."""
        self.in_handler = False
        """A coroutine of the application runs in it: it may be cancelled now."""
        self.thread = 0
        """The identifier of the thread that runs the handler."""
        self.kill: Callable[[Stop], None] | None = None
        """Ends the child process that runs the handler."""
        self.hung = False
        """It was logged that this handler ignores being asked to stop."""
        self.abandoned = False
        """The worker gave up on it: its end is nobody's business any more."""

    @property
    def job(self) -> Job:
        """The job as claimed."""
        return self.hold.job

    def report(self) -> Report:
        """Where the handler's words are kept; made when first needed."""
        if self.hold.report is None:
            self.hold.report = Report()
        return self.hold.report

    def ask_to_stop(self, why: Stop) -> None:
        """Ask the handler to stop, by the means its way of running has; the first reason stands, but for a
        lost lease.

        A coroutine gets CancelledError at its next await, a process SIGTERM and later SIGKILL, a thread only
        sees ``ctx.cancelled``.
        """
        first = self.stop is None
        if not first and (why is not Stop.LEASE or self.stop is Stop.LEASE):
            return
        self.stop = why
        if first:
            self.stopped_at = seam.monotonic()
        if self.kill is not None:
            self.kill(why)
        elif first and self.in_handler and self.runner is not None:
            self.runner.cancel()
