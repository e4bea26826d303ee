"""The state machine: what its one table promises, and how a transition is written to the log."""

import pytest

from tessera.model.states import FINAL, LIVE, EventLevel, State
from tessera.rules.lifecycle import ODD_ENDS, TRANSITIONS, allowed, event_name, is_logged

EVERY_PAIR = [(before, after) for before in State for after in State]
IN_TABLE = {(line.before, line.after) for line in TRANSITIONS}


def reachable_from(start: State) -> set[State]:
    seen, todo = {start}, [start]
    while todo:
        here = todo.pop()
        for before, after in IN_TABLE:
            if before is here and after not in seen:
                seen.add(after)
                todo.append(after)
    return seen


def test_the_table_names_each_edge_once():
    """INV-14."""
    assert len(IN_TABLE) == len(TRANSITIONS)


@pytest.mark.parametrize("before,after", EVERY_PAIR)
def test_exactly_the_edges_of_the_table_are_allowed(before: State, after: State):
    """INV-14."""
    assert allowed(before, after) is ((before, after) in IN_TABLE)


@pytest.mark.parametrize("state", sorted(FINAL))
def test_a_final_state_is_left_by_a_redrive_only(state: State):
    """INV-2: no edge between two final states, and out of them only back to those that wait to run."""
    after = {line.after for line in TRANSITIONS if line.before is state}
    assert after <= {State.AVAILABLE, State.SCHEDULED}
    assert (state is State.COMPLETED) == (not after)


def test_only_an_available_job_becomes_running():
    """INV-5: a lease is given to a job that nobody has."""
    assert {line.before for line in TRANSITIONS if line.after is State.RUNNING} == {State.AVAILABLE}


@pytest.mark.parametrize("state", sorted(LIVE))
def test_from_every_live_state_a_job_can_be_cancelled_and_can_end_as_dead(state: State):
    assert allowed(state, State.CANCELLED)
    assert allowed(state, State.DEAD)


@pytest.mark.parametrize("state", sorted(LIVE))
def test_no_live_state_is_a_trap(state: State):
    """INV-31: from wherever a job is, there is a way to its completion."""
    assert State.COMPLETED in reachable_from(state)


@pytest.mark.parametrize("before,after", sorted(IN_TABLE))
def test_the_full_log_has_every_transition_and_the_switched_off_one_has_none(before: State, after: State):
    """INV-14."""
    assert is_logged(EventLevel.FULL, before, after)
    assert not is_logged(EventLevel.OFF, before, after)


@pytest.mark.parametrize(
    "before,after,end,logged",
    [
        (State.AVAILABLE, State.RUNNING, "", False),
        (State.RUNNING, State.COMPLETED, "completed", False),
        (State.RUNNING, State.SCHEDULED, "snoozed", False),
        (State.RUNNING, State.AVAILABLE, "released", False),
        (State.RUNNING, State.SCHEDULED, "failed", True),
        (State.RUNNING, State.SCHEDULED, "crashed", True),
        (State.RUNNING, State.SCHEDULED, "timed_out", True),
        (State.RUNNING, State.DEAD, "aborted", True),
        (State.RUNNING, State.QUARANTINED, "crashed", True),
        (State.AVAILABLE, State.QUARANTINED, "", True),
        (State.SCHEDULED, State.CANCELLED, "", True),
        (State.BLOCKED, State.AVAILABLE, "", False),
        (State.DEAD, State.AVAILABLE, "", True),
        (State.CANCELLED, State.SCHEDULED, "", True),
    ],
)
def test_the_odd_log_has_what_an_operator_would_ask_about(
    before: State, after: State, end: str, logged: bool
):
    assert is_logged(EventLevel.ODD, before, after, end) is logged


@pytest.mark.parametrize("state", sorted(State))
def test_every_way_into_a_bad_end_is_odd(state: State):
    for line in TRANSITIONS:
        if line.after in (State.DEAD, State.CANCELLED, State.QUARANTINED) and line.before is state:
            assert line.odd, line


@pytest.mark.parametrize(
    "before,after,end,name",
    [
        (None, State.AVAILABLE, "", "enqueued"),
        (None, State.PENDING, "", "enqueued"),
        (State.AVAILABLE, State.RUNNING, "", "claimed"),
        (State.AVAILABLE, State.BLOCKED, "", "set_aside"),
        (State.BLOCKED, State.AVAILABLE, "", "became_available"),
        (State.PENDING, State.AVAILABLE, "", "became_available"),
        (State.PENDING, State.SCHEDULED, "", "scheduled"),
        (State.RUNNING, State.AVAILABLE, "", "released"),
        (State.RUNNING, State.SCHEDULED, "", "released"),
        (State.RUNNING, State.SCHEDULED, "failed", "failed"),
        (State.RUNNING, State.COMPLETED, "completed", "completed"),
        (State.RUNNING, State.COMPLETED, "", "completed"),
        (State.RUNNING, State.WAITING, "split", "split"),
        (State.AVAILABLE, State.CANCELLED, "", "cancelled"),
        (State.DEAD, State.AVAILABLE, "", "redriven"),
        (State.CANCELLED, State.AVAILABLE, "", "redriven"),
        (State.QUARANTINED, State.DEAD, "", "dead"),
    ],
)
def test_an_event_is_named_in_the_past_tense(before: State | None, after: State, end: str, name: str):
    assert event_name(before, after, end) == name


def test_the_ends_that_the_odd_log_keeps_are_those_that_went_wrong():
    assert {"failed", "crashed", "timed_out"} == ODD_ENDS
