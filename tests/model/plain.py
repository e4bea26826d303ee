"""What must be true whatever the evaluator thinks.

Both stores run the same evaluator, so that they may agree and still be wrong.
This model shares no code with it: it is a few dictionaries
that know only what was asked and what was answered.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from dataclasses import dataclass, field

from tessera.model.job import Job
from tessera.model.states import FINAL, State


@dataclass
class Lease:
    """Who has a job, under which fence, until when."""

    fence: int
    until: int
    cap_at: int


@dataclass
class Plain:
    """See the module."""

    leases: dict[bytes, Lease] = field(default_factory=dict)
    """Jobs that were claimed and neither ended nor taken back."""
    fences: dict[bytes, int] = field(default_factory=dict)
    """The highest fence that any lease of a job had."""
    last_end: dict[bytes, tuple[int, str]] = field(default_factory=dict)
    """The last lease that ended, and how."""
    ended: dict[bytes, State] = field(default_factory=dict)
    """Final states, until a redrive."""
    parents: dict[bytes, set[bytes]] = field(default_factory=dict)
    """Jobs that must be completed before this one may run."""
    completed: set[bytes] = field(default_factory=set)
    """Jobs that completed, also those of which no row is kept."""
    starts: dict[bytes, list[int]] = field(default_factory=dict)
    """Instants at which runs that take from the exact rate began; a refund takes the last one out again."""

    # What was answered --------------------------------------------------------------------------------------

    def claimed(self, job: Job, now: int) -> None:
        """INV-2, INV-5, INV-6, INV-20: nobody has it, its fence is new, its parents are done."""
        assert job.id not in self.leases, "a job was claimed while another lease was not taken back"
        assert job.fence > self.fences.get(job.id, 0), "a fence did not grow"
        assert job.id not in self.ended, "an ended job was claimed"
        assert self.parents.get(job.id, set()) <= self.completed, "a job ran before what it waits for"
        assert now < job.lease_until
        self.leases[job.id] = Lease(job.fence, job.lease_until, job.cap_at)
        self.fences[job.id] = job.fence

    def may_write(self, job: bytes, fence: int, now: int) -> bool:
        """INV-7: whether a write under this fence must be accepted; if not, it must be refused."""
        lease = self.leases.get(job)
        return lease is not None and lease.fence == fence and now < lease.until

    def is_over(self, job: bytes, fence: int, now: int) -> bool:
        """INV-8: whether a rescue of this lease must be accepted; if not, it must be refused."""
        lease = self.leases.get(job)
        return lease is not None and lease.fence == fence and now >= lease.until

    def is_repeat(self, job: bytes, fence: int, end: str) -> bool:
        """INV-3: whether this very end was written before, and no other lease ended since."""
        return self.last_end.get(job) == (fence, end)

    def let_go(self, job: bytes, end: str) -> None:
        """A lease ended."""
        lease = self.leases.pop(job)
        self.last_end[job] = (lease.fence, end)
        if end == "completed":
            self.completed.add(job)

    def renewed(self, job: bytes, until: int) -> None:
        """INV-9: never past the cap."""
        lease = self.leases[job]
        lease.until = min(until, lease.cap_at) if lease.cap_at else until

    def gone(self, job: bytes) -> None:
        """The row was removed on purpose."""
        self.leases.pop(job, None)
        self.last_end.pop(job, None)
        self.ended.pop(job, None)

    # What is stored -----------------------------------------------------------------------------------------

    def look(self, rows: Iterable[Job], counts: dict[tuple[str, State], int], removed: set[bytes]) -> None:
        """INV-1, INV-2, INV-15, and the leases as they stand in the rows. ``removed``: what may be gone."""
        rows = list(rows)
        by_id = {row.id: row for row in rows}
        assert counts == Tally((row.queue, row.state) for row in rows), "counts are not the rows"
        running = {row.id for row in rows if row.state is State.RUNNING}
        for row in rows:
            lease = self.leases.get(row.id)
            if row.state is State.RUNNING:
                assert lease is not None
                assert (row.fence, row.lease_until) == (lease.fence, lease.until)
            else:
                assert (row.holder, row.holds) == ("", ())
                assert lease is None, f"a lease vanished: {row.id!r} is {row.state}"
            if (end := self.ended.get(row.id)) is not None:
                assert row.state is end, "a final state changed without a redrive"
            if row.state in FINAL:
                self.ended[row.id] = row.state
                assert row.id not in self.leases, "an ended job is still leased"
        missing = set(self.ended) - set(by_id) - removed
        assert not missing, "an ended job vanished"
        assert set(self.leases) - removed <= running, "a running job vanished"

    def started(self, job: bytes, now: int, limit: int, per_ms: int) -> None:
        """INV-26: no window holds more starts than the exact rate allows."""
        self.starts.setdefault(job, []).append(now)
        in_window = sum(now - per_ms < at for times in self.starts.values() for at in times)
        assert in_window <= limit, "the exact rate was passed"

    def refunded(self, job: bytes) -> None:
        if self.starts.get(job):
            self.starts[job].pop()
