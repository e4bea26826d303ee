"""What a worker does for all: sweeps of its queues, the sweep duty when it is its turn, and the record that
says it lives.

Runs beside the worker's loop, so that a handler which blocks that loop delays nobody's promotion or rescue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from tessera import seam
from tessera.engine.duties import Sweeper
from tessera.model.changes import After, DropRecord, Group, PutRecord
from tessera.model.errors import TesseraError
from tessera.model.worker import WORKER_EXPIRES_MS, WORKER_REFRESH_MS, WORKER_SPACE, WorkerInfo
from tessera.store.protocol import Store

logger = logging.getLogger("tessera.worker")

_SHORTEST_REST: Final = 0.02
"""Between two sweeps, however many jobs fall due one after the other."""


class Upkeep:
    """See the module."""

    def __init__(
        self,
        sweeper: Sweeper,
        info: Callable[[], WorkerInfo],
        *,
        sweep_seconds: float,
        lease_seconds: float,
        on_promoted: Callable[[], None],
    ) -> None:
        self._sweeper = sweeper
        self._info = info
        # The outage rule takes half a lease without a sweep for an outage.
        self._every = min(sweep_seconds, lease_seconds / 6)
        self._on_promoted = on_promoted
        self._sooner: asyncio.Event | None = None
        self._due_at = float("inf")
        self._is_failing = False
        self.last_state = ""

    def due_in(self, seconds: float) -> None:
        """Something falls due then: sweep not much later. To be called in the loop that ``run`` runs in."""
        at = seam.monotonic() + seconds
        if at < self._due_at:
            self._due_at = at
            if self._sooner is not None:
                self._sooner.set()

    async def run(self, store: Store) -> None:
        """Sweep, at every due time and at least every so often, until cancelled."""
        self._sooner = asyncio.Event()
        while True:
            self._due_at = float("inf")
            more = await self._sweep(store)
            # Three quarters to the whole: workers that were started together do not sweep together.
            latest = seam.monotonic() + self._every * (0.75 + seam.random() / 4)
            if more:
                latest = 0.0
            while (rest := max(_SHORTEST_REST, min(latest, self._due_at) - seam.monotonic())) > 0:
                self._sooner.clear()
                try:
                    async with asyncio.timeout(rest):
                        await self._sooner.wait()
                except TimeoutError:
                    break

    async def tell(self, store: Store) -> None:
        """Keep the worker's record fresh until cancelled."""
        while True:
            await self.write_record(store)
            await seam.sleep(WORKER_REFRESH_MS / 1_000)

    async def write_record(self, store: Store) -> None:
        """Write what ``explain`` and ``doctor`` read. A store that does not answer is none of this record's
        business."""
        info = self._info()
        put = PutRecord(
            WORKER_SPACE, info.incarnation, msgspec.json.encode(info), expires=After(WORKER_EXPIRES_MS)
        )
        try:
            await store.commit([Group(changes=(put,))])
        except TesseraError as error:
            logger.debug("the worker's record was not written: %s", error)

    async def leave(self, store: Store) -> None:
        """Give the duty up and remove the record, so that nobody waits for either to expire."""
        try:
            await self._sweeper.resign(store)
            await store.commit([Group(changes=(DropRecord(WORKER_SPACE, self._info().incarnation),))])
        except TesseraError as error:
            logger.info("the worker left without saying so in the store: %s", error)

    async def _sweep(self, store: Store) -> bool:
        """One sweep; whether another one at once is worth it."""
        try:
            swept = await self._sweeper.sweep(store)
        except TesseraError as error:
            if not self._is_failing:
                logger.warning("what is due cannot be swept: %s", error)
            self._is_failing = True
            return False
        self._is_failing = False
        if swept.promoted or swept.rescued:
            self._on_promoted()
        if swept.rescued:
            logger.warning("%d jobs were taken back from holders whose leases lapsed", swept.rescued)
        if swept.next_due:
            self.due_in(max(0.0, (swept.next_due - swept.now) / 1_000))
        return swept.more
