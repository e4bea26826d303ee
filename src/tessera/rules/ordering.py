"""The one order: higher priority first, then pass, then due time, then key.

Fairness between the tenants of a queue is stride scheduling (Waldspurger and Weihl, 1995) done when a job
becomes ready: each job moves its tenant's pass on by cost / weight, so a tenant that brings much stands ever
further back, while the claim stays a plain ordered read. A tenant that was idle starts at the floor, the pass
of the last claimed job: being away earns no credit.
"""

from __future__ import annotations

from typing import Final

from tessera.model.job import Job

PASS_SCALE: Final = 1_000
"""The pass that cost 1 at weight 1 is worth; a weight of 1/1000 to 1,000 is told apart."""
MAX_PASS: Final = (1 << 48) - 1


def sort_key(job: Job) -> tuple[int, int, int, bytes]:
    """Claim order. Every store's index is these columns, the priority stored negated."""
    return (-job.priority, job.pass_, job.due, job.id)


def stride(cost: int, weight: float) -> int:
    """How far one job moves its tenant's pass on; at least 1."""
    return max(1, round(cost * PASS_SCALE / weight))


def next_pass(last: int, floor: int, job_stride: int) -> int:
    """The pass of a job that becomes ready, from the last pass its tenant was given and the floor of its
    priority.
    """
    return min(MAX_PASS, max(last, floor) + job_stride)
