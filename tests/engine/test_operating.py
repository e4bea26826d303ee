"""What an operator does to one job, in every state it can be in."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tessera.engine import operating
from tessera.model.changes import After
from tessera.model.errors import Conflict, NotFound, WrongState
from tessera.model.ids import JobId, show_id
from tessera.model.job import extras_of
from tessera.model.outcomes import Completed, Failed, Split
from tessera.model.states import EventLevel, State
from tessera.model.views import view
from tests.engine.lab import Lab, need

S = State
Act = Callable[[Lab, JobId], Coroutine[Any, Any, Any]]


def bring_to(lab: Lab, state: State, **fields: Any) -> JobId:
    """A job in that state, with the ordinary things that lead there."""
    if state is S.PENDING:
        return lab.enqueue(pending=True, **fields)
    if state is S.SCHEDULED:
        return lab.enqueue(due=After(60_000), **fields)
    if state is S.BLOCKED:
        lab.ceiling("shut", 0)
        key = lab.enqueue(needs=need("shut"), **fields)
        assert lab.claim() == []
        return key
    key = lab.enqueue(**{"max_crashes": 1} | fields)
    if state is S.AVAILABLE:
        return key
    if state is S.DEAD:
        lab.bury(key)
    elif state is S.CANCELLED:
        lab.cancel(key)
    else:
        job = lab.take(key)
        if state is S.WAITING:
            lab.ended(job, Split((lab.child(job, 0),)))
        elif state is S.QUARANTINED:
            lab.lapse(job)
        elif state is S.COMPLETED:
            lab.ended(job, Completed(b'"done"'))
    return key


VERBS: dict[str, Act] = {
    "cancel": lambda lab, key: operating.cancel(lab.store, key),
    "cancel hard": lambda lab, key: operating.cancel(lab.store, key, hard=True),
    "retry": lambda lab, key: operating.retry(lab.store, key),
    "promote": lambda lab, key: operating.promote(lab.store, key),
    "edit": lambda lab, key: operating.edit(lab.store, key, priority=7),
    "delete": lambda lab, key: operating.delete(lab.store, key),
    "delete force": lambda lab, key: operating.delete(lab.store, key, force=True),
}
NO = "refused"
GONE = None
TABLE: dict[State, dict[str, State | str | None]] = {
    # state: cancel, cancel hard, retry, promote, edit, delete, delete force
    state: dict(zip(VERBS, results, strict=True))
    for state, results in {
        S.PENDING: (S.CANCELLED, S.CANCELLED, NO, S.AVAILABLE, S.PENDING, GONE, GONE),
        S.SCHEDULED: (S.CANCELLED, S.CANCELLED, S.AVAILABLE, S.AVAILABLE, S.SCHEDULED, GONE, GONE),
        S.AVAILABLE: (S.CANCELLED, S.CANCELLED, NO, NO, S.AVAILABLE, GONE, GONE),
        S.BLOCKED: (S.CANCELLED, S.CANCELLED, NO, NO, S.BLOCKED, GONE, GONE),
        S.RUNNING: (S.RUNNING, S.CANCELLED, NO, NO, NO, NO, GONE),
        S.WAITING: (S.CANCELLED, S.CANCELLED, NO, NO, S.WAITING, GONE, GONE),
        S.QUARANTINED: (S.CANCELLED, S.CANCELLED, S.AVAILABLE, NO, S.QUARANTINED, GONE, GONE),
        S.COMPLETED: (NO, NO, S.COMPLETED, NO, NO, GONE, GONE),
        S.DEAD: (NO, NO, S.AVAILABLE, NO, NO, GONE, GONE),
        S.CANCELLED: (S.CANCELLED, S.CANCELLED, S.AVAILABLE, NO, NO, GONE, GONE),
    }.items()
}
assert set(TABLE) == set(S)
CASES = [(state, verb, after) for state, row in TABLE.items() for verb, after in row.items()]


@pytest.mark.parametrize("state, verb, after", CASES, ids=lambda v: str(v))
def test_each_verb_does_in_each_state_what_the_table_says(
    lab: Lab, state: State, verb: str, after: State | str | None
):
    """INV-2, INV-14."""
    key = bring_to(lab, state)
    before = lab.job(key)
    assert before.state is state
    if after == NO:
        with pytest.raises(WrongState) as refused:
            lab.run(VERBS[verb](lab, key))
        assert (refused.value.state, refused.value.job) == (state, show_id(key))
        assert lab.job(key) == before
    else:
        lab.run(VERBS[verb](lab, key))
        assert lab.state(key) == after


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_job_is_said_to_be_unknown(lab: Lab, verb: str):
    with pytest.raises(NotFound):
        lab.run(VERBS[verb](lab, JobId(bytes(16))))


# Cancel ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [s for s in S if s not in (S.RUNNING, S.COMPLETED, S.DEAD)])
def test_a_cancel_answers_with_the_state_it_leads_to(lab: Lab, state: State):
    assert lab.cancel(bring_to(lab, state)) is S.CANCELLED


def test_a_soft_cancel_asks_a_running_job_to_stop(lab: Lab):
    job = lab.start()
    assert lab.cancel(job.id) is S.RUNNING
    row = lab.job(job.id)
    assert (row.cancel_requested, row.fence) == (True, job.fence)


def test_a_hard_cancel_takes_the_lease_at_once(lab: Lab):
    """INV-7."""
    job = lab.start()
    assert lab.cancel(job.id, hard=True, reason="operator") is S.CANCELLED
    assert lab.finish(job, Completed()) is not None
    assert lab.job(job.id).reason == "operator"


def test_a_cancel_gives_units_back_and_wakes_who_waits(lab: Lab):
    lab.ceiling("one", 1)
    job = lab.start(needs=need("one"))
    second = lab.enqueue(needs=need("one"))
    lab.claim()
    lab.cancel(job.id, hard=True)
    assert lab.state(second) is S.AVAILABLE


# Retry and promote ----------------------------------------------------------------------------------------


@pytest.mark.capability("R6")
def test_a_retry_of_a_dead_job_starts_afresh(lab: Lab):
    """INV-6: all counts at 0, the fence grown, the old time limits forgotten."""
    job = lab.start(max_attempts=1, expires_ms=60_000, deadline=After(60_000))
    dead = lab.ended(job, Failed("x"))
    lab.advance(120_000)
    assert lab.retry(job.id, by="ada") == job.id
    again = lab.take(job.id)
    assert (again.attempt, again.failures, again.crashes, again.snoozes) == (1, 0, 0, 0)
    assert again.fence > dead.fence > job.fence
    assert (again.deadline, again.expires_at, again.finished_at, again.gone_at) == (0, 0, 0, 0)
    assert [(e.what, e.by) for e in lab.events(job.id)][-2] == ("redriven", "ada")


@pytest.mark.capability("R6")
def test_a_retry_of_a_completed_job_makes_a_new_one_that_names_it(lab: Lab):
    """INV-2: the terminal row stays as it is."""
    key = bring_to(lab, S.COMPLETED, tags=("eu",), priority=3, given_id="order-1", unique_key="u:work:1")
    before = lab.job(key)
    again = lab.retry(key)
    assert again != key
    row = lab.job(again)
    assert (row.state, row.payload, row.tags, row.priority) == (S.AVAILABLE, before.payload, ("eu",), 3)
    assert extras_of(row).origin == show_id(key) == view(row).origin
    assert (lab.state(key), lab.job(key).result) == (S.COMPLETED, b'"done"')


def test_a_retry_that_finds_the_unique_key_taken_says_so_and_changes_nothing(lab: Lab):
    """INV-17."""
    dead = lab.enqueue(unique_key="u:work:1")
    lab.bury(dead)
    lab.enqueue(unique_key="u:work:1")
    before = lab.job(dead)
    with pytest.raises(Conflict, match="was taken meanwhile"):
        lab.retry(dead)
    assert lab.job(dead) == before


def test_a_retried_job_holds_its_unique_key_again(lab: Lab):
    """INV-17."""
    dead = lab.enqueue(unique_key="u:work:1")
    lab.bury(dead)
    lab.retry(dead)
    assert lab.world.slots["u:work:1"].owner == dead


def test_a_retry_of_a_scheduled_job_ends_its_wait(lab: Lab):
    job = lab.start()
    lab.ended(job, Failed("x"))
    lab.retry(job.id)
    again = lab.take(job.id)
    assert (again.failures, again.attempt) == (1, 2)


def test_a_retry_of_a_pending_job_points_at_promote(lab: Lab):
    with pytest.raises(WrongState, match="promote it instead"):
        lab.retry(lab.enqueue(pending=True))


@pytest.mark.capability("P10")
def test_only_a_promote_moves_a_pending_job(lab: Lab):
    key = lab.enqueue(pending=True)
    lab.advance(1_000_000)
    lab.sweep()
    assert lab.claim() == []
    lab.run(operating.promote(lab.store, key))
    assert lab.take().id == key


@pytest.mark.capability("P10")
def test_a_promoted_job_with_a_delay_still_waits_for_its_time(lab: Lab):
    """INV-13."""
    key = lab.enqueue(pending=True, due=After(5_000))
    lab.run(operating.promote(lab.store, key))
    assert lab.state(key) is S.SCHEDULED


@pytest.mark.capability("P10")
def test_a_pending_job_that_waits_for_others_goes_when_both_have_happened(lab: Lab):
    """INV-20."""
    parent = lab.enqueue()
    key = lab.enqueue(pending=True, after=[parent])
    lab.run(operating.promote(lab.store, key))
    assert lab.state(key) is S.PENDING
    lab.end(lab.take(parent), Completed())
    assert lab.state(key) is S.AVAILABLE


def test_a_promote_while_the_last_parent_ends_is_not_lost(lab: Lab):
    """INV-20: the parent ends between what the promote reads and what it writes."""
    parent = lab.enqueue()
    key = lab.enqueue(pending=True, after=[parent])
    job = lab.take(parent)
    lab.run(operating.promote(lab.between("commit", lambda: lab.end(job, Completed())), key))
    assert lab.take().id == key


def test_a_promote_of_a_job_that_only_waits_for_others_is_refused(lab: Lab):
    """INV-20: a success that changes nothing would be a lie."""
    parent = lab.enqueue()
    key = lab.enqueue(after=[parent])
    with pytest.raises(WrongState, match="it waits for 1 other"):
        lab.run(operating.promote(lab.store, key))


# Edit and delete ------------------------------------------------------------------------------------------


def test_an_edit_changes_what_it_names_and_nothing_else(lab: Lab):
    key = bring_to(lab, S.SCHEDULED, tags=("old",), priority=1)
    before = lab.job(key)
    lab.run(operating.edit(lab.store, key, tags=("new", "eu"), max_attempts=3))
    row = lab.job(key)
    assert (row.tags, row.max_attempts) == (("new", "eu"), 3)
    assert (row.priority, row.payload, row.due) == (before.priority, before.payload, before.due)
    lab.run(operating.edit(lab.store, key, payload=b"{}", priority=-1, due=After(1_000)))
    row = lab.job(key)
    assert (row.payload, row.priority, row.due, row.tags) == (b"{}", -1, lab.now + 1_000, ("new", "eu"))


@pytest.mark.capability("P8")
def test_an_edited_priority_moves_an_available_job(lab: Lab):
    lab.enqueue("first")
    second = lab.enqueue("second")
    lab.run(operating.edit(lab.store, second, priority=1))
    assert lab.take().id == second


@pytest.mark.parametrize("state", [S.PENDING, S.AVAILABLE, S.BLOCKED, S.WAITING, S.QUARANTINED])
def test_a_due_time_is_moved_only_where_there_is_one(lab: Lab, state: State):
    key = bring_to(lab, state)
    with pytest.raises(WrongState, match="only a scheduled job"):
        lab.run(operating.edit(lab.store, key, due=After(1_000)))


def test_a_due_time_moved_to_the_past_makes_the_job_available(lab: Lab):
    key = bring_to(lab, S.SCHEDULED)
    lab.run(operating.edit(lab.store, key, due=lab.now - 1))
    assert lab.take().id == key


def test_deleting_a_job_frees_its_keys_and_ends_it_for_its_dependants(lab: Lab):
    """INV-17, INV-20."""
    key = lab.enqueue(unique_key="u:work:1", given_id="order-1")
    dependant = lab.enqueue(after=[key])
    lab.run(operating.delete(lab.store, key, by="ada"))
    assert lab.state(dependant) is S.CANCELLED
    assert lab.world.slots == {}
    assert (lab.told(key)[-1], lab.events(key)[-1].by) == ("deleted", "ada")


def test_a_refused_delete_of_a_running_job_says_what_to_do(lab: Lab):
    with pytest.raises(WrongState, match="cancel it first, or force"):
        lab.run(operating.delete(lab.store, lab.start().id))


# Races ----------------------------------------------------------------------------------------------------


def test_an_act_that_lost_a_race_is_decided_anew(lab: Lab):
    """INV-2: it was available when it was read, and running when it was to be written."""
    key = lab.enqueue()
    store = lab.between("commit", lambda: lab.take(key))
    assert lab.run(operating.cancel(store, key)) is S.RUNNING
    assert lab.job(key).cancel_requested


def test_an_act_whose_job_ended_meanwhile_is_refused_by_the_new_state(lab: Lab):
    """INV-2."""
    job = lab.start()
    store = lab.between("commit", lambda: lab.end(job, Completed()))
    with pytest.raises(WrongState, match="it is completed"):
        lab.run(operating.cancel(store, job.id))


def test_an_act_whose_job_went_away_meanwhile_finds_nothing(lab: Lab):
    key = lab.enqueue()
    store = lab.between("commit", lambda: lab.run(operating.delete(lab.store, key)))
    with pytest.raises(NotFound):
        lab.run(operating.cancel(store, key))


def test_an_act_gives_up_on_a_job_that_never_keeps_still(lab: Lab):
    key = lab.enqueue()

    class Restless:
        def __getattr__(self, name: str) -> Any:
            if name == "commit":
                if lab.state(key) is S.AVAILABLE:
                    lab.take(key)
                else:
                    lab.end(lab.job(key), Failed("x", retry_after_ms=0))
            return getattr(lab.store, name)

    with pytest.raises(Conflict, match="keeps changing"):
        lab.run(operating.cancel(Restless(), key))  # type: ignore[arg-type]  # a proxy of all verbs


# The log --------------------------------------------------------------------------------------------------


ACTS: list[tuple[State, str, str]] = [
    (S.PENDING, "cancel", "cancelled"),
    (S.RUNNING, "cancel", "cancel_requested"),
    (S.RUNNING, "cancel hard", "cancelled"),
    (S.DEAD, "retry", "redriven"),
    (S.SCHEDULED, "retry", "retried"),
    (S.COMPLETED, "retry", "retried"),
    (S.PENDING, "promote", "promoted"),
    (S.SCHEDULED, "promote", "promoted"),
    (S.AVAILABLE, "edit", "edited"),
    (S.AVAILABLE, "delete", "deleted"),
]


@pytest.mark.parametrize("state, verb, what", ACTS)
def test_what_an_operator_does_is_logged_at_level_odd(lab: Lab, state: State, verb: str, what: str):
    key = bring_to(lab, state, events=EventLevel.ODD)
    lab.run(VERBS[verb](lab, key))
    assert lab.told(key)[-1] == what


@pytest.mark.parametrize("state, verb, what", ACTS)
def test_nothing_is_logged_at_level_off(lab: Lab, state: State, verb: str, what: str):
    key = bring_to(lab, state, events=EventLevel.OFF)
    lab.run(VERBS[verb](lab, key))
    assert lab.told(key) == []


def test_a_job_is_found_by_key_printed_key_and_own_id(lab: Lab):
    own = lab.enqueue(given_id="order-1")
    looks_like_a_key = os.urandom(16).hex()
    other = lab.enqueue(given_id=looks_like_a_key)
    assert lab.run(operating.edit(lab.store, "order-1", priority=1)) == own
    assert lab.run(operating.edit(lab.store, show_id(own), priority=2)) == own
    assert lab.run(operating.edit(lab.store, looks_like_a_key, priority=3)) == other


def test_watching_a_job_that_ended_is_no_trouble(lab: Lab):
    key = bring_to(lab, S.COMPLETED)
    lab.run(operating.watch(lab.store, key))
    assert not lab.job(key).watched
