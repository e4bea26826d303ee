"""Keeping leases, and writing under them while the handler runs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tessera.model.changes import After, Done, EditJob, Edits, Group, Held
from tessera.model.errors import StaleLease
from tessera.model.ids import JobId, show_id
from tessera.model.job import Extras, Job, encode_extras
from tessera.model.queries import Filter, Page
from tessera.model.states import State
from tessera.rules import endings
from tessera.store.protocol import Store


class Renewal(msgspec.Struct, frozen=True, gc=False):
    """A lease to keep, and what its run has to say meanwhile."""

    job: Job
    extras: Extras | None = None


async def renew(store: Store, renewals: Sequence[Renewal], lease_ms: int) -> list[JobId]:
    """Let each lease end ``lease_ms`` from now, in one commit. The keys of those that were lost; the others
    are safe till then.
    """
    groups = [
        Group((Held(r.job.id, r.job.fence),), (EditJob(r.job.id, _edits(r, After(lease_ms))),))
        for r in renewals
    ]
    answers = await store.commit(groups)
    return [r.job.id for r, answer in zip(renewals, answers, strict=True) if not isinstance(answer, Done)]


async def extend(store: Store, job: Job, lease_ms: int) -> None:
    """Let one lease end ``lease_ms`` from now. Raises StaleLease."""
    if await renew(store, [Renewal(job)], lease_ms):
        raise StaleLease(show_id(job.id), job.fence, "it lapsed or has another holder")


async def give_reason(store: Store, job: Job, reason: str) -> bool:
    """Say in the row why a held job is where it is; '' takes it back. False = the lease is lost."""
    [answer] = await store.commit(
        [Group((Held(job.id, job.fence),), (EditJob(job.id, Edits(reason=reason)),))]
    )
    return isinstance(answer, Done)


async def asked_to_stop(store: Store, holder: str) -> list[Job]:
    """Jobs of a holder that somebody wants cancelled."""
    which = Filter(holder=holder, states=(State.RUNNING,), cancel_requested=True)
    return list((await store.find_jobs(which, Page(limit=200))).jobs)


async def held(store: Store, holder: str) -> list[Job]:
    """All jobs a holder has, also those whose claim's reply was lost."""
    jobs: list[Job] = []
    page = Page(limit=200)
    while True:
        found = await store.find_jobs(Filter(holder=holder, states=(State.RUNNING,)), page)
        jobs += found.jobs
        if not found.after:
            return jobs
        page = Page(found.after, 200)


def _edits(renewal: Renewal, lease: After) -> Edits:
    if renewal.extras is None:
        return Edits(lease=lease)
    return Edits(lease=lease, ext=encode_extras(endings.merged_extras(renewal.job, renewal.extras)))
