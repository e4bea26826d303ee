"""Guards: what each one lets pass, what it refuses, and what the refusal says."""

import pytest

from tessera.model.changes import (
    AddJob,
    After,
    AtVersion,
    Below,
    Count,
    Done,
    DropRecord,
    EditJob,
    Edits,
    Free,
    Held,
    InState,
    Lapsed,
    LogEvent,
    MoveJob,
    Otherwise,
    PutRecord,
    Refused,
    TakeSlot,
)
from tessera.model.states import FINAL, LIVE, State
from tests.conformance.rig import LEASE, Rig, add, end_of, key_of, sweep

MARK = LogEvent("marked")
"""A change that anybody can see, to show whether a group was applied."""


def marks(rig: Rig) -> int:
    return sum(event.what == "marked" for event in rig.events())


# Held -------------------------------------------------------------------------------------------------------


@pytest.mark.capability("R3")
def test_a_live_lease_may_write(rig: Rig):
    """INV-7."""
    job = rig.start("a")
    rig.do(MARK, given=[Held(job.id, job.fence)])
    assert marks(rig) == 1


@pytest.mark.capability("R3")
@pytest.mark.parametrize("off", [-1, 1, -(10**9), 10**9])
def test_another_fence_may_not_write(rig: Rig, off: int):
    """INV-7: neither an older nor a made-up newer one."""
    job = rig.start("a")
    refused = rig.refused(MARK, given=[Held(job.id, job.fence + off)])
    assert refused.job is not None
    assert refused.job.fence == job.fence
    assert "another lease" in refused.why


@pytest.mark.capability("A11")
def test_a_lease_is_over_at_its_very_instant_by_the_stores_clock(rig: Rig):
    """INV-7, INV-29."""
    job = rig.start("a")
    rig.advance(LEASE - 1)
    rig.do(MARK, given=[Held(job.id, job.fence)])
    rig.advance(1)
    refused = rig.refused(MARK, given=[Held(job.id, job.fence)])
    assert "lapsed" in refused.why


@pytest.mark.parametrize(
    "to", [State.AVAILABLE, State.SCHEDULED, State.WAITING, State.QUARANTINED, *sorted(FINAL)]
)
def test_a_job_that_was_let_go_is_no_longer_held(rig: Rig, to: State):
    """INV-7."""
    job = rig.start("a")
    assert isinstance(rig.finish(job, to, "released"), Done)
    refused = rig.refused(MARK, given=[Held(job.id, job.fence)])
    assert f"the job is {to}" in refused.why


def test_a_late_worker_cannot_complete_a_reclaimed_job(rig: Rig):
    """INV-5, INV-6, INV-7."""
    first = rig.start("a")
    rig.advance(LEASE)
    sweep(rig)
    second = rig.take()
    assert second.fence > first.fence
    late = rig.finish(first)
    assert isinstance(late, Refused)
    assert late.job is not None
    assert late.job.holder == "h"
    assert rig.state("a") is State.RUNNING
    rig.complete(second)
    assert rig.job("a").state is State.COMPLETED


def test_a_lapsed_worker_cannot_write_even_if_nobody_took_the_job_yet(rig: Rig):
    """INV-7: expiry alone is enough."""
    job = rig.start("a")
    rig.advance(LEASE)
    assert isinstance(rig.finish(job), Refused)
    assert rig.state("a") is State.RUNNING


def test_a_job_that_is_gone_is_held_by_nobody(rig: Rig):
    job = rig.start("a")
    refused = rig.refused(MARK, given=[Held(key_of("other"), job.fence)])
    assert refused.job is None
    assert "gone" in refused.why


@pytest.mark.capability("U6")
def test_a_repeated_finish_is_answered_as_the_repeat_that_it_is(rig: Rig):
    """INV-3: the reply was lost, the worker asks again."""
    job = rig.start("a")
    rig.complete(job)
    before = rig.dump()
    assert rig.finish(job) == Done(replayed=True)
    rig.advance(LEASE)
    assert rig.finish(job) == Done(replayed=True)
    assert rig.dump() == before


