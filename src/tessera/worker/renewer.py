"""Keeping leases while handlers run, and hearing whom somebody wants stopped. Runs beside the worker's loop:
see ``side``.

Every lease of which a third is gone is renewed, all in one commit, whether its job runs or waits in the
buffer; a job shorter than that costs nothing here. The same commit carries what the handlers have said. What
the store no longer grants is told to the worker, which stops the handler. If nothing is confirmed for long
enough, the worker stops it by itself (``slots.check``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from tessera import seam
from tessera.engine.extending import Renewal, asked_to_stop, extend, renew
from tessera.model.errors import TesseraError
from tessera.model.job import Job
from tessera.store.protocol import Store
from tessera.worker.leases import Hold, Leases

logger = logging.getLogger("tessera.worker")

_BATCH: Final = 500
_LOOK_SECONDS: Final = 1.0
"""How often it asks who is to be stopped."""


class Renewer:
    """See the module. ``on_lost`` and ``on_asked`` are called in the renewer's loop."""

    def __init__(
        self,
        leases: Leases,
        *,
        holder: str,
        on_lost: Callable[[list[Hold]], None],
        on_asked: Callable[[list[Job]], None],
    ) -> None:
        self._leases = leases
        self._holder = holder
        self._on_lost = on_lost
        self._on_asked = on_asked
        self.store: Store | None = None
        self._looked_at = 0.0
        self._is_failing = False

    async def run(self, store: Store) -> None:
        """Renew until cancelled."""
        self.store = store
        tick = min(_LOOK_SECONDS, self._leases.lease_seconds / 12)
        while True:
            await self.beat()
            await seam.sleep(tick)

    async def beat(self) -> None:
        """Renew what is due now, and look once a second who is to be stopped."""
        now = seam.monotonic()
        await self._bounded(self._renew_due(now))
        if len(self._leases) and now - self._looked_at >= _LOOK_SECONDS * 0.9:
            self._looked_at = now
            await self._bounded(self._look())

    async def extend(self, hold: Hold, seconds: float) -> None:
        """Let one lease end so long from now, if that is later. Raises StaleLease, StoreError."""
        assert self.store is not None
        sent = seam.monotonic()
        if hold.until - sent < seconds:
            await extend(self.store, hold.job, round(seconds * 1_000))
            self._leases.renewed(hold, sent, seconds)

    async def _renew_due(self, now: float) -> None:
        lease = self._leases.lease_seconds
        due = self._leases.to_renew(now)
        known = set(map(id, due))
        talking = [hold for hold in self._leases.with_news(now) if id(hold) not in known]
        # A lease that was extended past the usual length must not be cut by what its handler says.
        extended = [hold for hold in talking if hold.until - now > lease]
        usual = [*due, *(hold for hold in talking if hold.until - now <= lease)]
        for start in range(0, len(usual), _BATCH):
            await self._renew(usual[start : start + _BATCH], lease)
        for hold in extended:
            await self._renew([hold], hold.until - now)

    async def _renew(self, holds: Sequence[Hold], seconds: float) -> None:
        assert self.store is not None
        said = [
            hold.report.snapshot() if hold.report is not None and hold.report.has_news else None
            for hold in holds
        ]
        renewals = [
            Renewal(hold.job, words[1] if words is not None else None)
            for hold, words in zip(holds, said, strict=True)
        ]
        sent = seam.monotonic()
        lost = set(await renew(self.store, renewals, round(seconds * 1_000)))
        for hold, words in zip(holds, said, strict=True):
            if hold.job.id in lost:
                continue
            self._leases.renewed(hold, sent, seconds)
            hold.news_at = sent
            if words is not None and hold.report is not None:
                hold.report.arrived(words[0])
        if lost:
            self._on_lost([hold for hold in holds if hold.job.id in lost])

    async def _look(self) -> None:
        assert self.store is not None
        asked = await asked_to_stop(self.store, self._holder)
        if asked:
            self._on_asked(asked)

    async def _bounded(self, work: Coroutine[Any, Any, None]) -> None:
        """Give a call of the store a third of a lease: a dead connection must not cost the next try too."""
        try:
            async with asyncio.timeout(self._leases.lease_seconds / 3):
                await work
        except (TesseraError, TimeoutError) as error:
            if not self._is_failing:
                logger.warning("leases cannot be renewed: %s", str(error) or "the store does not answer")
            self._is_failing = True
        else:
            if self._is_failing:
                logger.info("leases are renewed again")
            self._is_failing = False
