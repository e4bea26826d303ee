"""The short way of the commonest group there is: a held job completes, owns nothing and is waited for by
nobody.

The general way (``evaluator``, ``transitions``) takes some twenty calls for what is one copy of the row
then. Half of all groups are of this kind, and were half of a drain's time in Python. A test holds the two
ways against each other.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET
from msgspec.structs import astuple, replace

from tessera.model.changes import Change, Edits, Guard, Held, MoveJob
from tessera.model.job import NEVER, Job
from tessera.model.states import EventLevel, State
from tessera.rules import lifecycle
from tessera.store.transitions import KEPT_ENDS
from tessera.store.working import Working

_EDITS: Final = len(Edits.__struct_fields__)


def complete_plainly(work: Working, guard: Guard, change: Change) -> bool:
    """Apply the group of this guard and this change, if it is of the kind. False = nothing was done."""
    if type(guard) is not Held or type(change) is not MoveJob or change.to is not State.COMPLETED:
        return False
    job = work.jobs.get(change.job)
    if (
        job is None
        or guard.job != job.id
        or guard.fence != job.fence
        or job.state is not State.RUNNING
        or work.now >= job.lease_until
        or not _is_plain(job, change)
    ):
        return False
    work.jobs.put(job.id, None)
    work.archive.put(job.id, _completed(job, change, work.now))
    work.count(job.queue, State.RUNNING, -1)
    work.count(job.queue, State.COMPLETED, +1)
    return True


def _is_plain(job: Job, change: MoveJob) -> bool:
    end, edits = change.end, change.edits
    return not (
        end is None
        or job.holds
        or job.slots
        or job.heirs
        or job.open
        or job.events is EventLevel.FULL
        or not job.keep.completed
        or change.refund
        or end.end in lifecycle.ODD_ENDS
        or astuple(edits).count(UNSET) + (edits.result is not UNSET) + (edits.ext is not UNSET) != _EDITS
    )


def _completed(job: Job, change: MoveJob, now: int) -> Job:
    end, edits, kept_for = change.end, change.edits, job.keep.completed
    assert end is not None
    return replace(
        job,
        state=State.COMPLETED,
        reason=change.reason,
        blocked_on="",
        holder="",
        lease_until=0,
        cap_at=0,
        claimed_at=0,
        cancel_requested=False,
        last_fence=job.fence,
        last_end=end.end,
        fence=job.fence + 1,
        ends=(*job.ends[1 - KEPT_ENDS :], replace(end, ended_at=now)),
        finished_at=now,
        gone_at=NEVER if kept_for < 0 else now + kept_for,
        result=job.result if edits.result is UNSET else edits.result,
        ext=job.ext if edits.ext is UNSET else edits.ext,
    )
