"""What the clock makes due: promotion, rescue, expiry, eviction, and counters that look again. Safe to run
anywhere, any number of times at once: every write is guarded by what the sweep saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tessera import seam
from tessera.model.changes import (
    AtVersion,
    Change,
    Count,
    Done,
    DropJob,
    DropRecord,
    FreeSlot,
    Group,
    InState,
    LogEvent,
    MoveJob,
    SettleEdges,
)
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import Due
from tessera.model.states import State
from tessera.rules import endings
from tessera.store.protocol import Store

FOLLOWUP_SPACE: Final = "~followup"
SWEEP_LIMIT: Final = 500


class Swept(msgspec.Struct, frozen=True, gc=False):
    """What one sweep did. ``more``: some list was full, so that another sweep at once is worth it."""

    promoted: int = 0
    rescued: int = 0
    expired: int = 0
    evicted: int = 0
    more: bool = False
    next_due: int = 0
    now: int = 0


async def sweep(
    store: Store,
    *,
    queues: Sequence[str] | None = None,
    rescue: bool = True,
    charged: bool = True,
    limit: int = SWEEP_LIMIT,
) -> Swept:
    """Do what is due. ``rescue=False`` leaves lapsed leases alone, ``charged=False`` takes them back without
    a crash (INV-37).
    """
    due = await store.due(limit, queues)
    lapsed = due.lapsed if rescue else ()
    expiring = {job.id for job in due.expired}
    ready = [job for job in due.scheduled if job.id not in expiring]
    groups: list[Group] = [
        *(_promotion(job) for job in ready),
        *(endings.lapse(j, random=seam.random(), now=due.now, charged=charged) for j in lapsed),
        *(Group((_as_seen(j),), (MoveJob(j.id, State.DEAD, reason="expired"),)) for j in due.expired),
    ]
    promoted, rescued, expired = len(ready), len(lapsed), len(due.expired)
    evictions = await _evictions(store, due.gone)
    upkeep = _upkeep(due)
    answers = await store.commit([*groups, *evictions, *upkeep]) if groups or evictions or upkeep else []
    done = [isinstance(answer, Done) for answer in answers]
    full = (due.scheduled, lapsed, due.expired, due.gone, due.slots, due.counters, due.records)
    return Swept(
        promoted=sum(done[:promoted]),
        rescued=sum(done[promoted : promoted + rescued]),
        expired=sum(done[promoted + rescued : promoted + rescued + expired]),
        evicted=sum(len(g.guards) for g, d in zip(evictions, done[len(groups) :], strict=False) if d),
        more=any(len(rows) >= limit for rows in full),
        next_due=due.next_due,
        now=due.now,
    )


def _promotion(job: Job) -> Group:
    """Only the wait that was read is over: a job that failed or was put off meanwhile waits for another
    instant.
    """
    guard = InState(job.id, (State.SCHEDULED,), due=job.due)
    return Group((guard,), (MoveJob(job.id, State.AVAILABLE, job.due),))


async def _evictions(store: Store, gone: Sequence[JobId]) -> list[Group]:
    """Rows whose retention is over, with one event a queue that says how many: nothing vanishes unrecorded.

    The event goes with the rows or not at all, so that nothing is told twice where two sweep at once.
    """
    queues: dict[str, list[Job]] = {}
    for job in await store.get_jobs(gone) if gone else ():
        if job is not None and job.is_final:
            queues.setdefault(job.queue, []).append(job)
    groups = []
    for queue, jobs in queues.items():
        told = LogEvent("evicted", queue, by="sweep", data=msgspec.json.encode({"count": len(jobs)}))
        guards = tuple(_as_seen(job) for job in jobs)
        groups.append(Group(guards, (*(DropJob(job.id) for job in jobs), told)))
    return groups


def _as_seen(job: Job) -> InState:
    """The job is in the very state that was read, and did not come back to it meanwhile."""
    return InState(job.id, (job.state,), job.fence)


def _upkeep(due: Due) -> list[Group]:
    changes: list[Change] = [FreeSlot(slot.key, slot.owner) for slot in due.slots]
    changes += [Count(key) for key in due.counters]
    groups = [Group(changes=(change,)) for change in changes]
    for record in due.records:
        if record.space == FOLLOWUP_SPACE:
            groups.append(Group(changes=(SettleEdges(JobId(bytes.fromhex(record.key))),)))
        elif 0 < record.expires_at <= due.now:
            # An expired record reads as absent, and a new one under its key starts again.
            groups.append(
                Group((AtVersion(record.space, record.key, 0),), (DropRecord(record.space, record.key),))
            )
    return groups
