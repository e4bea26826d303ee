"""Why a job is not running, and what the queues hold."""

from __future__ import annotations

import ast
import inspect
from collections import Counter as Tally
from collections.abc import Callable

import pytest

from tessera.engine import inspecting, policies
from tessera.engine.inspecting import Explanation, QueueInfo
from tessera.model.changes import After
from tessera.model.errors import NotFound
from tessera.model.ids import JobId, show_id
from tessera.model.outcomes import Aborted, Completed, Failed, LimitMet
from tessera.model.policy import Ceiling
from tessera.model.states import State
from tessera.rules import explaining
from tessera.rules.drafts import Wait
from tests.engine.lab import Lab, need
from tests.engine.test_operating import bring_to

S = State


def explain(lab: Lab, key: JobId | str) -> Explanation:
    return lab.run(inspecting.explain_job(lab.store, lab.policies, key))


def codes(lab: Lab, key: JobId) -> list[str]:
    return [cause.code for cause in explain(lab, key).causes]


def _served(lab: Lab) -> JobId:
    lab.worker()
    return lab.enqueue()


def _unserved(lab: Lab) -> JobId:
    return lab.enqueue()


def _served_elsewhere(lab: Lab) -> JobId:
    lab.worker(queues=("r",))
    return lab.enqueue()


def _unknown_kind(lab: Lab) -> JobId:
    lab.worker(kinds=("other",))
    return lab.enqueue()


def _draining(lab: Lab) -> JobId:
    lab.worker(state="draining")
    return lab.enqueue()


def _worker_of_before(lab: Lab) -> JobId:
    lab.worker()
    lab.advance(30_000)
    return lab.enqueue()


def _paused(lab: Lab) -> JobId:
    lab.worker()
    lab.run(policies.override_queue(lab.store, "q", paused=True))
    return lab.enqueue()


def _suspected(lab: Lab) -> JobId:
    lab.lapse(lab.start("poison", max_crashes=1))
    lab.worker()
    return lab.enqueue("poison")


def _behind_a_full_ceiling(lab: Lab) -> JobId:
    lab.ceiling("one", 1)
    lab.start(needs=need("one"))
    return _set_aside(lab, "one")


def _behind_a_closed_ceiling(lab: Lab) -> JobId:
    lab.ceiling("shut", 0)
    return _set_aside(lab, "shut")


def _too_big(lab: Lab) -> JobId:
    lab.ceiling("small", 2)
    return _set_aside(lab, "small", 3)


def _behind_a_rate(lab: Lab) -> JobId:
    lab.rate("api", 1, per_ms=60_000)
    lab.start(needs=need("api"))
    return _set_aside(lab, "api")


def _told_to_wait(lab: Lab) -> JobId:
    lab.ceiling("api", 5)
    lab.end(lab.start(needs=need("api")), LimitMet("api", 60_000))
    return _set_aside(lab, "api")


def _told_to_wait_without_a_policy(lab: Lab) -> JobId:
    lab.end(lab.start(needs=need("api")), LimitMet("api", 60_000))
    return _set_aside(lab, "api")


def _set_aside(lab: Lab, counter: str, units: int = 1) -> JobId:
    lab.worker()
    key = lab.enqueue(needs=need(counter, units))
    assert lab.claim() == []
    assert lab.state(key) is S.BLOCKED
    return key


def _set_aside_for_its_kind(lab: Lab) -> JobId:
    lab.worker(kinds=("other",))
    key = lab.enqueue()
    assert lab.claim(kinds=frozenset({"other"})) == []
    return key


def _its_worker_has_just_come(lab: Lab) -> JobId:
    key = _set_aside_for_its_kind(lab)
    lab.worker()
    return key


def _blocked_and_paused(lab: Lab) -> JobId:
    key = _behind_a_closed_ceiling(lab)
    lab.run(policies.override_queue(lab.store, "q", paused=True))
    return key


def _waiting_for_another(lab: Lab) -> JobId:
    return lab.enqueue(after=[lab.enqueue()])


def _on_hold_for_a_dead_one(lab: Lab) -> JobId:
    parent = lab.enqueue()
    lab.bury(parent)
    return lab.enqueue(after=[Wait(parent, "completed", "hold")])


def _pending_and_waiting(lab: Lab) -> JobId:
    return lab.enqueue(pending=True, after=[lab.enqueue()])


