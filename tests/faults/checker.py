"""What must hold of every history, as functions from events and rows to sentences; no sentence, no fault.

The rows carry the store's own account of a job: its last ten ends with the instants of the store's clock.
The histories carry what the processes saw. Where a process was killed between a write and its line the
account has more than the history, and that is all it may have more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from tessera.model.job import End, Job
from tessera.model.states import State
from tests.faults.history import Event

Rows = Mapping[str, Job]
"""By printed key."""

LAPSED = "the lease lapsed"
_NS = 1_000_000_000


def problems(events: Sequence[Event], rows: Rows, planned: Mapping[str, State] | None = None) -> list[str]:
    """Everything below that holds whatever was done to the processes."""
    return [
        *lost(events, rows, planned or {}),
        *ran_after_completion(events, rows),
        *bad_fences(events, rows),
        *overlapping_leases(events, rows),
        *miscounted(events, rows),
        *wrong_results(rows),
    ]


# INV-1, INV-2 -----------------------------------------------------------------------------------------------


def lost(events: Iterable[Event], rows: Rows, planned: Mapping[str, State]) -> Iterator[str]:
    """Every acknowledged job is there and has come to its end: completed, or by kind as planned."""
    for event in events:
        if event.what != "acked":
            continue
        row = rows.get(event.job)
        if row is None:
            yield f"{event.job} was acknowledged and is gone"
        elif row.state is not planned.get(row.kind, State.COMPLETED):
            why = row.reason or "no reason"
            yield f"{event.job} ({row.kind}) was acknowledged and is {row.state} ({why})"


def ran_after_completion(events: Iterable[Event], rows: Rows) -> Iterator[str]:
    """Nobody begins a run after its completion was acknowledged, and no fence is later than the one that
    completed.

    A process that was stopped between the look at its lease and the first line of the handler begins late,
    under a fence from before: nothing can prevent that; it is stopped at once and all it writes is refused.
    """
    completed: dict[str, Event] = {}
    for event in events:
        if event.what == "finished" and event.how == "completed":
            if event.job in completed and completed[event.job].fence != event.fence:
                yield f"{event.job} was completed twice, under {completed[event.job].fence} and {event.fence}"
            completed.setdefault(event.job, event)
        elif event.what == "started" and event.job in completed and event.fence >= completed[event.job].fence:
            yield f"{event.job} ran under {event.fence} after its completion was acknowledged"
        elif (
            event.what in ("started", "claimed")
            and _is_completed(rows, event)
            and event.fence > rows[event.job].last_fence
        ):
            last = rows[event.job].last_fence
            yield f"{event.job} was {event.what} under {event.fence}, after {last} completed it"


def _is_completed(rows: Rows, event: Event) -> bool:
    return event.job in rows and rows[event.job].state is State.COMPLETED


# INV-5, INV-6 -----------------------------------------------------------------------------------------------


def bad_fences(events: Iterable[Event], rows: Rows) -> Iterator[str]:
    """Fences are handed out once and grow with the store's time; a run has the fence of a claim by its own
    holder."""
    claims: dict[str, dict[int, Event]] = defaultdict(dict)
    for event in events:
        if event.what == "claimed":
            other = claims[event.job].setdefault(event.fence, event)
            if other is not event:
                both = f"{other.holder} and {event.holder}"
                yield f"{event.job} was claimed twice under {event.fence}, by {both}"
    for job, by_fence in claims.items():
        ordered = [by_fence[fence] for fence in sorted(by_fence)]
        for before, after in pairwise(ordered):
            if after.claimed_at < before.claimed_at:
                yield f"{job} got {after.fence} at {after.claimed_at}, before the lower {before.fence}"
        if job in rows and ordered[-1].fence > rows[job].fence:
            yield f"{job} was claimed under {ordered[-1].fence} and its row has {rows[job].fence}"
    runs: set[tuple[str, int]] = set()
    for event in events:
        if event.what == "started":
            if event.fence not in claims[event.job]:
                yield f"{event.job} ran under {event.fence}, which nobody claimed"
            if (event.job, event.fence) in runs:
                yield f"{event.job} ran twice under {event.fence}"
            runs.add((event.job, event.fence))


def overlapping_leases(events: Sequence[Event], rows: Rows) -> Iterator[str]:
    """At most one lease lives at any instant of the store: by the ends in the row, and by what holders
    were promised."""
    for job, row in rows.items():
        for end, next_end in pairwise(row.ends):
            if next_end.started_at < end.ended_at:
                yield f"{job}: attempt {next_end.attempt} was leased before attempt {end.attempt} ended"
    until: dict[tuple[str, int], int] = {}
    ended: set[tuple[str, int]] = set()
    claims: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        lease = (event.job, event.fence)
        if event.what in ("claimed", "renewed"):
            until[lease] = max(until.get(lease, 0), event.until)
        if event.what == "claimed":
            claims[event.job].append(event)
        if event.what == "finished":
            ended.add(lease)
    for job, many in claims.items():
        many.sort(key=lambda claim: claim.fence)
        own_ends = {end.attempt for end in rows[job].ends if end.error != LAPSED} if job in rows else set()
        for before, after in pairwise(many):
            gave_up = (
                (job, before.fence) in ended or before.attempt in own_ends or after.attempt == before.attempt
            )
            if not gave_up and after.claimed_at < until[job, before.fence]:
                early = until[job, before.fence] - after.claimed_at
                yield f"{job}: {before.fence} was taken back {early} ms before its lease was over"


# INV-7, INV-11 ----------------------------------------------------------------------------------------------


def miscounted(events: Sequence[Event], rows: Rows) -> Iterator[str]:
    """Attempts, failures and crashes of the rows are those of the histories.

    A kill is a crash, an error a failure, a give-back nothing. Every end that a holder was told of stands
    in the row, and every lapse that the row counts as a crash is that of a holder who was killed or
    paused.
    """
    culprits = _culprits(events)
    claims = {(e.job, e.fence): e for e in events if e.what == "claimed"}
    runs: dict[str, dict[int, Event]] = defaultdict(dict)
    told: dict[tuple[str, int], Event] = {}
    for event in events:
        if event.what == "started":
            if event.attempt in runs[event.job]:
                yield f"{event.job} ran attempt {event.attempt} twice"
            runs[event.job][event.attempt] = event
        elif event.what == "finished" and (event.job, event.fence) in claims:
            told[event.job, event.fence] = event
    for job, row in rows.items():
        if row.is_final or row.state is State.QUARANTINED:
            yield from _row_miscounted(job, row, runs.get(job, {}), culprits)
    for (job, fence), event in told.items():
        if event.how != "given_back" and job in rows:
            claim = claims[job, fence]
            kept = [end for end in rows[job].ends if end.attempt == claim.attempt]
            if _remembers(rows[job], claim.attempt) and [(end.end, end.holder) for end in kept] != [
                (event.how, claim.holder)
            ]:
                said = [end.end for end in kept]
                yield f"{job}: {event.how} of attempt {claim.attempt} was acknowledged, the row says {said}"


def _row_miscounted(job: str, row: Job, runs: Mapping[int, Event], culprits: set[str]) -> Iterator[str]:
    numbers = [end.attempt for end in row.ends]
    first = max(1, row.attempt - 9)
    if numbers != list(range(first, row.attempt + 1)):
        yield f"{job} counts {row.attempt} attempts, its ends are {numbers}"
    for attempt in runs:
        if attempt > row.attempt:
            yield f"{job} ran attempt {attempt} and counts {row.attempt}"
    if first == 1:
        for what, counted, names in (
            ("failures", row.failures, ("failed", "timed_out")),
            ("crashes", row.crashes, ("crashed",)),
        ):
            found = sum(end.end in names for end in row.ends)
            if counted != found:
                yield f"{job} counts {counted} {what}, its ends say {found}"
    for end in row.ends:
        if end.end in ("completed", "failed") and end.attempt not in runs:
            yield f"{job}: attempt {end.attempt} {end.end}, and nobody ran it"
        if end.end == "crashed" and end.error == LAPSED and end.holder not in culprits:
            yield f"{job}: attempt {end.attempt} is charged as a crash to {end.holder}, which lived on"


def _culprits(events: Iterable[Event]) -> set[str]:
    """Holders that were killed or paused, or whose process died by what it ran."""
    struck = {event.pid for event in events if event.what in ("killed", "paused", "died")}
    return {event.holder for event in events if event.what == "lives" and event.pid in struck}


def _remembers(row: Job, attempt: int) -> bool:
    return row.attempt - attempt < 10


def wrong_results(rows: Rows) -> Iterator[str]:
    """The stored result is that of the run whose end was accepted: handlers of these tests return their
    fence."""
    for job, row in rows.items():
        if (
            row.state is State.COMPLETED
            and row.result is not None
            and row.result != str(row.last_fence).encode()
        ):
            yield f"{job} was completed under {row.last_fence} and holds the result of {row.result!r}"


# What holds only where nobody is struck ---------------------------------------------------------------------


def burnt(rows: Rows) -> Iterator[str]:
    """Attempts that were charged for nothing: a job that completed has run once, and once more for each
    failure."""
    for job, row in rows.items():
        if row.attempt != 1 + row.failures or row.crashes:
            ends = f"{row.failures} failures and {row.crashes} crashes"
            yield f"{job} counts {row.attempt} attempts with {ends}"


def overlapping_runs(events: Iterable[Event], most: int = 1, *, by: str = "job") -> Iterator[str]:
    """More runs of one job, or one key, at once than there may be. A run of a killed process ends with it."""
    changes = _changes(events, by)
    running: dict[str, int] = defaultdict(int)
    for at, change, key in sorted(changes):
        running[key] += change
        if change > 0 and running[key] > most:
            yield f"{running[key]} runs of {key} at once at {at / _NS:.3f}"


def _changes(events: Iterable[Event], by: str) -> list[tuple[int, int, str]]:
    ends: list[tuple[int, int, str]] = []
    open_runs: dict[tuple[str, int], tuple[int, str]] = {}
    for event in events:
        run = (event.job, event.fence)
        if event.what == "started" and getattr(event, by):
            open_runs[run] = (event.pid, getattr(event, by))
            ends.append((event.at, +1, getattr(event, by)))
        elif event.what in ("returned", "raised", "stopped") and run in open_runs:
            ends.append((event.at, -1, open_runs.pop(run)[1]))
        elif event.what in ("killed", "died"):
            over = [run for run, (pid, _) in open_runs.items() if pid == event.pid]
            ends += [(event.at, -1, open_runs.pop(run)[1]) for run in over]
    return ends


def leases_above(rows: Iterable[tuple[str, Sequence[End]]], most: int) -> Iterator[str]:
    """More leases of one key at once, by the store's own instants, than its ceiling."""
    changes = [
        change
        for key, ends in rows
        for end in ends
        for change in ((end.ended_at, 0, key), (end.started_at, 1, key))
        if end.ended_at > end.started_at
    ]
    held: dict[str, int] = defaultdict(int)
    for at, begins, key in sorted(changes):
        held[key] += 1 if begins else -1
        if held[key] > most:
            yield f"{held[key]} leases of {key} at once at {at}"


