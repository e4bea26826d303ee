"""Fairness where producers cannot agree on tags: the claim places each job once.

Stores with one writer give a tenant's jobs their passes when they are enqueued. Where many producers write at
once that would be a row they all wait for, so that a producer's tag is a guess from what its process
remembers, and the claim, which is alone behind its gate, puts each candidate it meets at least its own stride
behind the last one of its tenant: one that several producers tagged alike is moved back, once.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from tessera.rules import ordering
from tessera.store.working import Working

WINDOW: Final = 100
WINDOWS: Final = 8
"""Most windows of candidates placed in one claim: it bounds how long the gate is held."""


def place(work: Working, queue: str, wanted: int) -> None:
    """Place at least the first ``wanted`` candidates of a queue."""
    for _ in range(WINDOWS):
        moved = 0
        for job in work.ready(queue, max(wanted, WINDOW)):
            lane = (job.queue, job.priority)
            floor = work.floors.get(lane)
            if job.placed or (floor is None and not job.stride):
                continue
            if floor is None:
                work.floors.put(lane, 0)
            key = (job.queue, job.priority, job.tenant)
            last = work.passes.get(key)
            tag = job.pass_
            if last is not None or not tag:  # without a tag: its producer did not know that tenants share
                behind = work.floors.get(lane) or 0 if not tag else 0
                tag = max(tag, ordering.next_pass(last or 0, behind, job.stride or ordering.PASS_SCALE))
            moved += tag > job.pass_
            work.passes.put(key, tag)
            work.jobs.put(job.id, replace(job, pass_=tag, placed=True))
        if not moved:
            return