CAUSES: list[tuple[Callable[[Lab], JobId], list[str], str, str]] = [
    # job, codes, words of the first cause, what clears it
    (lambda lab: bring_to(lab, S.RUNNING), [], "", ""),
    (lambda lab: bring_to(lab, S.COMPLETED), [], "", ""),
    (lambda lab: bring_to(lab, S.PENDING), ["held"], "waits to be promoted", "by a person"),
    (lambda lab: bring_to(lab, S.SCHEDULED), ["scheduled"], "it is due in 1.0 min", "by time"),
    (lambda lab: bring_to(lab, S.WAITING), ["waits_for"], "to complete, which is available", "by itself"),
    (lambda lab: bring_to(lab, S.QUARANTINED), ["quarantined"], "crashed workers", "by a person"),
    (lambda lab: bring_to(lab, S.DEAD), ["dead"], "in the dead letter: buried", "by a person"),
    (lambda lab: bring_to(lab, S.CANCELLED), ["cancelled"], "it was cancelled: cancelled", "by a person"),
    (_served, ["its_turn"], "waits for a free worker slot", "by itself"),
    (_unserved, ["no_worker"], "no live worker serves the queue 'q'", "by a deploy"),
    (_served_elsewhere, ["no_worker"], "no live worker serves the queue 'q'", "by a deploy"),
    (_worker_of_before, ["no_worker"], "no live worker serves the queue 'q'", "by a deploy"),
    (_unknown_kind, ["kind_not_served"], "knows the kind 'work'", "by a deploy"),
    (_draining, ["workers_not_taking"], "are draining", "by a deploy"),
    (_paused, ["queue_paused"], "the queue 'q' is paused", "by a person"),
    (_suspected, ["fingerprint_quarantined"], "the next claim sets it apart", "by a person"),
    (_behind_a_full_ceiling, ["ceiling_full"], "1 of 1 units of 'one' run; 1 jobs wait", "by itself"),
    (_behind_a_closed_ceiling, ["ceiling_closed"], "the ceiling 'shut' is 0", "by a person"),
    (_too_big, ["never_fits"], "needs 3 units of 'small'", "never"),
    (_behind_a_rate, ["rate_used"], "the rate 'api' (1 in 1.0 min) is used up; 1 jobs wait", "by time"),
    (_told_to_wait, ["counter_closed"], "the counter 'api' is closed for a while", "by time"),
    (
        _told_to_wait_without_a_policy,
        ["counter_closed"],
        "the counter 'api' is closed for a while",
        "by time",
    ),
    (_set_aside_for_its_kind, ["kind_not_served"], "knows the kind 'work'", "by a deploy"),
    (_its_worker_has_just_come, ["kind_woken"], "a worker for its kind has just come", "by itself"),
    (_blocked_and_paused, ["ceiling_closed", "queue_paused"], "the ceiling 'shut' is 0", "by a person"),
    (_waiting_for_another, ["waits_for"], "to complete, which is available", "by itself"),
    (_on_hold_for_a_dead_one, ["waits_for"], "to complete, which is dead", "by a person"),
    (_pending_and_waiting, ["held", "waits_for"], "waits to be promoted", "by a person"),
]


@pytest.mark.capability("A13")
@pytest.mark.parametrize(
    "make, expected, words, clears", CAUSES, ids=[f"{n}-{'+'.join(case[1])}" for n, case in enumerate(CAUSES)]
)
def test_every_job_says_why_it_is_not_running(
    lab: Lab, make: Callable[[Lab], JobId], expected: list[str], words: str, clears: str
):
    causes = explain(lab, make(lab)).causes
    assert [cause.code for cause in causes] == expected
    if causes:
        assert words in causes[0].text
        assert causes[0].clears == clears


@pytest.mark.capability("A13")
def test_every_cause_that_a_job_can_have_was_met_here():
    tree = ast.parse(inspect.getsource(explaining))
    known = {
        call.args[0].value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Cause"
        if isinstance(call.args[0], ast.Constant)
    }
    assert known == {code for case in CAUSES for code in case[1]}


