"""Claims whose reply was lost: the store leased jobs to us and we were not told which."""

from __future__ import annotations

from tessera.engine.extending import held
from tessera.model.job import Job
from tessera.store.protocol import Store
from tessera.worker.leases import Leases


async def unknown_jobs(store: Store, holder: str, leases: Leases, told_at: int) -> list[Job]:
    """Jobs that the store says are ours and that we do not know. To be called by whoever claims, between two
    claims.

    What we know is noted *before* the store is read: a job that ends while we read is still in what was read,
    and must not look unknown. Nor must one of an earlier claim whose end could not be written before its
    lease was over, as in a long outage: it has run. ``told_at``: the store's time, in milliseconds, of the
    last claim whose reply came. Raises StoreError, OutcomeUnknown.
    """
    known = leases.ids()
    return [job for job in await held(store, holder) if job.id not in known and job.claimed_at > told_at]
