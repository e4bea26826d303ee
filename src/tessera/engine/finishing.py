"""Ending attempts: many at once, each fenced for itself."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tessera import seam
from tessera.model.changes import Done, Held, Refused
from tessera.model.errors import Conflict, StaleLease, TesseraError
from tessera.model.ids import show_id
from tessera.model.job import Extras, Job, terms_of
from tessera.model.outcomes import Crashed, Failed, Outcome
from tessera.rules import endings
from tessera.store.protocol import Store


class Finish(msgspec.Struct, frozen=True, gc=False):
    """One attempt that ended: the job as claimed, how it ended, and what the run leaves behind."""

    job: Job
    outcome: Outcome
    extras: Extras | None = None


async def finish(store: Store, finishes: Sequence[Finish]) -> list[TesseraError | None]:
    """Write the ends of several attempts in one commit. One answer each: None, or why nothing of it was
    written.

    A stale lease is ``StaleLease`` for that attempt and no trouble for its neighbours; ``Conflict`` is a
    split whose child has an id or a unique key that is taken. Safe to repeat after OutcomeUnknown: a lease
    that already ended this way is answered None.
    """
    now = await _store_time(store, finishes)
    groups = [
        endings.ending(f.job, f.outcome, random=seam.random(), now=now, extras=_merged(f.job, f.extras))
        for f in finishes
    ]
    answers = await store.commit(groups)
    return [
        None if isinstance(answer, Done) else _why(finished.job, answer)
        for finished, answer in zip(finishes, answers, strict=True)
    ]


async def _store_time(store: Store, finishes: Sequence[Finish]) -> int:
    """The store's time where an age decides, else 0: a worker's own clock decides nothing (INV-29)."""
    is_asked = any(
        isinstance(f.outcome, Crashed) or (isinstance(f.outcome, Failed) and terms_of(f.job).retry_for_ms)
        for f in finishes
    )
    return (await store.due(1, ())).now if is_asked else 0


def _merged(job: Job, extras: Extras | None) -> Extras | None:
    return None if extras is None else endings.merged_extras(job, extras)


def _why(job: Job, refused: Refused) -> TesseraError:
    if not isinstance(
        refused.guard, Held
    ):  # the lease is live; a child of a split contradicts what is stored
        return Conflict(f"the end of job {show_id(job.id)} cannot be written: {refused.why}")
    return StaleLease(show_id(job.id), job.fence, refused.why)
