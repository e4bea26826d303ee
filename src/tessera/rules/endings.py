"""What follows from the end of an attempt: one guarded group of changes for every outcome, and for a lapsed
lease.
"""

from __future__ import annotations

from typing import Final, assert_never

from msgspec.structs import replace

from tessera.model.changes import (
    After,
    Change,
    Count,
    DropJob,
    Edge,
    Edits,
    Group,
    Held,
    Lapsed,
    Link,
    MoveJob,
    PutRecord,
)
from tessera.model.job import End, Extras, Job, Terms, encode_extras, extras_of, terms_of
from tessera.model.outcomes import (
    Aborted,
    Cancelled,
    Completed,
    Crashed,
    Discarded,
    Expired,
    Failed,
    GivenBack,
    LimitMet,
    Outcome,
    Released,
    Snoozed,
    Split,
    Undecodable,
)
from tessera.model.policy import POLICY_SPACE
from tessera.model.states import State
from tessera.rules import backoff
from tessera.rules.payload import fingerprint

CRASH_WINDOW_MS: Final = 86_400_000
"""Crashes older than a day say nothing about a payload: three lost machines in a month condemn nobody."""
ERROR_LIMIT: Final = 4_000
"""Characters of an error that the row keeps: its beginning and its end."""
WAITS_ALONE: Final = "waits to run alone"
"""The reason in the row of a suspected job that a worker holds and has not begun."""
QUARANTINE_PREFIX: Final = "quarantine/"
ON_CHILD_DEAD: Final = {"continue": "go", "fail": "dead", "wait": "hold"}


def ending(job: Job, outcome: Outcome, *, random: float, now: int, extras: Extras | None = None) -> Group:
    """The group that ends the attempt of a held job. ``now`` is the store's time, needed where an age
    decides.
    """
    name, changes = _changes(job, outcome, random, now, extras)
    return Group((Held(job.id, job.fence, name),), changes)


def end_name(outcome: Outcome) -> str:
    """What the end of the attempt is called in the row and in the log."""
    match outcome:
        case Completed():
            return "completed"
        case Failed(timed_out=timed_out):
            return "timed_out" if timed_out else "failed"
        case Crashed():
            return "crashed"
        case Snoozed():
            return "snoozed"
        case Released():
            return "released"
        case GivenBack():
            return "given_back"
        case Aborted():
            return "aborted"
        case Discarded():
            return "discarded"
        case Cancelled():
            return "cancelled"
        case LimitMet():
            return "rate_limited"
        case Undecodable():
            return "undecodable"
        case Expired():
            return "expired"
        case Split():
            return "split"
    assert_never(outcome)


def _changes(
    job: Job, outcome: Outcome, random: float, now: int, extras: Extras | None
) -> tuple[str, tuple[Change, ...]]:
    name = end_name(outcome)
    terms = terms_of(job)
    ext = Edits() if extras is None else Edits(ext=encode_extras(extras))

    def move(to: State, edits: Edits = ext, error: str = "", reason: str = "", delay_ms: int = 0) -> MoveJob:
        end = End(job.attempt, name, job.claimed_at, 0, job.holder, shorten(error))
        return MoveJob(job.id, to, After(delay_ms), edits, end, reason, by=job.holder)

    match outcome:
        case Completed(result=result):
            return name, (move(State.COMPLETED, _with(ext, result=result)),)
        case Failed(error=error, retry_after_ms=retry_after_ms):
            failures = job.failures + 1
            edits = _with(ext, failures=failures, expires_at=job.deadline)
            reason = _why_dead(job, terms, failures, now)
            if reason:
                return name, (move(State.DEAD, edits, error, reason),)
            delay = backoff.delay_ms(terms, failures, random) if retry_after_ms is None else retry_after_ms
            return name, (move(State.AVAILABLE, edits, error, delay_ms=delay),)
        case Crashed(error=error):
            end = End(job.attempt, name, job.claimed_at, 0, job.holder, shorten(error))
            return name, _crash(job, end, ext, random=random, now=now, by=job.holder)
        case Snoozed(delay_ms=delay_ms):
            edits = _with(ext, snoozes=job.snoozes + 1, expires_at=job.deadline)
            if job.snoozes + 1 >= terms.max_snoozes or _claims_used(job, terms):
                return name, (move(State.DEAD, edits, reason="claims_exhausted"),)
            return name, (move(State.AVAILABLE, edits, delay_ms=delay_ms),)
        case Released(delay_ms=delay_ms, reason=reason):
            edits = _with(ext, expires_at=job.deadline)
            if _claims_used(job, terms):
                return name, (move(State.DEAD, edits, reason="claims_exhausted"),)
            return name, (move(State.AVAILABLE, edits, error=reason, delay_ms=delay_ms),)
        case GivenBack():
            return name, (
                MoveJob(
                    job.id, State.AVAILABLE, edits=Edits(attempt=job.attempt - 1), refund=True, by=job.holder
                ),
            )
        case Aborted(reason=reason):
            return name, (
                move(State.DEAD, error=reason, reason=f"aborted: {reason}" if reason else "aborted"),
            )
        case Discarded():
            return name, (DropJob(job.id, "discarded", job.holder),)
        case Cancelled(reason=reason):
            return name, (move(State.CANCELLED, error=reason, reason=reason or "cancelled"),)
        case LimitMet(counter=counter, delay_ms=delay_ms):
            close = (Count(counter, close=After(delay_ms)),) if counter else ()
            return name, (
                *close,
                move(State.AVAILABLE, _with(ext, expires_at=job.deadline), delay_ms=delay_ms),
            )
        case Undecodable(problem=problem):
            return name, (move(State.DEAD, error=problem, reason="undecodable"),)
        case Expired():
            return name, (move(State.DEAD, reason="expired"),)
        case Split(children=children, on_child_dead=on_child_dead, note=note):
            otherwise = ON_CHILD_DEAD[on_child_dead]
            kept = extras or extras_of(job)
            if note != kept.join_note:
                ext = Edits(ext=encode_extras(replace(kept, join_note=note)))
            links = tuple(Link(Edge(child.job.id, job.id, "completed", otherwise)) for child in children)
            waits = _with(ext, expires_at=job.deadline)
            # Nothing to wait for is a join at once: nobody would ever wake the job.
            return name, (*children, move(State.WAITING if children else State.AVAILABLE, waits), *links)
    assert_never(outcome)