def test_a_repeated_failure_is_recognised_while_the_job_waits_for_its_next_run_and_runs_again(rig: Rig):
    """INV-3, INV-11: a lost reply is not a second failure."""
    job = rig.start("a")

    def fail():
        return rig.finish(job, State.SCHEDULED, "failed", edits=Edits(failures=1))

    assert fail() == Done()
    assert fail() == Done(replayed=True)
    sweep(rig)
    assert rig.take().attempt == 2
    assert fail() == Done(replayed=True)
    assert rig.job("a").failures == 1


def test_another_outcome_than_the_first_is_stale_and_no_repeat(rig: Rig):
    """INV-2, INV-7."""
    job = rig.start("a")
    rig.complete(job)
    assert isinstance(rig.finish(job, State.DEAD, "aborted"), Refused)
    assert rig.state("a") is State.COMPLETED


def test_a_finish_after_a_lapse_in_between_is_stale(rig: Rig):
    """INV-7: the same fence ended by a lapse did not end as completed."""
    job = rig.start("a")
    rig.advance(LEASE)
    sweep(rig)
    assert isinstance(rig.finish(job), Refused)
    assert rig.job("a").crashes == 1


# Lapsed -----------------------------------------------------------------------------------------------------


def test_a_rescue_takes_back_a_lapsed_lease_and_no_live_one(rig: Rig):
    """INV-8."""
    job = rig.start("a")
    rescue = MoveJob(job.id, State.AVAILABLE, end=end_of(job, "crashed"))
    rig.advance(LEASE - 1)
    rig.refused(rescue, given=[Lapsed(job.id, job.fence)])
    rig.advance(1)
    rig.do(rescue, given=[Lapsed(job.id, job.fence)])
    assert rig.state("a") is State.AVAILABLE


def test_a_rescue_never_touches_a_job_that_was_finished_or_claimed_again(rig: Rig):
    """INV-2, INV-5: the sweep that read a lapsed lease may write long after."""
    job = rig.start("a")
    rescue = MoveJob(job.id, State.AVAILABLE, end=end_of(job, "crashed"))
    rig.complete(job)
    rig.advance(LEASE)
    rig.refused(rescue, given=[Lapsed(job.id, job.fence)])
    lost = rig.start("b")
    rig.advance(LEASE)
    sweep(rig)
    again = rig.take()
    rig.advance(LEASE)
    rig.refused(MoveJob(lost.id, State.AVAILABLE), given=[Lapsed(lost.id, lost.fence)])
    rig.do(MoveJob(lost.id, State.AVAILABLE), given=[Lapsed(again.id, again.fence)])


def test_a_lease_that_was_renewed_has_not_lapsed(rig: Rig):
    job = rig.start("a")
    rig.advance(LEASE - 1)
    rig.do(EditJob(job.id, Edits(lease=After(LEASE))), given=[Held(job.id, job.fence)])
    rig.advance(LEASE - 1)
    rig.refused(MARK, given=[Lapsed(job.id, job.fence)])
    assert rig.due().lapsed == ()
    rig.advance(1)
    assert [row.id for row in rig.due().lapsed] == [job.id]


# InState ----------------------------------------------------------------------------------------------------


def test_in_state_sees_live_and_archived_jobs(rig: Rig):
    rig.do(add("a"))
    rig.bury("b")
    rig.do(MARK, given=[InState(key_of("a"), (State.AVAILABLE, State.RUNNING))])
    rig.do(MARK, given=[InState(key_of("b"), (State.DEAD,))])
    refused = rig.refused(MARK, given=[InState(key_of("b"), tuple(LIVE))])
    assert refused.job is not None
    assert refused.job.state is State.DEAD
    assert marks(rig) == 2


