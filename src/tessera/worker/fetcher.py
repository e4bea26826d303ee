"""Asking for work: when, for how much, and from which queues in which order.

It claims when fewer than half of the jobs it wants ahead are left. A claim that brought less than asked means
that nothing more is there: then it sleeps until the store says that something changed, until a scheduled job
of its queues falls due, or for a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Tally
from collections.abc import Callable, Sequence
from typing import Final

from tessera import seam
from tessera.engine.claiming import Claimer
from tessera.model.errors import OutcomeUnknown, StoreClosed, TesseraError
from tessera.model.queries import SET_ASIDE_LIMIT, Claimed
from tessera.rules import weights
from tessera.store.protocol import Notifies, Store
from tessera.worker.adoption import unknown_jobs
from tessera.worker.completer import BACKLOG, Completer
from tessera.worker.leases import Leases
from tessera.worker.settings import WorkerSettings
from tessera.worker.slots import Slots
from tessera.worker.stats import WorkerStats

logger = logging.getLogger("tessera.worker")

LONGEST_SLEEP: Final = 1.0
_FIRST_SLEEP: Final = 0.05
"""Where no store notifies: how long after an empty claim the next one comes, doubled each time."""


class Fetcher:
    """One task that claims, and one that listens."""

    def __init__(
        self,
        store: Store,
        claimer: Claimer,
        slots: Slots,
        completer: Completer,
        leases: Leases,
        stats: WorkerStats,
        settings: WorkerSettings,
        *,
        holder: str,
        on_next_due: Callable[[float], None],
    ) -> None:
        self._store = store
        self._claimer = claimer
        self._slots = slots
        self._completer = completer
        self._leases = leases
        self._told_at = 0
        self._stats = stats
        self._settings = settings
        self._holder = holder
        self._on_next_due = on_next_due
        self._weights = settings.weights
        self._credits: weights.Credits = {}
        self._poked = asyncio.Event()
        self._stopped = asyncio.Event()
        self._sleep = _FIRST_SLEEP
        self._enough = 0
        """With more than so many in the buffer no claim is made."""
        self._is_dry = False
        self._counted_left = False
        """Jobs with a counter may be there that the last claim had no free slot for."""
        self._is_failing = False
        self._unknown_since: float | None = None
        self._stopping = False
        self.alive_at = seam.monotonic()
        """When a claim last succeeded, or there was no room for one."""

    def poke(self) -> None:
        """Something may be claimable now."""
        self._is_dry = False
        self._poked.set()

    def room_made(self) -> None:
        """A handler ended. No reason to ask again where a claim has just found nothing more, unless it had no
        slot for what it found."""
        slots = self._slots
        if self._is_dry and not (self._counted_left and slots.free > slots.buffered):
            return
        if slots.buffered <= self._enough and not self._poked.is_set() and self._wanted():
            self._poked.set()

    def stop(self) -> None:
        """Claim nothing any more."""
        self._stopping = True
        self._stopped.set()
        self._poked.set()

    async def run(self) -> None:
        """Claim until stopped; then find what a claim brought whose reply was lost, so that it can be given
        back."""
        while not self._stopping:
            self._poked.clear()
            wanted = self._wanted()
            if wanted:
                await self._try_claim(wanted)
            else:
                self.alive_at = seam.monotonic()
            if not wanted or self._is_dry or self._is_failing:
                await self._rest()
        while self._unknown_since is not None:
            await self._try_claim(0)
            if self._is_failing:
                await seam.sleep(_FIRST_SLEEP)

    async def listen(self) -> None:
        """Poke at every sign of the store that something changed, until cancelled."""
        store = self._store
        while isinstance(store, Notifies):
            try:
                if await store.wait(LONGEST_SLEEP):
                    self.poke()
            except StoreClosed:
                return
            except TesseraError as error:
                logger.warning("the store does not say when something changes: %s", error)
                await seam.sleep(LONGEST_SLEEP)

    def _wanted(self) -> int:
        """How many jobs to ask for; 0 while enough are here."""
        slots = self._slots
        if self._stopping or slots.holds_back or self._completer.backlog > BACKLOG:
            return 0
        prefetch = self._settings.prefetch
        ahead = slots.rate.ahead() if prefetch is None else prefetch
        self._enough = ahead // 2
        buffered = slots.buffered
        if buffered > self._enough:
            return 0
        return max(0, slots.free + ahead - buffered)

    async def _try_claim(self, wanted: int) -> None:
        try:
            await self._claim(wanted)
        except TesseraError as error:
            self._failed(error)
        except Exception as error:
            logger.exception("a claim went wrong in Tessera itself")
            self._failed(error)
        else:
            if self._is_failing:
                logger.info("claims succeed again")
            self._is_failing = False
            self.alive_at = seam.monotonic()

    async def _claim(self, wanted: int) -> None:
        if self._unknown_since is not None:
            await self._adopt()
            return
        counted = max(0, self._slots.free - self._slots.buffered)
        order = self._order()
        sent = seam.monotonic()
        try:
            claimed = await self._claimer.claim(order, wanted, counted_limit=counted)
        except OutcomeUnknown:
            self._unknown_since = sent
            raise
        self._told_at = claimed.now
        self._charge(order, claimed, wanted)
        got = len(claimed.jobs)
        # A claim that set aside as many as it may has not seen what stands behind them.
        self._is_dry = got < wanted and claimed.set_aside < SET_ASIDE_LIMIT
        self._counted_left = sum(1 for job in claimed.jobs if job.needs) >= counted
        if claimed.next_due:
            self._on_next_due((claimed.next_due - claimed.now) / 1_000)
        if got:
            self._sleep = _FIRST_SLEEP
            self._stats.claimed += got
            self._slots.offer(self._leases.add(claimed.jobs, sent))

    async def _adopt(self) -> None:
        """Take over what a claim gave us whose reply was lost. The leases run from when it was sent."""
        assert self._unknown_since is not None
        jobs = await unknown_jobs(self._store, self._holder, self._leases, self._told_at)
        sent, self._unknown_since = self._unknown_since, None
        if jobs:
            logger.warning("%d jobs were claimed by a call whose reply was lost; they run now", len(jobs))
            self._stats.claimed += len(jobs)
            self._stats.adopted += len(jobs)
            self._slots.offer(self._leases.add(jobs, sent))

    def _order(self) -> tuple[str, ...]:
        if self._settings.mode == "strict":
            return tuple(self._weights)
        return weights.order(self._weights, self._credits)

    def _charge(self, order: Sequence[str], claimed: Claimed, wanted: int) -> None:
        """Note what each queue got. Those that the claim tried before the last that gave something are empty
        now; if it brought less than asked, all are."""
        if self._settings.mode == "strict" or len(order) == 1:
            return
        got = Tally(job.queue for job in claimed.jobs)
        dry = order
        if len(claimed.jobs) == wanted:
            dry = order[: max(place for place, queue in enumerate(order) if got[queue])]
        self._credits = weights.charge(self._weights, self._credits, got, dry)

    def _failed(self, error: Exception) -> None:
        if not self._is_failing:
            logger.warning("nothing can be claimed: %s", error)
        self._is_failing = True

    async def _rest(self) -> None:
        """Sleep until poked, at most a second; shorter where nobody would poke."""
        longest = LONGEST_SLEEP
        if self._is_failing or (self._is_dry and not isinstance(self._store, Notifies)):
            longest = self._sleep
            self._sleep = min(LONGEST_SLEEP, self._sleep * 2)
        # Three quarters to the whole: workers that met an empty queue together do not come back together.
        seconds = longest * (0.75 + seam.random() / 4)
        try:
            async with asyncio.timeout(seconds):
                # While claims fail, that something could be claimed is no reason to hurry.
                await (self._stopped if self._is_failing else self._poked).wait()
        except TimeoutError:
            self._is_dry = False
