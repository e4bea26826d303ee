"""Re-deriving what is kept beside the rows from the rows: counts, counters, slots, edges. A difference is a
fault of Tessera.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping

from tessera.model.changes import Counter, Edge, Slot
from tessera.model.ids import JobId, show_id
from tessera.model.job import Job
from tessera.model.states import State


def differences(
    *,
    jobs: Iterable[Job],
    archive: Iterable[Job],
    counts: Mapping[tuple[str, State], int],
    counters: Iterable[Counter],
    slots: Iterable[Slot],
    edges: Iterable[Edge],
) -> list[str]:
    """Each difference in a sentence; nothing is changed."""
    hot = {job.id: job for job in jobs}
    ended = {job.id: job for job in archive}
    every = [*hot.values(), *ended.values()]
    return [
        *_counts(every, counts),
        *_counters(hot.values(), {counter.key: counter for counter in counters}),
        *_slots(hot, ended, {slot.key: slot for slot in slots}),
        *_edges(hot, list(edges)),
        *(f"job {show_id(key)} is both live and archived" for key in hot.keys() & ended.keys()),
    ]


def tag_differences(jobs: Iterable[Job], found: Iterable[tuple[str, JobId]]) -> Iterable[str]:
    """The same for the rows by which tagged jobs are found."""
    expected = {(tag, job.id) for job in jobs for tag in job.tags}
    there = set(found)
    for tag, job in sorted(expected ^ there):
        problem = "not indexed" if (tag, job) in expected else "indexed and not in its row"
        yield f"the tag {tag!r} of job {show_id(job)} is {problem}"


def _counts(jobs: Iterable[Job], counts: Mapping[tuple[str, State], int]) -> Iterable[str]:
    found = Tally((job.queue, job.state) for job in jobs)
    for queue, state in sorted({*found, *counts}):
        kept, rows = counts.get((queue, state), 0), found[queue, state]
        if kept != rows:
            yield f"count {queue}/{state} says {kept}, the rows say {rows}"


def _counters(jobs: Iterable[Job], counters: Mapping[str, Counter]) -> Iterable[str]:
    used: Tally[str] = Tally()
    blocked: Tally[str] = Tally()
    awake: Tally[str] = Tally()
    for job in jobs:
        for need in job.holds:
            used[need.key] += need.units
        if job.state is State.BLOCKED:
            blocked[job.blocked_on] += 1
        elif job.state is State.AVAILABLE and job.blocked_on:
            awake[job.blocked_on] += sum(need.units for need in job.needs if need.key == job.blocked_on)
    for key in sorted({*used, *blocked, *awake, *counters}):
        counter = counters.get(key, Counter(key=key))
        for what, kept, rows in (
            ("used", counter.used, used[key]),
            ("set aside", counter.blocked, blocked[key]),
            ("promised", counter.awake, awake[key]),
        ):
            # A rule's own counter (``~``) counts what no row says.
            if kept != rows and not (what == "used" and key.startswith("~")):
                yield f"counter {key} says {kept} {what}, the rows say {rows}"


def _slots(hot: Mapping[JobId, Job], ended: Mapping[JobId, Job], slots: Mapping[str, Slot]) -> Iterable[str]:
    for slot in slots.values():
        if not slot.expires_at and slot.owner not in hot and slot.owner not in ended:
            yield f"slot {slot.key} is owned by a job that is gone"
    for job in hot.values():
        for key in job.slots:
            if key not in slots or slots[key].owner != job.id:
                yield f"slot {key} is not owned by its job {show_id(job.id)}"


def _edges(hot: Mapping[JobId, Job], edges: list[Edge]) -> Iterable[str]:
    waits = Tally(edge.child for edge in edges)
    for child in waits.keys() - hot.keys():
        yield f"an edge leads to job {show_id(child)}, which is not live"
    for job in hot.values():
        if job.open != waits[job.id]:
            yield f"job {show_id(job.id)} says it waits for {job.open} jobs, the edges say {waits[job.id]}"
