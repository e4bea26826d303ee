"""Which rows a commit will look at, told from its groups: so that they come in one flight, and are locked in
one order.

Foresight is never needed for a right answer: what it leaves out is ``mirror.Missing`` and is loaded then.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.model.changes import (
    AddJob,
    AtVersion,
    DropJob,
    DropRecord,
    EditJob,
    Free,
    FreeSlot,
    Group,
    Guard,
    Held,
    InState,
    Lapsed,
    Link,
    MoveJob,
    PublishBlob,
    PutRecord,
    SettleEdges,
    TakeSlot,
)
from tessera.model.ids import JobId
from tessera.model.states import FINAL, State
from tessera.store.evaluator import REQUEST_SPACE
from tessera.store.sql.mirror import Mirror, Wanted
from tessera.store.transitions import FOLLOWUP_SPACE, SETTLED_AT_ONCE

_SWEPT = frozenset({State.SCHEDULED})


def foreseen(groups: Sequence[Group], request_id: str = "") -> Wanted:
    """What the groups name."""
    wanted = Wanted()
    if request_id:
        wanted.records.add((REQUEST_SPACE, request_id))
    for group in groups:
        for guard in group.guards:
            match guard:
                case Held(job=job) | Lapsed(job=job) | InState(job=job):
                    wanted.jobs.add(job)
                case AtVersion(space=space, key=key):
                    wanted.records.add((space, key))
                case Free(slot=slot):
                    wanted.slots.add(slot)
        for change in group.changes:
            match change:
                case AddJob():
                    _foresee_added(change, wanted)
                case MoveJob(job=job) | EditJob(job=job) | DropJob(job=job):
                    wanted.jobs.add(job)
                case SettleEdges(job=job):
                    wanted.jobs.add(job)
                    wanted.records.add((FOLLOWUP_SPACE, job.hex()))
                case TakeSlot(slot=slot) | FreeSlot(slot=slot):
                    wanted.slots.add(slot)
                case Link(edge=edge):
                    wanted.jobs |= {edge.parent, edge.child}
                    wanted.edges.add((edge.parent, edge.child))
                case PutRecord(space=space, key=key) | DropRecord(space=space, key=key):
                    wanted.records.add((space, key))
                case PublishBlob(upload=upload):
                    wanted.staged.add(upload)
    return wanted


def _foresee_added(change: AddJob, wanted: Wanted) -> None:
    job = change.job
    wanted.jobs.add(job.id)
    wanted.archive.add(job.id)
    wanted.slots.update(job.slots)
    for edge in change.after:
        wanted.jobs.add(edge.parent)
        wanted.edges.add((edge.parent, edge.child))


def followed(groups: Sequence[Group], mirror: Mirror) -> Wanted:
    """What follows from the rows of the first look: keys and dependants of jobs that end, children of one
    that waits.
    """
    wanted = Wanted()
    for group in groups:
        for change in group.changes:
            key = change.job if isinstance(change, MoveJob | DropJob | SettleEdges) else None
            if key is None or (isinstance(change, MoveJob) and change.to not in FINAL):
                continue
            job = mirror.jobs.get(key) or mirror.archive.get(key)
            if job is None:
                continue
            wanted.slots.update(job.slots)
            if job.heirs:
                wanted.edges_from[key] = SETTLED_AT_ONCE + 1
            if job.open:
                wanted.edges_to.add(key)
    return wanted


def dependants(wanted: Wanted, mirror: Mirror) -> Wanted:
    """The jobs at the far end of edges that were read."""
    found: set[JobId] = set()
    for parent in wanted.edges_from:
        found.update(edge.child for edge in mirror.edges_from(parent, SETTLED_AT_ONCE))
    for child in wanted.edges_to:
        found.update(edge.parent for edge in mirror.edges_to(child))
    return Wanted(jobs=found)


def impatient(guards: Sequence[Guard]) -> JobId | None:
    """The job of a group that had better be left alone than waited for: a sweep's. Whoever has its row locked
    is about to move it, and the next sweep sees how.
    """
    for guard in guards:
        match guard:
            case Lapsed(job=job):
                return job
            case InState(job=job, states=states, fence=fence, due=due):
                if set(states) <= _SWEPT or fence >= 0 or due >= 0:
                    return job
    return None
