"""Writing the ends of attempts, many in one commit and without a timer.

Whatever has gathered while the last commit was under way goes into the next. Alone an end waits for nobody;
under load the commits grow by themselves. A slot is free as soon as its end is handed over here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from tessera import seam
from tessera.engine.extending import give_reason
from tessera.engine.finishing import Finish, finish
from tessera.model.errors import OutcomeUnknown, StaleLease, StoreError, TesseraError
from tessera.model.ids import show_id
from tessera.model.outcomes import Failed, GivenBack, Outcome
from tessera.store.protocol import Store
from tessera.worker.leases import Hold, Leases
from tessera.worker.stats import WorkerStats
from tessera.worker.verdict import error_text

logger = logging.getLogger("tessera.worker")

BATCH: Final = 500
BACKLOG: Final = 2_000
"""With so many ends unwritten no more jobs are claimed."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


class _End:
    """One end on its way."""

    __slots__ = ("finish", "hold", "is_spoilt")

    def __init__(self, hold: Hold, outcome: Outcome) -> None:
        extras = hold.report.snapshot()[1] if hold.report is not None else None
        self.finish = Finish(hold.job, outcome, extras)
        self.hold = hold
        self.is_spoilt = False
        """The store did not take it; what goes out now is a plain failure."""

    def spoil(self, why: str) -> None:
        """Write a failure in its place."""
        self.is_spoilt = True
        self.finish = Finish(self.hold.job, Failed(why))


class Completer:
    """One task that writes. Add from the event loop."""

    def __init__(self, store: Store, leases: Leases, stats: WorkerStats, on_idle: Callable[[], None]) -> None:
        self._store = store
        self._leases = leases
        self._stats = stats
        self._on_idle = on_idle
        self._waiting: deque[_End] = deque()
        self._writing = 0
        self._added = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def backlog(self) -> int:
        """Ends that are not written yet."""
        return len(self._waiting) + self._writing

    def add(self, hold: Hold, outcome: Outcome) -> None:
        """Write this end, as soon as may be."""
        hold.finishing = True
        self._waiting.append(_End(hold, outcome))
        if len(self._waiting) == 1:
            self._added.set()
            self._idle.clear()

    async def give_reason(self, hold: Hold, reason: str) -> None:
        """Say in the row why a held job waits; '' = it waits no longer. Nothing depends on it but a verdict
        on a crash, so that a store which does not answer is no reason to stop."""
        try:
            await give_reason(self._store, hold.job, reason)
        except TesseraError as error:
            logger.info("the row of a job that waits does not say so: %s", error)

    async def written(self) -> None:
        """Wait until nothing is left to write."""
        await self._idle.wait()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._added.wait()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                self._writing = len(batch)
                try:
                    await self._write(batch)
                finally:
                    self._writing = 0
            self._added.clear()
            self._idle.set()
            self._on_idle()

    async def _write(self, batch: list[_End]) -> None:
        """Write a batch, for as long as its leases may live."""
        pause = _FIRST_PAUSE
        while batch:
            try:
                answers = await finish(self._store, [end.finish for end in batch])
            except (StoreError, OutcomeUnknown) as error:
                logger.warning("the ends of %d attempts are not written yet: %s", len(batch), error)
                # Half to the whole of the pause: workers that lost one store together come back apart.
                await seam.sleep(pause * (1 + seam.random()) / 2)
                pause = min(_LONGEST_PAUSE, pause * 2)
                batch = self._still_held(batch)
            except Exception:
                logger.exception("the ends of %d attempts could not be written", len(batch))
                await self._write_apart(batch)
                return
            else:
                batch = self._settle(batch, answers)

    def _still_held(self, batch: list[_End]) -> list[_End]:
        now = seam.monotonic()
        lost = [end for end in batch if now >= end.hold.until]
        for end in lost:
            self._stats.unwritten += 1
            logger.error("the end of an attempt was not written before its lease was over", extra=_who(end))
        self._leases.drop(end.hold for end in lost)
        return [end for end in batch if now < end.hold.until]

    async def _write_apart(self, batch: list[_End]) -> None:
        """One of them is more than the store can take: find it, and write in its place that it failed."""
        if len(batch) > 1:
            for end in batch:
                await self._write([end])
            return
        [end] = batch
        if end.is_spoilt:
            self._stats.unwritten += 1
            self._leases.drop([end.hold])
            return
        end.spoil("the store could not take the outcome of this attempt")
        await self._write([end])

    def _settle(self, batch: Sequence[_End], answers: Sequence[TesseraError | None]) -> list[_End]:
        """Count the answers. Ends that contradict what is stored (a child of a split whose id is taken) come
        back as failures, to be written in their place.
        """
        stats = self._stats
        again: list[_End] = []
        for end, answer in zip(batch, answers, strict=True):
            if isinstance(end.finish.outcome, GivenBack):
                # Refused, it was lost before: no harm either way, for it never ran.
                stats.given_back += answer is None
            elif answer is None:
                stats.finished += 1
            elif isinstance(answer, StaleLease):
                stats.stale += 1
                logger.warning("the end of an attempt was refused: %s", answer, extra=_who(end))
            elif end.is_spoilt:
                stats.unwritten += 1
                logger.error("the end of an attempt was refused: %s", error_text(answer), extra=_who(end))
            else:
                end.spoil(error_text(answer))
                again.append(end)
        self._leases.drop(end.hold for end in batch if end not in again)
        return again


def _who(end: _End) -> dict[str, object]:
    job = end.hold.job
    return {"job": show_id(job.id), "kind": job.kind, "attempt": job.attempt}
