"""What a ``Filter`` means, row by row. Stores with indexes narrow the rows first and then ask this too."""

from __future__ import annotations

from tessera.model.job import Job
from tessera.model.queries import Filter


def matches(job: Job, which: Filter) -> bool:
    """Whether the row is one that the filter asks for."""
    return not (
        (which.queues and job.queue not in which.queues)
        or (which.states and job.state not in which.states)
        or (which.kinds and job.kind not in which.kinds)
        or (which.ids and job.id not in which.ids)
        or (which.tenant is not None and job.tenant != which.tenant)
        or (which.parent is not None and job.parent != which.parent)
        or (which.holder and job.holder != which.holder)
        or (which.cancel_requested is not None and job.cancel_requested is not which.cancel_requested)
        or (which.blocked_on and job.blocked_on != which.blocked_on)
        or (which.reason and not job.reason.startswith(which.reason))
        or (which.tags_all and not set(which.tags_all) <= set(job.tags))
        or (which.tags_any and not set(which.tags_any) & set(job.tags))
    )