def test_in_state_tells_one_life_of_a_job_from_the_next(rig: Rig):
    """INV-2: who decided by more than the state says what he saw."""
    rig.bury("a")
    seen = rig.job("a")
    rig.do(MARK, given=[InState(seen.id, (State.DEAD,), seen.fence)])
    rig.move("a", State.AVAILABLE)
    rig.move("a", State.DEAD)
    assert (
        rig.refused(MARK, given=[InState(seen.id, (State.DEAD,), seen.fence)]).why
        == "the job is dead once more"
    )
    rig.do(MARK, given=[InState(seen.id, (State.DEAD,), rig.job("a").fence)])


def test_in_state_tells_one_wait_of_a_job_from_the_next(rig: Rig):
    """INV-13: a promotion that was read before the job was put off does not bring it forward."""
    rig.do(add("a", due=After(100)))
    rig.advance(100)
    [seen] = rig.due().scheduled
    rig.do(EditJob(seen.id, Edits(due=After(900))))
    promote = MoveJob(seen.id, State.AVAILABLE)
    rig.refused(promote, given=[InState(seen.id, (State.SCHEDULED,), due=seen.due)])
    rig.do(MARK, given=[InState(seen.id, (State.SCHEDULED,), due=rig.now + 900)])


def test_in_state_refuses_a_job_that_does_not_exist(rig: Rig):
    refused = rig.refused(MARK, given=[InState(key_of("a"), tuple(State))])
    assert (refused.job, refused.why) == (None, "there is no such job")


# AtVersion --------------------------------------------------------------------------------------------------


@pytest.mark.capability("W7")
def test_a_record_is_written_only_by_whoever_knows_its_version(rig: Rig):
    """INV-19."""
    rig.do(PutRecord("notes", "n", b"1"), given=[AtVersion("notes", "n", 0)])
    refused = rig.refused(PutRecord("notes", "n", b"x"), given=[AtVersion("notes", "n", 0)])
    assert refused.version == 1
    rig.do(PutRecord("notes", "n", b"2"), given=[AtVersion("notes", "n", 1)])
    rig.refused(PutRecord("notes", "n", b"x"), given=[AtVersion("notes", "n", 1)])
    record = rig.record("notes", "n")
    assert record is not None
    assert (record.version, record.value) == (2, b"2")


def test_a_tombstone_has_a_version_and_an_expired_record_is_absent(rig: Rig):
    """INV-19."""
    rig.do(PutRecord("notes", "n", b"1"), DropRecord("notes", "n"))
    rig.refused(MARK, given=[AtVersion("notes", "n", 0)])
    rig.do(MARK, given=[AtVersion("notes", "n", 2)])
    rig.do(PutRecord("~notes", "brief", b"1", expires=rig.now + 10))
    rig.refused(MARK, given=[AtVersion("~notes", "brief", 0)])
    rig.advance(10)
    rig.do(MARK, given=[AtVersion("~notes", "brief", 0)])


# Free -------------------------------------------------------------------------------------------------------


@pytest.mark.capability("P12")
def test_a_key_is_free_until_somebody_owns_it_and_the_refusal_names_the_owner(rig: Rig):
    """INV-17."""
    rig.do(MARK, given=[Free("u:x")])
    rig.do(add("a", slots=("u:x",)))
    refused = rig.refused(MARK, given=[Free("u:x")])
    assert refused.job is not None
    assert refused.job.id == key_of("a")


def test_a_key_whose_time_is_over_is_free_before_anybody_swept_it(rig: Rig):
    rig.do(add("a"), TakeSlot("t:x", key_of("a"), rig.now + 100))
    rig.advance(99)
    rig.refused(MARK, given=[Free("t:x")])
    rig.advance(1)
    rig.do(MARK, given=[Free("t:x")])


