"""The leases this worker holds: the one thing that the event loop of the handlers and the renewer's thread
share.

A deadline is counted on the monotonic clock from the *sending* of the claim or renewal: the store's lease can
only end later. So a worker that stops its handlers by this deadline never runs one whose lease is over,
whatever the clocks say.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable

from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.worker.report import Report


class Hold:
    """One lease. Written under the lock of ``Leases``; ``until`` may be read without it."""

    __slots__ = ("cap", "finishing", "job", "news_at", "report", "sent_at", "until")

    def __init__(self, job: Job, sent_at: float, lease_seconds: float) -> None:
        self.job = job
        self.sent_at = sent_at
        """When the claim was sent: the worker's own instant for the store's ``claimed_at``."""
        self.cap = sent_at + (job.cap_at - job.claimed_at) / 1_000 if job.cap_at else math.inf
        self.until = min(sent_at + lease_seconds, self.cap)
        self.finishing = False
        """The outcome is on its way: a lost renewal says nothing any more."""
        self.report: Report | None = None
        self.news_at = 0.0
        """When the report was last sent."""

    def local(self, store_ms: int) -> float:
        """An instant of the store's clock on ours; late by the flight of the claim at most, never early."""
        return self.sent_at + (store_ms - self.job.claimed_at) / 1_000


class Leases:
    """All holds of a worker. Callable from any thread."""

    def __init__(self, lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self.margin = 0.15 * lease_seconds
        """What must be left of a lease: with less, a handler is stopped and none is started."""
        self._lock = threading.Lock()
        self._holds: dict[JobId, Hold] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def add(self, jobs: Iterable[Job], sent_at: float) -> list[Hold]:
        """Note claimed jobs."""
        holds = [Hold(job, sent_at, self.lease_seconds) for job in jobs]
        with self._lock:
            for hold in holds:
                self._holds[hold.job.id] = hold
        return holds

    def drop(self, holds: Iterable[Hold]) -> None:
        """Forget leases that ended or were lost. A newer lease on the same job stays."""
        with self._lock:
            for hold in holds:
                if self._holds.get(hold.job.id) is hold:
                    del self._holds[hold.job.id]

    def ids(self) -> frozenset[JobId]:
        """The jobs held."""
        with self._lock:
            return frozenset(self._holds)

    def get(self, job: JobId) -> Hold | None:
        """The lease on a job."""
        return self._holds.get(job)

    def is_spent(self, hold: Hold, now: float) -> bool:
        """Whether too little of the lease is left to go on under it."""
        return now >= hold.until - self.margin

    def to_renew(self, now: float) -> list[Hold]:
        """Leases of which over a third is gone, and with the first such all that are half way there: fewer,
        larger commits."""
        with self._lock:
            left = 2 / 3 * self.lease_seconds
            if not any(hold.until - now < left and hold.until < hold.cap for hold in self._holds.values()):
                return []
            soon = 5 / 6 * self.lease_seconds
            return [
                hold for hold in self._holds.values() if hold.until - now < soon and hold.until < hold.cap
            ]

    def with_news(self, now: float) -> list[Hold]:
        """Leases whose handlers have said something that was not sent, each once a second at most."""
        with self._lock:
            return [
                hold
                for hold in self._holds.values()
                if hold.report is not None
                and not hold.finishing
                and hold.report.has_news
                and now - hold.news_at >= 1
            ]

    def renewed(self, hold: Hold, sent_at: float, seconds: float) -> None:
        """The store confirmed the lease for so long from ``sent_at``."""
        with self._lock:
            hold.until = min(sent_at + seconds, hold.cap)
