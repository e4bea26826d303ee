"""What the handles of one process remember of a store between transactions. Nothing here decides anything: a
write made from it asserts that it is still so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from tessera import seam
from tessera.model.changes import AddJob, Change, Count, EditJob, Group, Held, LogEvent, MoveJob
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.states import State
from tessera.store.postgres.lanes import Lanes
from tessera.store.sql.mirror import Mirror
from tessera.store.sql.tags import TagMemory
from tessera.store.working import Net

HELD_LIMIT: Final = 50_000
"""Running jobs remembered; then all are forgotten, and finished with a look."""
FRESH_MS: Final = 60_000
"""An id that this process made so short ago is not in the archive, unless the write is a repeat."""
_VERSION_7: Final = 7


class Memory:
    """See the module. ``clock`` stands for the store's clock, in milliseconds; without one it is kept by
    what replies say.
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self.tags = TagMemory()
        self.lanes: dict[str, Lanes] = defaultdict(Lanes)
        self.gated_until: dict[str, float] = {}
        """Queues whose last claims needed the gate, and till when to go there at once."""
        self._clock = clock
        self._ahead: int | None = None
        self._held: dict[JobId, tuple[Job, int]] = {}

    # The store's clock --------------------------------------------------------------------------------------

    def heard(self, store_ms: int) -> None:
        """A reply said what time it is."""
        self._ahead = store_ms - round(seam.monotonic() * 1_000)

    def now(self) -> int | None:
        """The store's time to within a round trip; None = nothing was heard yet."""
        if self._clock is not None:
            return self._clock()
        return None if self._ahead is None else round(seam.monotonic() * 1_000) + self._ahead

    # Running jobs -------------------------------------------------------------------------------------------

    def keep(self, job: Job, rev: int) -> None:
        """A running job as it was last read or written, and its row version."""
        if len(self._held) >= HELD_LIMIT:
            self._held.clear()
        self._held[job.id] = (job, rev)

    def wrote(self, net: Net, revs: dict[JobId, int]) -> None:
        """A net state was committed."""
        for row in net.jobs:
            after = row.after
            if after is not None and after.state is State.RUNNING and row.before is not None:
                self.keep(after, revs[row.key] + 1)
            else:
                self._held.pop(row.key, None)
            if after is not None and after.state is State.AVAILABLE and _kept_its_place(row.before, after):
                self.lanes[after.queue].forget()

    def held(self, job: JobId) -> Job | None:
        """A running job, if this process has it."""
        kept = self._held.get(job)
        return None if kept is None else kept[0]

    def forget(self, groups: Sequence[Group]) -> None:
        """What was remembered of these jobs is not so."""
        for group in groups:
            for guard in group.guards:
                if isinstance(guard, Held):
                    self._held.pop(guard.job, None)

    def mirror(self, groups: Sequence[Group], now: int) -> Mirror | None:
        """A mirror of what the groups touch, without a look at the store; None if they touch more than is
        remembered.
        """
        mirror = Mirror()
        held: dict[JobId, tuple[Job, int]] = {}
        for group in groups:
            for guard in group.guards:
                kept = self._held.get(guard.job) if isinstance(guard, Held) else None
                if kept is None or not isinstance(guard, Held) or kept[0].fence != guard.fence:
                    return None
                held[guard.job] = kept
            for change in group.changes:
                if not _touches_only(change, held, mirror, now):
                    return None
        mirror.learn_jobs(held.keys(), held.values())
        return mirror


def _touches_only(change: Change, held: dict[JobId, tuple[Job, int]], mirror: Mirror, now: int) -> bool:
    match change:
        case MoveJob(job=job) | EditJob(job=job):
            return job in held
        case LogEvent(job=job):
            return job is None or job in held
        case Count():
            return True
        case AddJob(job=new, after=after):
            if after or not _is_new(new, now):
                return False
            mirror.known.jobs.add(new.id)
            mirror.known.archive.add(new.id)
            mirror.known.slots.update(new.slots)
            return True
    return False


def _is_new(job: Job, now: int) -> bool:
    """Whether the id cannot be taken but by a job that the insert would meet: it was just made, or its own
    slot stands for it as long as any row of it does.
    """
    if job.given_id:
        return f"id:{job.given_id}" in job.slots
    made_at = int.from_bytes(job.id[:6], "big")
    return job.id[6] >> 4 == _VERSION_7 and abs(now - made_at) < FRESH_MS


def _kept_its_place(before: Job | None, after: Job) -> bool:
    """Whether a job came into the ready order elsewhere than at its end."""
    return before is not None and (
        before.state in (State.BLOCKED, State.AVAILABLE)
        or (before.state is State.RUNNING and after.due == before.due)
    )
