"""Bringing back many dead jobs, and emptying queues: bounded, in batches, countable beforehand."""

from __future__ import annotations

from typing import Final

import msgspec

from tessera.engine.operating import quarantine_release, retry_change
from tessera.model.changes import Done, DropJob, Group, InState
from tessera.model.queries import PAGE_LIMIT, Filter, Page
from tessera.model.states import State
from tessera.rules import names
from tessera.store.protocol import Store

DEAD_LETTER: Final = (State.DEAD, State.QUARANTINED)
"""What ``tessera dead`` shows: both wait for a person."""
PURGED: Final = (State.PENDING, State.SCHEDULED, State.AVAILABLE, State.BLOCKED, State.QUARANTINED)


class Redriven(msgspec.Struct, frozen=True, gc=False):
    """What a redrive did, or on a dry run would do."""

    matched: int
    redriven: int
    refused: int = 0
    """Left where they are: another job has their unique key by now, or somebody was faster."""


async def redrive(
    store: Store, which: Filter, *, limit: int = 10_000, dry_run: bool = False, by: str = ""
) -> Redriven:
    """Start dead and quarantined jobs of the filter afresh, newest first, at most ``limit``."""
    by = names.validate_words("by", by)
    states = tuple(state for state in which.states or DEAD_LETTER if state in DEAD_LETTER)
    if not states:  # to a store, no states are all states
        return Redriven(0, 0)
    which = msgspec.structs.replace(which, states=states)
    matched = redriven = refused = 0
    page = Page(limit=PAGE_LIMIT)
    while matched < limit:
        found = await store.find_jobs(which, page)
        jobs = found.jobs[: limit - matched]
        matched += len(jobs)
        if jobs and not dry_run:
            groups = [
                Group((InState(job.id, (job.state,)),), (change, *quarantine_release(job)))
                for job in jobs
                if (change := retry_change(job, by)) is not None
            ]
            done = sum(isinstance(answer, Done) for answer in await store.commit(groups))
            redriven += done
            refused += len(jobs) - done
        if not found.after:
            break
        page = Page(found.after, PAGE_LIMIT)
    return Redriven(matched, redriven, refused)


async def purge(
    store: Store, queue: str, states: tuple[State, ...] = PURGED, *, dry_run: bool = False, by: str = ""
) -> int:
    """Remove all jobs of a queue that are in these states; how many. Running jobs are never purged."""
    by = names.validate_words("by", by)
    states = tuple(state for state in states if state is not State.RUNNING)
    if not states:  # to a store, no states are all states
        return 0
    removed = 0
    page = Page(limit=PAGE_LIMIT)
    while True:
        found = await store.find_jobs(Filter(queues=(queue,), states=states), page)
        if dry_run:
            removed += len(found.jobs)
        elif found.jobs:
            groups = [
                Group((InState(job.id, (job.state,)),), (DropJob(job.id, "deleted", by),))
                for job in found.jobs
            ]
            removed += sum(isinstance(answer, Done) for answer in await store.commit(groups))
        if not found.after:
            return removed
        page = Page(found.after, PAGE_LIMIT)
