"""What the clock makes due: promotion, rescue, expiry, eviction, and counters that look again. Safe to run anywhere, any number
of times at once: every write is guarded by what the sweep saw."""

from __future__ import annotations

from collections import Counter as Tally
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
from tessera.model.queries import Due
from tessera.model.states import FINAL, State
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
    """Do what is due. ``rescue=False`` leaves lapsed leases alone, ``charged=False`` takes them back without a crash (INV-37)."""
    due = await store.due(limit, queues)
    lapsed = due.lapsed if rescue else ()
    groups: list[Group] = [
        *(Group((InState(j.id, (State.SCHEDULED,)),), (MoveJob(j.id, State.AVAILABLE, j.due),)) for j in due.scheduled),
        *(endings.lapse(j, random=seam.random(), now=due.now, charged=charged) for j in lapsed),
        *(Group((InState(j.id, (j.state,)),), (MoveJob(j.id, State.DEAD, reason="expired"),)) for j in due.expired),
    ]
    promoted, rescued, expired = len(due.scheduled), len(lapsed), len(due.expired)
    evictions = await _evictions(store, due.gone)
    upkeep = _upkeep(due)
    answers = await store.commit([*groups, *evictions, *upkeep]) if groups or evictions or upkeep else []
    done = [isinstance(answer, Done) for answer in answers]
    full = (due.scheduled, lapsed, due.expired, due.gone, due.slots, due.records)
    return Swept(
        promoted=sum(done[:promoted]),
        rescued=sum(done[promoted : promoted + rescued]),
        expired=sum(done[promoted + rescued : promoted + rescued + expired]),
        evicted=sum(done[promoted + rescued + expired : len(groups) + len(evictions)]),
        more=any(len(rows) >= limit for rows in full),
        next_due=due.next_due,
        now=due.now,
    )


async def _evictions(store: Store, gone: Sequence[JobId]) -> list[Group]:
    """Rows whose retention is over, and per queue one event that says how many: nothing vanishes unrecorded."""
    jobs = [job for job in await store.get_jobs(gone) if job is not None] if gone else []
    groups = [Group((InState(job.id, tuple(FINAL)),), (DropJob(job.id),)) for job in jobs]
    for queue, count in Tally(job.queue for job in jobs).items():
        data = msgspec.json.encode({"count": count})
        groups.append(Group(changes=(LogEvent("evicted", queue, by="sweep", data=data),)))
    return groups


def _upkeep(due: Due) -> list[Group]:
    changes: list[Change] = [FreeSlot(slot.key, slot.owner) for slot in due.slots]
    changes += [Count(key) for key in due.counters]
    groups = [Group(changes=(change,)) for change in changes]
    for record in due.records:
        if record.space == FOLLOWUP_SPACE:
            groups.append(Group(changes=(SettleEdges(JobId(bytes.fromhex(record.key))),)))
        elif 0 < record.expires_at <= due.now:
            # An expired record reads as absent, and a new one under its key starts again.
            groups.append(Group((AtVersion(record.space, record.key, 0),), (DropRecord(record.space, record.key),)))
    return groups