@pytest.mark.capability("A13")
def test_a_job_that_will_be_tried_again_says_why_and_when(lab: Lab):
    job = lab.start()
    row = lab.ended(job, Failed("x", retry_after_ms=90_000))
    [cause] = explain(lab, job.id).causes
    assert cause.text == "it waits to be tried again after 1 failure(s) and 0 crash(es) in 1.5 min"
    assert cause.at == row.due


def test_a_dead_job_tells_the_last_line_of_its_last_error(lab: Lab):
    job = lab.start()
    lab.ended(job, Aborted("Traceback\n  File\nValueError: no such address"))
    [cause] = explain(lab, job.id).causes
    assert cause.text.endswith("; last error: ValueError: no such address")


def test_an_explanation_carries_the_job_and_the_stores_time(lab: Lab):
    key = lab.enqueue(given_id="order-1")
    told = explain(lab, "order-1")
    assert (told.job.id, told.now) == (key, lab.now)


def test_a_job_that_is_not_there_has_no_explanation(lab: Lab):
    with pytest.raises(NotFound, match="no job 'nothing'"):
        explain(lab, "nothing")


def test_an_explanation_follows_the_job(lab: Lab):
    lab.ceiling("one", 1)
    first = lab.start(needs=need("one"))
    second = _set_aside(lab, "one")
    assert codes(lab, second) == ["ceiling_full"]
    lab.end(first, Completed())
    assert codes(lab, second) == ["its_turn"]


def test_a_raised_ceiling_shows_before_any_claim_has_looked(lab: Lab):
    key = _behind_a_closed_ceiling(lab)
    lab.ceiling("shut", 4)
    assert codes(lab, key) == ["counter_closed"]
    assert lab.take().id == key


# Queues -----------------------------------------------------------------------------------------------------


def queues(lab: Lab) -> dict[str, QueueInfo]:
    return {queue.name: queue for queue in lab.run(inspecting.queues(lab.store, lab.policies))}


def test_queues_are_those_that_hold_jobs_have_a_policy_or_are_served(lab: Lab):
    lab.enqueue(queue="jobs")
    lab.run(policies.override_queue(lab.store, "policy", paused=True))
    lab.worker(queues=("served", "jobs"))
    lab.worker(queues=("served",))
    found = queues(lab)
    assert list(found) == ["jobs", "policy", "served"]
    assert [(q.paused, q.workers) for q in found.values()] == [(False, 1), (True, 0), (False, 2)]


def test_counts_of_a_queue_are_exact_in_every_state(lab: Lab):
    """INV-15."""
    bring_to(lab, S.BLOCKED)
    for number, state in enumerate([*(set(S) - {S.BLOCKED, S.RUNNING}), S.RUNNING]):
        bring_to(lab, state, priority=number + 1)
    rows = Tally(job.state for job in lab.everything())
    assert set(rows) == set(S)
    assert queues(lab)["q"].counts == rows


def test_unfinished_leaves_out_what_has_ended(lab: Lab):
    for state in (S.COMPLETED, S.DEAD, S.CANCELLED, S.SCHEDULED, S.RUNNING):
        bring_to(lab, state)
    assert queues(lab)["q"].unfinished == 2


def test_a_paused_queue_stays_paused_when_a_limit_is_declared(lab: Lab):
    lab.run(policies.override_queue(lab.store, "q", paused=True))
    lab.run(policies.declare(lab.store, counters={"one": Ceiling(1)}))
    assert queues(lab)["q"].paused


def test_kinds_that_wait_are_counted_over_all_pages(lab: Lab):
    for _ in range(230):
        lab.enqueue(kind="mail")
    lab.enqueue(kind="other", due=After(1_000))
    lab.end(lab.start(kind="done", priority=1), Completed())
    assert lab.run(inspecting.waiting_kinds(lab.store)) == {"mail": 230, "other": 1}


def test_a_worker_is_forgotten_half_a_minute_after_it_fell_silent(lab: Lab):
    lab.worker(name="one")
    lab.advance(29_999)
    assert [worker.name for worker in lab.run(inspecting.workers(lab.store))] == ["one"]
    lab.advance(1)
    assert lab.run(inspecting.workers(lab.store)) == []


def test_who_waits_for_a_parent_is_told_its_name(lab: Lab):
    parent = lab.enqueue()
    key = lab.enqueue(after=[Wait(parent, "ended")])
    [cause] = explain(lab, key).causes
    assert cause.text == f"it waits for job {show_id(parent)} to end, which is available"
