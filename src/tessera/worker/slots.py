"""What is claimed and what runs: the buffer of jobs that wait here, and a slot for each that runs.

A job that has crashed often enough to be suspected runs alone: it waits until nothing else runs in this
process and nothing is started beside it, and what waits in the buffer is given back first, other suspects
too. Should it take the process down, nobody else is charged; should another take the process down while it
waits, the row says that it waited. A handler in a child process needs none of this.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from tessera import seam
from tessera.model.ids import JobId, show_id
from tessera.model.job import Job
from tessera.model.outcomes import (
    Aborted,
    Cancelled,
    Crashed,
    Expired,
    Failed,
    GivenBack,
    Outcome,
    Released,
    Undecodable,
)
from tessera.rules.endings import WAITS_ALONE, runs_alone
from tessera.worker.attempt import Attempt, Stop
from tessera.worker.completer import Completer
from tessera.worker.executor import Executor
from tessera.worker.handlers import Handlers
from tessera.worker.leases import Hold, Leases
from tessera.worker.rate import Rate
from tessera.worker.stats import WorkerStats

logger = logging.getLogger("tessera.worker")

STALE_BUFFER_SECONDS: Final = 2.0
"""Buffered jobs that wait for so long without anything being started are given back: another worker may have
room."""
_BESIDE_ITSELF_MS: Final = 1_000
LAST_RELEASE_MS: Final = 5_000
"""A job whose thread cannot be stopped may run again so long after its release: until then this process is
gone."""


class Slots:
    """See the module. Used in the event loop of the handlers."""

    def __init__(
        self,
        handlers: Handlers,
        executor: Executor,
        completer: Completer,
        leases: Leases,
        stats: WorkerStats,
        *,
        concurrency: int,
        on_room: Callable[[], None],
    ) -> None:
        self._handlers = handlers
        self._executor = executor
        self._completer = completer
        self._leases = leases
        self._stats = stats
        self._concurrency = concurrency
        self._on_room = on_room
        self._buffer: deque[Hold] = deque()
        self._alone: deque[Hold] = deque()
        self._running: dict[JobId, Attempt] = {}
        self._solo: Attempt | None = None
        self._note: tuple[Hold, asyncio.Task[None]] | None = None
        """The suspect that waits, and the write that says so."""
        self._closed = False
        self._given_up: list[Attempt] = []
        self._empty = asyncio.Event()
        self._empty.set()
        self._started_at = seam.monotonic()
        self.rate = Rate()

    @property
    def buffered(self) -> int:
        """Jobs claimed and not begun."""
        return len(self._buffer) + len(self._alone)

    @property
    def running(self) -> int:
        """Handlers that run."""
        return len(self._running)

    @property
    def free(self) -> int:
        """Slots without a handler; none while a suspected job runs or waits to."""
        return 0 if self.holds_back else max(0, self._concurrency - len(self._running))

    @property
    def holds_back(self) -> bool:
        """Whether a suspected job runs or waits to, beside which nothing may be."""
        return self._solo is not None or bool(self._alone)

    @property
    def attempts(self) -> list[Attempt]:
        """What runs."""
        return list(self._running.values())

    def offer(self, holds: Iterable[Hold]) -> None:
        """Take claimed jobs. Those that hold a counter come first: nobody else has their units meanwhile."""
        counted: list[Hold] = []
        for hold in holds:
            job = hold.job
            if job.id in self._running:
                self._refuse_beside_itself(hold)
            elif job.crashes and self._must_be_alone(hold):
                self._alone.append(hold)
            elif job.needs:
                counted.append(hold)
            else:
                self._buffer.append(hold)
        self._buffer.extendleft(reversed(counted))
        if self._closed or self._alone:
            self.give_back()
        self.fill()
        self._note_who_waits()

    def fill(self) -> None:
        """Start as many as there is room for."""
        if self.holds_back:
            self._start_alone()
            if self.holds_back:
                return
        buffer, running = self._buffer, self._running
        while buffer and len(running) < self._concurrency:
            self._start(buffer.popleft())

    def give_back(self) -> None:
        """Give up what waits in the buffer, uncharged; suspected jobs too, but for one while this is open."""
        while self._buffer:
            self._completer.add(self._buffer.popleft(), GivenBack())
        while len(self._alone) > (0 if self._closed else 1):
            self._completer.add(self._alone.pop(), GivenBack())

    def close(self) -> None:
        """Start nothing any more, and give back what waits."""
        self._closed = True
        self.give_back()

    async def emptied(self) -> None:
        """Wait until nothing runs."""
        await self._empty.wait()

    def lost(self, holds: Iterable[Hold]) -> None:
        """The store says that these leases are gone."""
        gone: list[Hold] = []
        for hold in holds:
            if hold.finishing or self._leases.get(hold.job.id) is not hold:
                continue
            attempt = self._running.get(hold.job.id)
            if attempt is not None:
                self._fence(attempt, "its lease was lost")
            else:
                gone.append(hold)
        self._forget(gone)

    def asked(self, jobs: Iterable[Job]) -> None:
        """Somebody wants these cancelled."""
        for job in jobs:
            attempt = self._running.get(job.id)
            if attempt is not None:
                attempt.ask_to_stop(Stop.CANCEL)
                continue
            hold = self._leases.get(job.id)
            if hold is not None and self._take_out([hold]):
                self._completer.add(hold, Cancelled("cancelled before it began"))

    def check(self, now: float) -> None:
        """Stop what runs under a lease that is about to end unconfirmed, and give back a buffer that nobody
        empties."""
        for attempt in self._running.values():
            if attempt.stop is not Stop.LEASE and self._leases.is_spent(attempt.hold, now):
                self._fence(attempt, "its lease could not be renewed")
        self._let_go([h for h in (*self._buffer, *self._alone) if self._leases.is_spent(h, now)])
        if self._buffer and now - self._started_at > STALE_BUFFER_SECONDS:
            self.rate.forget()
            self.give_back()

    def abandon(self, *, release: bool) -> list[Attempt]:
        """Give up on what still runs, which cannot be stopped. Its end is not waited for and not written.

        ``release``: the process is about to end, and the handlers with it, so that the jobs may run again a
        little later. Otherwise their leases are left to lapse: as long as this process lives, so may the
        handler, and nobody may run the job beside it. That counts as a crash.
        """
        left = self._given_up = self.attempts
        for attempt in left:
            attempt.abandoned = True
            if release and attempt.stop is not Stop.LEASE:
                self._completer.add(attempt.hold, Released(LAST_RELEASE_MS, "shutdown"))
        self._running.clear()
        self._empty.set()
        self._stats.abandoned += len(left)
        return left

    # Pieces -------------------------------------------------------------------------------------------------

    def _must_be_alone(self, hold: Hold) -> bool:
        handler = self._handlers.get(hold.job.kind)
        return runs_alone(hold.job) and (handler is None or handler.runs != "process")

    def _refuse_beside_itself(self, hold: Hold) -> None:
        """A former run of this job, whose lease was lost, has not ended here. The two must not overlap: stop
        it, and let the job go for a moment, to be run by whoever takes it then."""
        former = self._running[hold.job.id]
        if former.stop is not Stop.LEASE:
            self._fence(former, "its lease was lost")
        self._completer.add(hold, Released(_BESIDE_ITSELF_MS, "its former run has not ended in this worker"))

    def _start_alone(self) -> None:
        """Begin with the next suspected job once nothing runs and all give-backs are written."""
        while self._alone and self._solo is None:
            if self._running or self._completer.backlog or self._closed:
                return
            self._solo = self._start(self._alone.popleft())

    def _note_who_waits(self) -> None:
        """A suspect that has to wait for others says so: what they do to this process is not its doing."""
        if self._alone and self._running and (self._note is None or self._note[0] is not self._alone[0]):
            hold = self._alone[0]
            self._note = (
                hold,
                seam.spawn(self._completer.give_reason(hold, WAITS_ALONE), "tessera-waits-alone"),
            )

    async def _waits_no_longer(self, hold: Hold) -> None:
        if self._note is not None and self._note[0] is hold:
            noted, self._note = self._note[1], None
            await noted
            await self._completer.give_reason(hold, "")

    def _start(self, hold: Hold) -> Attempt | None:
        attempt = Attempt(hold, self._handlers.get(hold.job.kind))
        if self._leases.is_spent(hold, attempt.started_at):
            self._let_go([hold])
            return None
        self._started_at = attempt.started_at
        if not self._running:
            self._empty.clear()
        self._running[hold.job.id] = attempt
        self._stats.started += 1
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("attempt starts", extra=who(attempt))
        attempt.runner = seam.spawn(self._attempt(attempt), hold.job.kind)
        return attempt

    async def _attempt(self, attempt: Attempt) -> None:
        try:
            await self._waits_no_longer(attempt.hold)
            outcome = await self._executor.execute(attempt)
        except Exception:
            logger.exception("running an attempt went wrong in Tessera itself", extra=who(attempt))
            outcome = Released(1_000, "the worker could not run it")
        if not attempt.abandoned:
            self._ended(attempt, outcome)

    def _ended(self, attempt: Attempt, outcome: Outcome | None) -> None:
        del self._running[attempt.job.id]
        self._stats.ended += 1
        self.rate.ended(seam.monotonic() - attempt.started_at)
        _tell(attempt, outcome)
        if outcome is None:
            self._leases.drop([attempt.hold])
        else:
            self._completer.add(attempt.hold, outcome)
        if self._solo is attempt:
            self._solo = None
        if not self._running:
            self._empty.set()
        self.fill()
        self._on_room()

    def _fence(self, attempt: Attempt, why: str) -> None:
        self._stats.fenced += attempt.stop is not Stop.LEASE
        logger.error("a handler is stopped: %s", why, extra=who(attempt))
        attempt.ask_to_stop(Stop.LEASE)

    def _let_go(self, holds: list[Hold]) -> None:
        """Leases of which too little is left to begin. By the store's clock they may live on, where a claim
        waited long for a writer: given back, none of them lapses and is charged as a crash."""
        if not holds:
            return
        logger.warning("the leases of %d jobs were nearly over before they began", len(holds))
        self._take_out(holds)
        for hold in holds:
            self._completer.add(hold, GivenBack())

    def _forget(self, holds: list[Hold]) -> None:
        """Leases that the store says are gone before their jobs began."""
        if not holds:
            return
        logger.warning("the leases of %d jobs were lost before they began", len(holds))
        self._take_out(holds)
        self._leases.drop(holds)

    def _take_out(self, holds: list[Hold]) -> bool:
        """Take these out of what waits; whether any of them was there."""
        gone = set(map(id, holds))
        before = self.buffered
        for line in (self._buffer, self._alone):
            kept = [hold for hold in line if id(hold) not in gone]
            line.clear()
            line.extend(kept)
        return self.buffered < before


def _tell(attempt: Attempt, outcome: Outcome | None) -> None:
    """What went wrong is told, what went well only to whoever wants to know everything."""
    job = attempt.job
    match outcome:
        case Failed(error=error):
            nth, words = job.failures + 1, (error.splitlines() or [""])[-1]
            level = logging.ERROR if nth >= job.max_attempts else logging.WARNING
            logger.log(level, "failure %d of %d: %s", nth, job.max_attempts, words, extra=who(attempt))
        case Crashed() | Aborted() | Undecodable() | Expired():
            logger.warning("ended %s", type(outcome).__name__.lower(), extra=who(attempt))
        case _ if logger.isEnabledFor(logging.DEBUG):
            logger.debug("attempt ended: %s", type(outcome).__name__, extra=who(attempt))
        case _:
            pass


def who(attempt: Attempt) -> dict[str, object]:
    """The fields of a log entry that say which run it speaks of."""
    job = attempt.job
    return {"job": show_id(job.id), "kind": job.kind, "attempt": job.attempt}
