"""Duties: maintenance that one process at a time does for all. Leadership only saves work; every write of a
duty is guarded by what it saw, so that two leaders at once, or none for a while, do no harm."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from tessera import seam
from tessera.engine.sweeping import Swept, sweep
from tessera.model.changes import After, AtVersion, Done, DropRecord, Group, PutRecord
from tessera.model.errors import TesseraError
from tessera.rules import outage
from tessera.store.protocol import Maintains, Store

logger = logging.getLogger("tessera.duties")

DUTY_SPACE: Final = "~duty"
DUTY_LEASE_MS: Final = 10_000
MAINTAIN_SECONDS: Final = 10.0
"""Between two rounds of a store's own upkeep."""


class DutyHolder(msgspec.Struct, frozen=True, gc=False):
    """The value of a duty's record."""

    holder: str
    since: int = 0


class Duty:
    """One duty as one process sees it: a leased record, taken over by compare-and-set once it has expired by
    the store's clock."""

    def __init__(self, name: str, holder: str, *, lease_ms: int = DUTY_LEASE_MS) -> None:
        self.name = name
        self.holder = holder
        self._lease_ms = lease_ms
        self._half = 0.0

    async def hold(self, store: Store) -> bool:
        """Whether the duty is this process's, for half a lease at least. Takes it if it is free, renews it
        when half is over.

        Asks the store only if needed. Raises what the store raises.
        """
        sent = seam.monotonic()
        if sent < self._half:
            return True
        [record] = await store.get([(DUTY_SPACE, self.name)])
        value = DutyHolder(self.holder, seam.now_ms())
        if record is not None and record.value is not None:
            holder = msgspec.json.decode(record.value, type=DutyHolder)
            if holder.holder != self.holder:
                self._half = 0.0
                return False
            value = holder
        guard = AtVersion(DUTY_SPACE, self.name, record.version if record is not None else 0)
        put = PutRecord(DUTY_SPACE, self.name, msgspec.json.encode(value), expires=After(self._lease_ms))
        [answer] = await store.commit([Group((guard,), (put,))])
        held = isinstance(answer, Done)
        self._half = sent + self._lease_ms / 2_000 if held else 0.0
        return held

    async def resign(self, store: Store) -> None:
        """Let others have the duty at once, if it is this process's. Raises what the store raises."""
        self._half = 0.0
        [record] = await store.get([(DUTY_SPACE, self.name)])
        if record is None or record.value is None:
            return
        if msgspec.json.decode(record.value, type=DutyHolder).holder == self.holder:
            guard = AtVersion(DUTY_SPACE, self.name, record.version)
            await store.commit([Group((guard,), (DropRecord(DUTY_SPACE, self.name),))])


class Sweeper:
    """The sweeps of one process: always its own queues, and all queues while it holds the duty."""

    def __init__(self, holder: str, queues: Sequence[str], *, lease_seconds: float) -> None:
        self._duty = Duty("sweep", holder)
        self._queues = tuple(queues)
        self._lease_seconds = lease_seconds
        self._watch = outage.Watch()
        self._maintain_at = 0.0
        self._is_neglected = False

    async def sweep(self, store: Store) -> Swept:
        """Do what is due, as far as the outage rule lets rescue happen now. Raises what the store raises."""
        self._watch = outage.first_sweep(self._watch, seam.monotonic())
        # Where one writes at a time, questions are answered while nobody can renew. Only a write that got
        # through shows that holders could; it comes before the gap is measured, so that its own wait is part
        # of the gap.
        await store.commit([])
        self._watch, rescue = outage.before_sweep(self._watch, seam.monotonic(), self._lease_seconds)
        holds = await self._duty.hold(store)
        queues = None if holds else self._queues
        swept = await sweep(store, queues=queues, rescue=rescue.allowed, charged=rescue.charged)
        self._watch = outage.after_sweep(self._watch, seam.monotonic(), rescue, more=swept.more)
        if holds and isinstance(store, Maintains) and seam.monotonic() >= self._maintain_at:
            self._maintain_at = seam.monotonic() + MAINTAIN_SECONDS
            await self._maintain(store)
        return swept

    async def _maintain(self, store: Maintains) -> None:
        """Upkeep that fails, for want of a permission say, is told once, and no reason not to sweep."""
        try:
            await store.maintain()
        except TesseraError as error:
            if not self._is_neglected:
                logger.warning("the store's upkeep failed, and is tried again: %s", error)
            self._is_neglected = True
        else:
            self._is_neglected = False

    async def resign(self, store: Store) -> None:
        """Give the duty up. Raises what the store raises."""
        await self._duty.resign(store)
