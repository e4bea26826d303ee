"""What is given up: rows that are dropped, keys, units of a rule's own counter; and events of no job."""

import pytest

from tessera.model.changes import Count, DropJob, FreeSlot, LogEvent, TakeSlot
from tessera.model.policy import Ceiling
from tessera.model.states import State
from tests.conformance.rig import Rig, add, bring_to, key_of


@pytest.mark.capability("R10")
@pytest.mark.parametrize("state", sorted(State))
def test_a_dropped_job_leaves_nothing_behind(rig: Rig, state: State):
    """INV-15, INV-25."""
    bring_to(rig, state)
    rig.do(DropJob(key_of("a"), "discarded", "ops"))
    assert rig.find("a") is None
    assert rig.counts() == {}
    assert rig.counter("full") == (0, 0)
    assert (rig.events()[-1].what, rig.events()[-1].by) == ("discarded", "ops")
    assert rig.refused(DropJob(key_of("a"))).why == "there is no such job"


def test_a_dropped_running_job_gives_its_units_to_the_next(rig: Rig):
    """INV-25, INV-28."""
    rig.declare({"c": Ceiling(1)})
    running = rig.start("a", needs="c")
    rig.do(add("b", needs="c"))
    assert rig.claim() == []
    rig.do(DropJob(running.id))
    assert rig.claim_names() == ["b"]


def test_a_key_has_one_owner_and_only_the_owner_gives_it_up(rig: Rig):
    """INV-17."""
    rig.do(add("a"), add("b"))
    rig.do(TakeSlot("t:x", key_of("a"), rig.now + 100))
    refused = rig.refused(TakeSlot("t:x", key_of("b"), rig.now + 100))
    assert refused.job is not None
    assert refused.job.id == key_of("a")
    rig.do(TakeSlot("t:x", key_of("a"), rig.now + 200))
    rig.do(FreeSlot("t:x", key_of("b")))
    rig.refused(TakeSlot("t:x", key_of("b"), rig.now + 100))
    rig.do(FreeSlot("t:x", key_of("a")))
    rig.do(TakeSlot("t:x", key_of("b"), rig.now + 100))


def test_a_key_that_was_given_up_is_another_jobs_and_stays_so(rig: Rig):
    """INV-17: neither its end nor a redrive of the former owner takes it away."""
    rig.do(add("a", slots=("u:x",)))
    rig.do(FreeSlot("u:x", key_of("a")))
    rig.do(add("b", slots=("u:x",)))
    rig.move("a", State.CANCELLED)
    rig.move("a", State.AVAILABLE)
    rig.refused(add("c", slots=("u:x",)))


def test_a_rules_own_counter_is_a_sum_and_never_negative(rig: Rig):
    for units in (3, 4, -2):
        rig.do(Count("~depth", units))
    assert rig.counter("~depth") == (5, 0)
    rig.do(Count("~depth", -9))
    assert rig.counter("~depth") == (0, 0)


def test_an_event_of_no_job_has_no_number(rig: Rig):
    rig.do(LogEvent("paused", "q", by="ada", data=b"why"))
    [event] = rig.events()
    assert (event.what, event.queue, event.job, event.number, event.by, event.data, event.at) == (
        "paused", "q", None, 0, "ada", b"why", rig.now
    )  # fmt: skip