@pytest.mark.capability("P14")
def test_a_taken_key_may_edit_its_owner_instead(rig: Rig):
    """INV-17: replace, in one flight and without a second job."""
    rig.do(add("a", slots=("u:x",), payload=b"old"))
    instead = Otherwise(Edits(payload=b"new", priority=7), (State.AVAILABLE, State.SCHEDULED))
    done = rig.do(add("b", slots=("u:x",)), given=[Free("u:x")], otherwise=instead)
    assert done.edited is not None
    assert (done.edited.id, done.edited.payload, done.edited.priority) == (key_of("a"), b"new", 7)
    assert rig.job("a").payload == b"new"
    assert rig.find("b") is None
    assert rig.claim_names(n=5) == ["a"]


@pytest.mark.capability("P14")
def test_an_owner_in_another_state_is_left_alone(rig: Rig):
    """INV-2: neither a running nor an ended owner is replaced, whatever states the caller named."""
    instead = Otherwise(Edits(payload=b"new"), (State.AVAILABLE,))
    running = rig.start("a", slots=("u:x",), payload=b"old")
    before = rig.dump()
    assert isinstance(rig.ask(add("b"), given=[Free("u:x")], otherwise=instead), Refused)
    assert rig.dump() == before
    rig.complete(running)
    rig.do(add("dead", slots=("ud:y",)), MoveJob(key_of("dead"), State.DEAD))
    any_state = Otherwise(Edits(payload=b"new"), tuple(State))
    before = rig.dump()
    assert isinstance(rig.ask(add("c"), given=[Free("ud:y")], otherwise=any_state), Refused)
    assert rig.dump() == before


@pytest.mark.capability("P15")
def test_each_debounce_pushes_the_due_time_but_not_past_its_bound(rig: Rig):
    """INV-13."""
    bound = rig.now + 60_000
    rig.do(add("a", due=After(5_000), slots=("u:x",)))
    instead = Otherwise(Edits(due=After(5_000), due_latest=bound, payload=b"p"), (State.SCHEDULED,))
    for _ in range(14):
        rig.advance(4_000)
        rig.do(add("b", slots=("u:x",)), given=[Free("u:x")], otherwise=instead)
        assert rig.job("a").due == min(rig.now + 5_000, bound)
    rig.advance(bound - rig.now)
    assert rig.claim() == []
    sweep(rig)
    assert rig.claim_names() == ["a"]


# Below ------------------------------------------------------------------------------------------------------


def test_below_compares_with_what_the_counter_holds(rig: Rig):
    rig.do(Count("~depth", 2))
    rig.do(MARK, given=[Below("~depth", 3)])
    refused = rig.refused(MARK, given=[Below("~depth", 2)])
    assert refused.version == 2
    rig.do(Count("~depth", -1))
    rig.do(MARK, given=[Below("~depth", 2)])
    rig.do(MARK, given=[Below("~nobody", 1)])


def test_all_guards_of_a_group_must_hold(rig: Rig):
    job = rig.start("a")
    held = Held(job.id, job.fence)
    rig.refused(MARK, given=[held, Free("u:x"), AtVersion("notes", "n", 4)])
    rig.refused(MARK, given=[AtVersion("notes", "n", 0), Below("~c", 0), held])
    rig.do(MARK, given=[held, Free("u:x"), AtVersion("notes", "n", 0), Below("~c", 1)])


def test_a_guard_alone_answers_and_changes_nothing(rig: Rig):
    before = rig.dump()
    assert rig.ask(given=[Free("u:x")]) == Done()
    assert rig.ask() == Done()
    assert rig.dump() == before


def test_a_refusal_hands_back_the_guard_that_failed(rig: Rig):
    guard = InState(key_of("a"), (State.DEAD,))
    assert rig.refused(MARK, given=[Free("u:x"), guard]).guard == guard
    job = add("a")
    assert isinstance(job, AddJob)
    rig.do(job)
    other = add("a", payload=b"other")
    assert rig.refused(other).guard == other
