"""Many jobs at once: redrive and purge, bounded and countable beforehand."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.engine import redriving
from tessera.engine.redriving import Redriven
from tessera.model.ids import JobId
from tessera.model.queries import Filter
from tessera.model.states import State
from tests.engine.lab import ALL, Lab
from tests.engine.test_operating import bring_to

S = State


def bury(lab: Lab, count: int = 1, reason: str = "boom", **fields: Any) -> list[JobId]:
    keys = [lab.enqueue(**fields) for _ in range(count)]
    for key in keys:
        lab.bury(key, reason)
    return keys


def redrive(lab: Lab, which: Filter = ALL, **how: Any) -> Redriven:
    return lab.run(redriving.redrive(lab.store, which, **how))


@pytest.mark.capability("R6")
def test_a_redrive_brings_back_what_waits_for_a_person(lab: Lab):
    [dead] = bury(lab)
    quarantined = bring_to(lab, S.QUARANTINED, name="poison")
    others = [bring_to(lab, state) for state in (S.CANCELLED, S.COMPLETED)]
    assert redrive(lab) == Redriven(2, 2)
    assert lab.states(dead, quarantined) == [S.AVAILABLE, S.AVAILABLE]
    assert lab.states(*others) == [S.CANCELLED, S.COMPLETED]


@pytest.mark.capability("A10")
def test_a_redriven_fingerprint_is_trusted_again(lab: Lab):
    quarantined = bring_to(lab, S.QUARANTINED, name="poison")
    redrive(lab)
    assert lab.take().id == quarantined


@pytest.mark.capability("R6")
@pytest.mark.parametrize(
    "which",
    [
        Filter(queues=("r",)),
        Filter(kinds=("other",)),
        Filter(tags_any=("vip", "eu")),
        Filter(tags_all=("vip", "eu")),
        Filter(reason="out of"),
        Filter(tenant="acme"),
    ],
)
def test_a_redrive_takes_only_what_the_filter_says(lab: Lab, which: Filter):
    bury(lab, tags=("vip",) if not which.tags_any else ())
    [wanted] = bury(lab, queue="r", kind="other", tags=("vip", "eu"), tenant="acme", reason="out of memory")
    assert redrive(lab, which) == Redriven(1, 1)
    assert lab.state(wanted) is S.AVAILABLE


@pytest.mark.parametrize("states", [(S.COMPLETED,), (S.RUNNING, S.CANCELLED)])
def test_a_filter_that_names_no_dead_letter_finds_nothing(lab: Lab, states: tuple[State, ...]):
    [dead] = bury(lab)
    assert redrive(lab, Filter(states=states)) == Redriven(0, 0)
    assert lab.state(dead) is S.DEAD


def test_a_filter_that_names_one_of_the_two_leaves_the_other(lab: Lab):
    [dead] = bury(lab)
    quarantined = bring_to(lab, S.QUARANTINED)
    assert redrive(lab, Filter(states=(S.QUARANTINED, S.COMPLETED))) == Redriven(1, 1)
    assert lab.states(dead, quarantined) == [S.DEAD, S.AVAILABLE]


@pytest.mark.capability("R6")
@pytest.mark.parametrize("limit, back", [(0, 0), (3, 3), (250, 250), (10_000, 450)])
def test_a_redrive_is_bounded_and_takes_the_newest_first(lab: Lab, limit: int, back: int):
    keys = bury(lab, 450)
    assert redrive(lab, limit=limit) == Redriven(back, back)
    assert [lab.state(key) for key in keys] == [S.DEAD] * (450 - back) + [S.AVAILABLE] * back


@pytest.mark.capability("R6")
def test_a_dry_run_counts_and_changes_nothing(lab: Lab):
    keys = bury(lab, 5)
    assert redrive(lab, limit=3, dry_run=True) == Redriven(3, 0)
    assert set(lab.states(*keys)) == {S.DEAD}


def test_a_job_whose_unique_key_was_taken_stays_where_it_is(lab: Lab):
    """INV-17: and its neighbours come back all the same."""
    [taken] = bury(lab, unique_key="u:work:1")
    [free] = bury(lab, unique_key="u:work:2")
    lab.enqueue(unique_key="u:work:1")
    assert redrive(lab) == Redriven(2, 1, 1)
    assert lab.states(taken, free) == [S.DEAD, S.AVAILABLE]


def test_a_job_that_somebody_else_redrove_is_counted_as_refused(lab: Lab):
    [key] = bury(lab)
    store = lab.between("commit", lambda: lab.retry(key))
    assert lab.run(redriving.redrive(store, Filter())) == Redriven(1, 0, 1)


def test_who_redrove_stands_in_the_log(lab: Lab):
    [key] = bury(lab)
    redrive(lab, by="ada")
    assert (lab.events(key)[-1].what, lab.events(key)[-1].by) == ("redriven", "ada")


# Purge ------------------------------------------------------------------------------------------------------


def purge(lab: Lab, queue: str = "q", *states: State, **how: Any) -> int:
    return lab.run(redriving.purge(lab.store, queue, *([states] if states else []), **how))


def test_a_purge_removes_what_waits_and_leaves_what_runs_or_ended(lab: Lab):
    kept = [bring_to(lab, state) for state in (S.COMPLETED, S.DEAD, S.CANCELLED)]
    running = lab.start()
    other = lab.enqueue(queue="r")
    gone = [bring_to(lab, state) for state in (S.PENDING, S.SCHEDULED, S.AVAILABLE)]
    assert purge(lab) == 3
    assert lab.states(*gone) == [None] * 3
    assert lab.states(*kept, running.id, other) == [S.COMPLETED, S.DEAD, S.CANCELLED, S.RUNNING, S.AVAILABLE]


@pytest.mark.parametrize("state", [s for s in S if s is not S.RUNNING])
def test_a_purge_of_one_state_takes_that_state(lab: Lab, state: State):
    key = bring_to(lab, state)
    assert purge(lab, "q", state) == 1
    assert lab.state(key) is None


def test_a_purge_of_running_jobs_removes_nothing_at_all(lab: Lab):
    """Running jobs are never purged, and asking for them is not asking for all."""
    running, waiting = lab.start(), lab.enqueue()
    assert purge(lab, "q", S.RUNNING) == 0
    assert purge(lab, "q", S.RUNNING, dry_run=True) == 0
    assert lab.states(running.id, waiting) == [S.RUNNING, S.AVAILABLE]


def test_a_purge_of_many_pages_removes_all_and_says_how_many(lab: Lab):
    for _ in range(450):
        lab.enqueue()
    assert purge(lab, dry_run=True) == 450
    assert purge(lab, by="ada") == 450
    assert lab.everything() == []
    assert {(e.what, e.by) for e in lab.events() if e.what == "deleted"} == {("deleted", "ada")}


def test_a_job_that_was_claimed_meanwhile_is_not_purged(lab: Lab):
    key = lab.enqueue()
    store = lab.between("commit", lambda: lab.take(key))
    assert lab.run(redriving.purge(store, "q")) == 0
    assert lab.state(key) is S.RUNNING
