"""What a ``Filter`` means, row by row. Stores with indexes narrow the rows first and then ask this too."""

from __future__ import annotations

from tessera.model.job import Job
from tessera.model.queries import EXAMINED_LIMIT, PAGE_LIMIT, Filter, JobPage, Page


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


class Sieve:
    """One page of the jobs that a filter asks for, from candidates that come newest key first."""

    def __init__(self, which: Filter, page: Page) -> None:
        self._which = which
        self._limit = min(page.limit, PAGE_LIMIT)
        self._found: list[Job] = []
        self._examined = 0
        self._last = b""

    @property
    def is_full(self) -> bool:
        """Whether a further candidate belongs to the next page, or enough were looked at."""
        return len(self._found) == self._limit or self._examined == EXAMINED_LIMIT

    def look_at(self, job: Job) -> None:
        """Keep the candidate if it is one."""
        self._examined += 1
        self._last = job.id
        if matches(job, self._which):
            self._found.append(job)

    def page(self, *, more: bool) -> JobPage:
        """The page. ``more``: there are candidates that were not looked at."""
        return JobPage(tuple(self._found), self._last if more else b"", self._examined)
