"""Fairness where producers cannot agree on tags: the claim places each job once.

Stores with one writer give a tenant's jobs their passes when they are enqueued. Where many producers write at
once that would be a row they all wait for, so that a producer's tag is a guess from what its process
remembers, and the claim, which is alone behind its gate, gives every candidate it meets its exact tag: a
candidate tagged too low is moved back, once.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from tessera.rules import ordering
from tessera.store.working import Working

WINDOWS: Final = 8
"""Most windows of candidates placed in one claim: it bounds how long the gate is held."""


def place(work: Working, queue: str, wanted: int) -> None:
    """Give the first ``wanted`` candidates of a queue their exact passes."""
    for _ in range(WINDOWS):
        moved = 0
        for job in work.ready(queue, wanted):
            lane = (job.queue, job.priority)
            floor = work.floors.get(lane)
            if job.placed or (floor is None and not job.stride):
                continue
            if floor is None:
                floor = 0
                work.floors.put(lane, floor)
            key = (job.queue, job.priority, job.tenant)
            tag = ordering.next_pass(work.passes.get(key) or 0, floor, job.stride or ordering.PASS_SCALE)
            moved += tag > job.pass_
            tag = max(tag, job.pass_)
            work.passes.put(key, tag)
            work.jobs.put(job.id, replace(job, pass_=tag, placed=True))
        if not moved:
            return
