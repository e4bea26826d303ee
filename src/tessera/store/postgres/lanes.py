"""Where in the ready index a claim begins to look.

A dead index entry is stepped over by every claim as long as some transaction, anywhere in the server, may
still see it: with one left open, a claim that begins at the head of the index gets slower by the second. So
each priority of a queue is a lane with a bound: the largest key that was claimed in it as of a little while
ago. What becomes ready stands behind it, save what kept an old place or committed late; the ranges asked for
cover the gaps between the known lanes, and every two seconds a claim asks without bounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from tessera import seam
from tessera.model.job import Job

SLACK_SECONDS: Final = 0.2
"""A bound is as old as this: a commit that took so long is still met in its turn."""
SWEEP_SECONDS: Final = 2.0
LANES: Final = 32
"""Most lanes with a bound in one queue; with more priorities alive the oldest is asked from its head."""
LOWEST: Final = -(1 << 31)
HIGHEST: Final = (1 << 31) - 1

Place = tuple[int, int, int]
"""Negated priority, pass, due."""


class Lanes:
    """The bounds of one queue, of all handles of a process."""

    def __init__(self) -> None:
        self._bounds: dict[int, Place] = {}
        self._claimed: deque[tuple[float, dict[int, Place]]] = deque()
        self._swept_at = -SWEEP_SECONDS

    def ranges(self) -> list[tuple[Place, int]]:
        """(from this place on, up to this negated priority) in order; together they leave out only what lies
        before a bound.
        """
        now = seam.monotonic()
        if now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            return [((LOWEST, 0, 0), HIGHEST)]
        while self._claimed and now - self._claimed[0][0] >= SLACK_SECONDS:
            self._bounds |= self._claimed.popleft()[1]
        while len(self._bounds) > LANES:
            del self._bounds[next(iter(self._bounds))]
        found: list[tuple[Place, int]] = []
        start: Place = (LOWEST, 0, 0)
        for np, bound in sorted(self._bounds.items()):
            found.append((start, np))
            start = bound
        found.append((start, HIGHEST))
        return found

    def claimed(self, jobs: Sequence[Job]) -> None:
        """These were claimed in order: in each lane the last one is the largest."""
        if jobs:
            last = {-job.priority: (-job.priority, job.pass_, job.due) for job in jobs}
            self._claimed.append((seam.monotonic(), last))

    def forget(self) -> None:
        """Something kept an old place: look from the head the next time."""
        self._bounds.clear()
        self._claimed.clear()
        self._swept_at = -SWEEP_SECONDS
