"""What a process remembers of passes: the guesses of a producer that asks nobody.

A guess that is too low costs nothing but the move that sets it right (``placing``); one that is too high
would cost a tenant its turn, so that no process guesses above what it gave or saw claimed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tessera import seam
from tessera.model.job import Job
from tessera.rules import ordering
from tessera.store.working import FloorKey, PassKey

FLOORS_KEPT_SECONDS: Final = 1.0
REMEMBERED: Final = 50_000
"""Tenants remembered; then all are forgotten, which is a guess that is too low."""


class TagMemory:
    """The floors as last read, and the last pass this process gave each tenant."""

    def __init__(self) -> None:
        self.floors: dict[FloorKey, int] = {}
        self.last: dict[PassKey, int] = {}
        self._read_at = float("-inf")

    def are_stale(self) -> bool:
        """Whether the floors should be read again before the next guess."""
        return seam.monotonic() - self._read_at >= FLOORS_KEPT_SECONDS

    def read(self, floors: Iterable[tuple[FloorKey, int]]) -> None:
        """The floors of all lanes that tenants share, as they stand."""
        self.floors = dict(floors)
        self._read_at = seam.monotonic()

    def saw(self, lane: FloorKey, floor: int) -> None:
        """A claim reached this pass."""
        self.floors[lane] = max(floor, self.floors.get(lane, 0))

    def guesses(self) -> Guesses:
        """The guesses of one transaction."""
        return Guesses(self)


class Guesses:
    """Implements ``store/working.Tags``. What was guessed is remembered once it is committed."""

    def __init__(self, memory: TagMemory) -> None:
        self._memory = memory
        self._given: dict[PassKey, int] = {}

    def guess(self, job: Job) -> int:
        lane = (job.queue, job.priority)
        floor = self._memory.floors.get(lane)
        if floor is None and not job.stride:
            return 0
        key = (job.queue, job.priority, job.tenant)
        last = self._given.get(key) or self._memory.last.get(key, 0)
        tag = ordering.next_pass(last, floor or 0, job.stride or ordering.PASS_SCALE)
        self._given[key] = tag
        return tag

    def at_least(self, job: Job) -> int:
        return max(job.pass_, self._memory.floors.get((job.queue, job.priority), 0))

    def keep(self) -> None:
        """The transaction was committed."""
        last = self._memory.last
        if len(last) + len(self._given) > REMEMBERED:
            last.clear()
        last |= self._given