def crowded_windows(instants: Iterable[int], limit: int, window_ms: int) -> Iterator[str]:
    """Windows, wherever they begin, with more starts than a rate allows."""
    ordered = sorted(instants)
    for place, at in enumerate(ordered):
        inside = bisect_left(ordered, at + window_ms) - place
        if inside > limit:
            yield f"{inside} starts within {window_ms} ms from {at}"


# Measures ---------------------------------------------------------------------------------------------------


def recoveries(events: Sequence[Event]) -> list[float]:
    """For every run that a kill cut short: seconds until the job ran again. ``inf``: it never did.

    Where the next holder was killed too before it began with the job, the wait ends at that claim: a
    second kill is another wait.
    """
    killed = {event.pid: event.at for event in events if event.what == "killed"}
    holders = {event.holder: event.pid for event in events if event.what == "lives"}
    ended = {(e.job, e.fence): e.at for e in events if e.what in ("returned", "raised", "stopped")}
    leases: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    runs: dict[tuple[str, int], Event] = {}
    for event in events:
        if event.what == "claimed":
            leases[event.job][event.fence] = event.at, killed.get(holders.get(event.holder, 0), 0)
        elif event.what == "started":
            runs[event.job, event.fence] = event
    found = []
    for (job, fence), run in runs.items():
        at = leases[job].get(fence, (0, 0))[1]
        if not at or run.at > at or ended.get((job, fence), at) < at:
            continue
        later = min((other for other in leases[job] if other > fence), default=0)
        claimed_at, killed_at = leases[job].get(later, (0, 0))
        again = runs[job, later].at if (job, later) in runs else claimed_at if killed_at else float("inf")
        found.append((again - at) / _NS)
    return found


def busiest_window(instants: Iterable[int], window_ms: int) -> int:
    """The most starts within any window."""
    ordered = sorted(instants)
    return max((bisect_left(ordered, at + window_ms) - place for place, at in enumerate(ordered)), default=0)


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that so large a part of them does not exceed; nan of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")
