"""Reasons in words, from facts. How the facts are gathered is shown with the engine."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.model.ids import JobId
from tessera.model.job import End, Job, Need
from tessera.model.policy import Ceiling, CounterPolicy, Policy, QueuePolicy, Rate
from tessera.model.states import State
from tessera.model.worker import WorkerInfo
from tessera.rules.explaining import CounterFact, Facts, explain

S = State
SILENT = Policy()
NOW = 1_800_000_000_000
WORKER = WorkerInfo("w", queues=("q",), kinds=("work",))


def facts(
    state: State, workers: tuple[WorkerInfo, ...] = (WORKER,), policy: Policy = SILENT, **more: Any
) -> Facts:
    told = {name: more.pop(name) for name in ("counters", "waits_for") if name in more}
    job = Job(**{"id": JobId(b"k" * 16), "kind": "work", "queue": "q", "state": state} | more)
    return Facts(job=job, now=NOW, policy=policy, workers=workers, **told)


def told(state: State, **more: Any) -> list[tuple[str, str]]:
    return [(cause.code, cause.text) for cause in explain(facts(state, **more))]


@pytest.mark.parametrize("state", list(S))
def test_every_state_has_an_answer(state: State):
    causes = explain(facts(state, workers=(), blocked_on="api", needs=(Need("api"),), held=True))
    assert bool(causes) is (state not in (S.RUNNING, S.COMPLETED))


@pytest.mark.parametrize(
    "ms, words",
    [
        (-1, "0.0 s"),
        (0, "0.0 s"),
        (1_500, "1.5 s"),
        (59_999, "60.0 s"),
        (60_000, "1.0 min"),
        (5_400_000, "1.5 h"),
        (129_600_000, "1.5 d"),
    ],
)
def test_a_span_is_told_in_the_unit_that_suits_it(ms: int, words: str):
    assert told(S.SCHEDULED, due=NOW + ms) == [("scheduled", f"it is due in {words}")]


def test_a_wait_before_a_retry_tells_what_came_before():
    ends = (End(1, "failed", 0, 0),)
    [(_, text)] = told(S.SCHEDULED, due=NOW + 1_000, failures=2, crashes=1, ends=ends)
    assert text == "it waits to be tried again after 2 failure(s) and 1 crash(es) in 1.0 s"


def test_a_job_that_nothing_holds_waits_for_its_turn():
    assert [code for code, _ in told(S.AVAILABLE)] == ["its_turn"]


@pytest.mark.parametrize(
    "policy, used, code",
    [
        (Ceiling(2), 2, "ceiling_full"),
        (Ceiling(2), 1, "its_turn"),
        (Ceiling(0), 0, "ceiling_closed"),
        (Rate(3, 1_000), 3, "rate_used"),
        (Rate(3, 1_000), 2, "its_turn"),
    ],
)
def test_a_full_counter_is_told_before_a_claim_has_met_it(policy: CounterPolicy, used: int, code: str):
    """Nobody has looked at the job yet: it is available, and would be set aside."""
    counters = [CounterFact("api", used, 0)]
    known = Policy(counters={"api": policy})
    found = told(S.AVAILABLE, needs=(Need("api"),), counters=counters, policy=known)
    assert [cause for cause, _ in found] == [code]


def test_a_pause_comes_before_everything_else_that_holds_a_queue():
    policy = Policy(queues={"q": QueuePolicy(paused=True)})
    assert [code for code, _ in told(S.AVAILABLE, workers=(), policy=policy)] == ["queue_paused"]


@pytest.mark.parametrize(
    "states, code",
    [
        (("running",), "its_turn"),
        (("draining", "running"), "its_turn"),
        (("draining", "unhealthy"), "workers_not_taking"),
    ],
)
def test_one_worker_that_takes_jobs_is_enough(states: tuple[str, ...], code: str):
    workers = tuple(WorkerInfo(state, queues=("q",), kinds=("work",), state=state) for state in states)
    assert [found for found, _ in told(S.AVAILABLE, workers=workers)] == [code]


@pytest.mark.parametrize(
    "policy, used, units, code",
    [
        (Ceiling(2), 2, 1, "ceiling_full"),
        (Ceiling(2), 1, 2, "ceiling_full"),
        (Ceiling(2), 1, 1, "counter_closed"),
        (Ceiling(2), 0, 3, "never_fits"),
        (Ceiling(0), 0, 1, "ceiling_closed"),
        (Rate(5, 1_000), 5, 1, "rate_used"),
        (Rate(5, 1_000), 4, 1, "counter_closed"),
        (Rate(5, 1_000), 0, 6, "never_fits"),
        (Rate(5, 1_000, exact=True), 0, 2, "never_fits"),
        (Rate(5, 1_000, exact=True), 1, 1, "rate_used"),
        (Rate(5, 1_000, burst=9), 8, 1, "counter_closed"),
        (Rate(5, 1_000, burst=9), 9, 1, "rate_used"),
        (Rate(0, 1_000), 0, 1, "rate_used"),
        (None, 0, 1, "counter_closed"),
    ],
)
def test_a_blocked_job_tells_what_its_counter_lacks(policy: Any, used: int, units: int, code: str):
    counters = {} if policy is None else {"api": policy}
    found = told(
        S.BLOCKED,
        policy=Policy(counters=counters),
        blocked_on="api/acme",
        needs=(Need("other"), Need("api/acme", units)),
        counters=[CounterFact("other", 9, 9), CounterFact("api/acme", used, 4)],
    )
    assert [cause for cause, _ in found] == [code]
    assert "'api/acme'" in found[0][1]


@pytest.mark.parametrize("limit, clears", [(5, "by time"), (0, "by a person")])
def test_a_rate_of_nothing_is_opened_by_a_person_only(limit: int, clears: str):
    policy = Policy(counters={"api": Rate(limit, 1_000)})
    counters = [CounterFact("api", limit, 1)]
    [cause] = explain(
        facts(S.BLOCKED, policy=policy, blocked_on="api", needs=(Need("api"),), counters=counters)
    )
    assert (cause.code, cause.clears) == ("rate_used", clears)


@pytest.mark.parametrize(
    "state, clears",
    [
        ("available", "by itself"),
        ("dead", "by a person"),
        ("cancelled", "by a person"),
        ("gone", "by itself"),
    ],
)
def test_a_wait_for_a_job_that_went_wrong_needs_a_person(state: str, clears: str):
    [cause] = explain(facts(S.PENDING, waits_for=[("order-1", state, "completed")]))
    assert (cause.code, cause.clears) == ("waits_for", clears)
    assert f"which is {state}" in cause.text


@pytest.mark.parametrize("error, tail", [("", "boom"), ("\n", "boom"), ("a\nlast", "boom; last error: last")])
def test_a_dead_job_tells_its_reason_and_its_last_error(error: str, tail: str):
    ends = (End(1, "failed", 0, 0, error=error),)
    [(code, text)] = told(S.DEAD, reason="boom", ends=ends)
    assert (code, text) == ("dead", f"it is in the dead letter: {tail}")
    assert told(S.DEAD, reason="boom")[0][1].endswith("boom")


def test_a_cancel_without_a_reason_says_so():
    assert told(S.CANCELLED) == [("cancelled", "it was cancelled: no reason given")]
