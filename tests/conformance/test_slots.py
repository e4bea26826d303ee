"""Slots: exclusive keys, who owns them and until when."""

import pytest

from tessera.model.changes import Done, DropJob, Free, Group, MoveJob, Refused, TakeSlot
from tessera.model.job import Keep
from tessera.model.states import FINAL, LIVE, State
from tests.conformance.rig import Rig, add, key_of, sweep


def is_free(rig: Rig, slot: str) -> bool:
    return isinstance(rig.ask(given=[Free(slot)]), Done)


@pytest.mark.capability("P12")
def test_one_live_job_a_key_and_the_refusal_names_it(rig: Rig):
    """INV-17."""
    rig.do(add("a", slots=("u:x",)))
    refused = rig.refused(add("b", slots=("u:x",)))
    assert refused.guard == Free("u:x")
    assert refused.job is not None
    assert refused.job.id == key_of("a")


@pytest.mark.capability("P12")
def test_within_one_call_the_first_of_two_gets_the_key(rig: Rig):
    """INV-17."""
    answers = rig.commit(*(Group((), (add(name, slots=("u:x",)),)) for name in "abc"))
    assert [isinstance(answer, Done) for answer in answers] == [True, False, False]
    assert isinstance(rig.ask(add("d", slots=("u:y",)), add("e", slots=("u:y",))), Refused)
    assert is_free(rig, "u:y")


def test_a_job_may_own_several_keys_and_takes_all_or_none(rig: Rig):
    """INV-17."""
    rig.do(add("a", slots=("u:2",)))
    rig.refused(add("b", slots=("u:1", "u:2", "u:3")))
    assert is_free(rig, "u:1")
    rig.do(add("b", slots=("u:1", "u:3")))
    assert not is_free(rig, "u:1")
    assert not is_free(rig, "u:3")


@pytest.mark.capability("P12")
@pytest.mark.parametrize("end", sorted(FINAL))
def test_a_unique_key_is_free_in_the_commit_that_ends_its_job(rig: Rig, end: State):
    """INV-17."""
    job = rig.start("a", slots=("u:x",))
    rig.finish(job, end, end.value)
    rig.do(add("b", slots=("u:x",)))


@pytest.mark.parametrize("to", sorted(LIVE - {State.RUNNING, State.PENDING, State.BLOCKED}))
def test_a_unique_key_is_kept_in_every_live_state(rig: Rig, to: State):
    """INV-17: while it waits for a retry, for its children or for a person."""
    job = rig.start("a", slots=("u:x",))
    rig.finish(job, to, "released", due=rig.now + 50 if to is State.SCHEDULED else 0)
    assert rig.state("a") is to
    assert not is_free(rig, "u:x")


@pytest.mark.parametrize("slot,end,kept", [
    ("u:x", State.DEAD, False),
    ("ud:x", State.DEAD, True),
    ("ud:x", State.COMPLETED, False),
    ("ud:x", State.CANCELLED, False),
    ("id:x", State.COMPLETED, True),
    ("id:x", State.DEAD, True),
    ("id:x", State.CANCELLED, True),
])  # fmt: skip
def test_what_kind_of_key_outlives_which_end(rig: Rig, slot: str, end: State, kept: bool):
    """INV-17: a dead job may keep its key, a caller's id is taken until the row goes."""
    rig.finish(rig.start("a", slots=(slot,)), end, end.value)
    assert is_free(rig, slot) is not kept
    rig.do(DropJob(key_of("a")))
    assert is_free(rig, slot)


@pytest.mark.capability("P5")
def test_a_callers_id_is_free_again_when_retention_ends(rig: Rig):
    """INV-17."""
    rig.do(add("a", slots=("id:x",), keep=Keep(cancelled=1_000)), MoveJob(key_of("a"), State.CANCELLED))
    rig.advance(999)
    sweep(rig)
    assert not is_free(rig, "id:x")
    rig.advance(1)
    sweep(rig)
    assert is_free(rig, "id:x")


@pytest.mark.capability("P11")
def test_a_job_of_which_nothing_is_kept_leaves_no_key_either(rig: Rig):
    """INV-17."""
    rig.do(add("a", slots=("id:x", "ud:x"), keep=Keep(dead=0)), MoveJob(key_of("a"), State.DEAD))
    assert is_free(rig, "id:x")
    assert is_free(rig, "ud:x")


@pytest.mark.capability("P13")
def test_a_throttle_is_released_by_the_clock_alone(rig: Rig):
    """INV-17: even if its job has finished."""
    rig.do(add("a"), TakeSlot("t:x", key_of("a"), rig.now + 60_000))
    rig.complete(rig.take())
    rig.refused(add("b"), given=[Free("t:x")])
    rig.advance(59_999)
    sweep(rig)
    assert not is_free(rig, "t:x")
    rig.advance(1)
    assert [slot.key for slot in rig.due().slots] == ["t:x"]
    rig.do(add("b"), TakeSlot("t:x", key_of("b"), rig.now + 60_000), given=[Free("t:x")])
    assert rig.due().slots == ()


def test_an_expired_key_is_swept_away(rig: Rig):
    rig.do(add("a"), TakeSlot("t:x", key_of("a"), rig.now + 10), TakeSlot("t:y", key_of("a"), rig.now + 20))
    rig.advance(10)
    sweep(rig)
    assert rig.due().slots == ()
    assert is_free(rig, "t:x")
    assert not is_free(rig, "t:y")


def test_a_key_freed_earlier_in_a_group_can_be_taken_in_it(rig: Rig):
    """INV-17: the hand-over is one step."""
    rig.do(add("a", slots=("u:x",)))
    rig.do(MoveJob(key_of("a"), State.CANCELLED), add("b", slots=("u:x",)))
    refused = rig.refused(add("c", slots=("u:x",)))
    assert refused.job is not None
    assert refused.job.id == key_of("b")
