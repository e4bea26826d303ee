"""Why a job is not running, in words and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, assert_never

import msgspec

from tessera.model.job import Job, Need
from tessera.model.policy import Policy, Rate
from tessera.model.states import State
from tessera.model.worker import WorkerInfo
from tessera.rules import admission
from tessera.rules.payload import fingerprint

Clears: TypeAlias = Literal["by time", "by itself", "by a person", "by a deploy", "never"]


class Cause(msgspec.Struct, frozen=True, gc=False):
    """One reason, the first of an explanation being the one that holds the job now."""

    code: str
    text: str
    clears: Clears
    at: int = 0
    """When it clears at the earliest; 0 = unknown."""


class CounterFact(msgspec.Struct, frozen=True, gc=False):
    """What the store says of one counter."""

    key: str
    used: int
    blocked: int


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What an explanation is made from."""

    job: Job
    now: int
    policy: Policy
    workers: Sequence[WorkerInfo] = ()
    counters: Sequence[CounterFact] = ()
    waits_for: Sequence[tuple[str, str, str]] = ()
    """(job, its state, condition)."""


def explain(facts: Facts) -> list[Cause]:
    """All reasons that hold now. Empty for a job that is running or completed."""
    job = facts.job
    match job.state:
        case State.RUNNING | State.COMPLETED:
            return []
        case State.PENDING | State.WAITING:
            return [*_held(facts), *_edges(facts)]
        case State.SCHEDULED:
            why = f"it waits to be tried again after {job.failures} failure(s) and {job.crashes} crash(es)"
            return [
                Cause(
                    "scheduled",
                    f"{why if job.ends else 'it is due'} in {_span(job.due - facts.now)}",
                    "by time",
                    job.due,
                )
            ]
        case State.AVAILABLE:
            return _available(facts)
        case State.BLOCKED:
            return [*_blocked(facts), *_queue_causes(facts)]
        case State.QUARANTINED:
            text = "its payload crashed workers, so that it is not run again until a person retries it"
            return [Cause("quarantined", text, "by a person")]
        case State.DEAD:
            error = job.ends[-1].error.strip() if job.ends else ""
            last = f"; last error: {error.splitlines()[-1]}" if error else ""
            return [Cause("dead", f"it is in the dead letter: {job.reason}{last}", "by a person")]
        case State.CANCELLED:
            return [Cause("cancelled", f"it was cancelled: {job.reason or 'no reason given'}", "by a person")]
    assert_never(job.state)


def _held(facts: Facts) -> list[Cause]:
    if not facts.job.held:
        return []
    return [Cause("held", "it was enqueued as pending and waits to be promoted", "by a person")]


def _edges(facts: Facts) -> list[Cause]:
    causes = []
    for name, state, condition in facts.waits_for:
        what = "to complete" if condition == "completed" else "to end"
        stuck = state in (State.DEAD, State.CANCELLED, State.QUARANTINED)
        causes.append(
            Cause(
                "waits_for",
                f"it waits for job {name} {what}, which is {state}",
                "by a person" if stuck else "by itself",
            )
        )
    return causes


def _available(facts: Facts) -> list[Cause]:
    causes = _queue_causes(facts)
    if (
        facts.policy.quarantined
        and fingerprint(facts.job.kind, facts.job.payload) in facts.policy.quarantined
    ):
        causes.insert(
            0,
            Cause(
                "fingerprint_quarantined",
                "its payload is quarantined; the next claim sets it apart",
                "by a person",
            ),
        )
    causes += _full_counters(facts)
    return causes or [Cause("its_turn", "nothing holds it: it waits for a free worker slot", "by itself")]


def _queue_causes(facts: Facts) -> list[Cause]:
    """What holds any job of this queue and kind: a pause, or nobody there to run it."""
    job = facts.job
    if facts.policy.queue(job.queue).paused:
        return [Cause("queue_paused", f"the queue {job.queue!r} is paused", "by a person")]
    serving = [worker for worker in facts.workers if job.queue in worker.queues]
    if not serving:
        return [Cause("no_worker", f"no live worker serves the queue {job.queue!r}", "by a deploy")]
    if not any(job.kind in worker.kinds for worker in serving):
        text = f"no live worker of the queue {job.queue!r} knows the kind {job.kind!r}"
        return [Cause("kind_not_served", text, "by a deploy")]
    if all(worker.state != "running" for worker in serving):
        states = ", ".join(sorted({worker.state for worker in serving}))
        return [
            Cause("workers_not_taking", f"the workers of the queue {job.queue!r} are {states}", "by a deploy")
        ]
    return []


def _blocked(facts: Facts) -> list[Cause]:
    job = facts.job
    if job.blocked_on.startswith("kind:"):
        is_served = not _queue_causes(facts)
        return [Cause("kind_woken", "a worker for its kind has just come", "by itself")] if is_served else []
    need = next((need for need in job.needs if need.key == job.blocked_on), Need(job.blocked_on))
    return [_counter_cause(facts, need)]


def _full_counters(facts: Facts) -> list[Cause]:
    """The counters that would set the job aside if it were claimed now."""
    return [
        _counter_cause(facts, need)
        for need in facts.job.needs
        if (policy := facts.policy.counter(need.key)) is not None
        and _fact(facts, need).used + need.units > admission.most_units(policy)
    ]


def _fact(facts: Facts, need: Need) -> CounterFact:
    return next((fact for fact in facts.counters if fact.key == need.key), CounterFact(need.key, 0, 0))


def _counter_cause(facts: Facts, need: Need) -> Cause:
    """What a counter has against the job."""
    key, fact, policy = need.key, _fact(facts, need), facts.policy.counter(need.key)
    if admission.impossible(policy, need):
        text = f"it needs {need.units} units of {key!r}, more than that counter ever has"
        return Cause("never_fits", text, "never")
    if policy is None or fact.used + need.units <= admission.most_units(policy):
        text = f"the counter {key!r} is closed for a while, or its room is promised to jobs before it"
        return Cause("counter_closed", text, "by time")
    if isinstance(policy, Rate):
        rate = f"the rate {key!r} ({policy.limit} in {_span(policy.per_ms)})"
        text = f"{rate} is used up; {fact.blocked} jobs wait"
        return Cause("rate_used", text, "by time" if policy.limit else "by a person")
    if policy.limit == 0:
        return Cause("ceiling_closed", f"the ceiling {key!r} is 0: it lets nothing start", "by a person")
    text = f"{fact.used} of {policy.limit} units of {key!r} run; {fact.blocked} jobs wait for one"
    return Cause("ceiling_full", text, "by itself")


def _span(ms: int) -> str:
    """A span for people."""
    seconds = max(0, ms) / 1_000
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} s"
