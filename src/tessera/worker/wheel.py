"""All timers of a worker's attempts behind one timer of the event loop: an attempt without a limit costs
nothing here."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

from tessera import seam

_SLACK: Final = 64
"""Cancelled entries that are left to lie before the heap is built anew without them."""


class Timer:
    """One entry: what to call, and when."""

    __slots__ = ("action", "at")

    def __init__(self, at: float, action: Callable[[], None]) -> None:
        self.at = at
        self.action: Callable[[], None] | None = action

    def __lt__(self, other: Timer) -> bool:
        return self.at < other.at


class Wheel:
    """Calls actions at instants of the monotonic clock, in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[Timer] = []
        self._cancelled = 0
        self._next: asyncio.TimerHandle | None = None
        self._next_at = 0.0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def at(self, when: float, action: Callable[[], None]) -> Timer:
        """Call the action at this instant, once."""
        timer = Timer(when, action)
        heapq.heappush(self._heap, timer)
        if self._heap[0] is timer:
            self._arm()
        return timer

    def cancel(self, timer: Timer) -> None:
        """Do not call it. Harmless if it was called already."""
        if timer.action is None:
            return
        timer.action = None
        self._cancelled += 1
        if self._cancelled > _SLACK and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry.action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def close(self) -> None:
        """Call nothing any more."""
        self._heap.clear()
        self._cancelled = 0
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _turn(self) -> None:
        self._next = None
        now = seam.monotonic()
        while self._heap and (self._heap[0].action is None or self._heap[0].at <= now):
            timer = heapq.heappop(self._heap)
            action, timer.action = timer.action, None
            if action is None:
                self._cancelled -= 1
            else:
                action()
        if self._heap:
            self._arm()

    def _arm(self) -> None:
        at = self._heap[0].at
        if self._next is not None:
            if self._next_at <= at:
                return
            self._next.cancel()
        self._next_at = at
        self._next = self._loop.call_later(max(0.0, at - seam.monotonic()), self._turn)