def lapse(job: Job, *, random: float, now: int, charged: bool) -> Group:
    """The group that takes a job back from a holder whose lease is over.

    ``charged=False``: the store was away for so long that no holder could have renewed, so nobody is to
    blame.
    """
    guard = Lapsed(job.id, job.fence)
    end = End(
        job.attempt, "crashed" if charged else "released", job.claimed_at, 0, job.holder, "the lease lapsed"
    )
    if job.cancel_requested:
        return Group((guard,), (MoveJob(job.id, State.CANCELLED, end=end, reason="cancelled", by="sweep"),))
    if not charged:
        return Group(
            (guard,),
            (MoveJob(job.id, State.AVAILABLE, edits=Edits(expires_at=job.deadline), end=end, by="sweep"),),
        )
    return Group((guard,), _crash(job, end, Edits(), random=random, now=now, by="sweep"))


def _crash(job: Job, end: End, edits: Edits, *, random: float, now: int, by: str) -> tuple[Change, ...]:
    """What a crash leads to, whoever saw it: another run after a while, quarantine, or the dead letter."""
    terms = terms_of(job)
    crashes = job.crashes + 1
    edits = _with(edits, crashes=crashes, expires_at=job.deadline)
    if not is_condemned(job, now):
        delay = After(backoff.crash_delay_ms(terms, crashes, random))
        return (MoveJob(job.id, State.AVAILABLE, delay, edits, end, by=by),)
    if terms.on_crashes == "dead":
        return (MoveJob(job.id, State.DEAD, edits=edits, end=end, reason="crashes_used", by=by),)
    key = QUARANTINE_PREFIX + fingerprint(job.kind, job.payload).hex()
    return (
        MoveJob(job.id, State.QUARANTINED, edits=edits, end=end, reason="crashes_used", by=by),
        PutRecord(POLICY_SPACE, key, job.id.hex().encode()),
    )


def runs_alone(job: Job) -> bool:
    """Whether the next run must be the only one of its process, so that a crash is nobody else's: the last
    chance before quarantine.
    """
    return job.max_crashes > 0 and job.crashes >= job.max_crashes - 1


def is_condemned(job: Job, now: int) -> bool:
    """Whether a crash of this running job is one too many: the limit reached, all within a day, the last one
    in a run of its own.

    The run was alone because the worker runs it so (``runs_alone``). Until it does, the row says that the job
    waits: what takes the worker down meanwhile is something else.
    """
    if job.reason == WAITS_ALONE or not 0 < job.max_crashes <= job.crashes + 1:
        return False
    recent = sum(1 for end in job.ends if end.end == "crashed" and end.ended_at > now - CRASH_WINDOW_MS)
    # The row keeps ten ends: with a higher limit those seen must suffice.
    return recent + 1 >= min(job.max_crashes, 10)


def shorten(error: str) -> str:
    """An error cut in its middle, NUL taken out: beginnings and ends say most."""
    error = error.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if len(error) <= ERROR_LIMIT:
        return error
    half = ERROR_LIMIT // 2 - 10
    return f"{error[:half]}\n[... cut ...]\n{error[-half:]}"


def _why_dead(job: Job, terms: Terms, failures: int, now: int) -> str:
    if failures >= job.max_attempts:
        return "attempts_used"
    if terms.retry_for_ms and now >= job.created_at + terms.retry_for_ms:
        return "retry_time_used"
    return ""


def _claims_used(job: Job, terms: Terms) -> bool:
    return 0 < terms.max_claims <= job.attempt


def _with(edits: Edits, **fields: object) -> Edits:
    return replace(edits, **fields)


def merged_extras(job: Job, changes: Extras) -> Extras:
    """What a run adds to the extras that the row had."""
    old = extras_of(job)
    return replace(
        old,
        progress=changes.progress or old.progress,
        output=changes.output or old.output,
        log=(*old.log, *changes.log)[-200:],
    )
