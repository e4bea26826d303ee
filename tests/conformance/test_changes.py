"""Changes: what each does to a store, and what it demands before it does it."""

import pytest
from msgspec.structs import replace

from tessera.model.changes import (
    After,
    Done,
    DropJob,
    EditJob,
    Edits,
    Guard,
    Held,
    InState,
    MoveJob,
    Refused,
)
from tessera.model.job import NEVER, End, Job, Keep, Need
from tessera.model.policy import Ceiling, Rate
from tessera.model.queries import Event
from tessera.model.states import FINAL, EventLevel, State
from tessera.rules.lifecycle import allowed
from tests.conformance.rig import LEASE, Rig, add, bring_to, end_of, key_of, sweep

NOWHERE = sorted(FINAL)


# AddJob -----------------------------------------------------------------------------------------------------


@pytest.mark.capability("T1")
def test_a_stored_job_is_what_was_asked_for_with_the_stores_times(rig: Rig):
    """INV-1, INV-29."""
    change = add(
        "a",
        priority=5,
        tenant="t",
        stride=1_000,
        tags=("x", "y"),
        payload=b'{"n":1}',
        body=b"terms",
        ext=b"extras",
        needs=(Need("c", 2), Need("d/1", 1)),
        keep=Keep(1, 2, 3),
        max_attempts=7,
        max_crashes=2,
        watched=True,
        given_id="order-17",
        ends=(End(1, "failed", 1, 2, "h", "boom"),),
    )
    rig.do(change)
    job = rig.job("a")
    assert job.state is State.AVAILABLE
    assert (job.created_at, job.due) == (rig.now, rig.now)
    kept = "given_id kind queue priority tenant stride tags payload body ext needs keep max_attempts"
    for name in [*kept.split(), "max_crashes", "watched", "ends"]:
        assert getattr(job, name) == getattr(change.job, name), name
    assert (job.attempt, job.failures, job.crashes, job.holder, job.result) == (0, 0, 0, "", None)


@pytest.mark.capability("P9")
def test_a_delayed_job_is_not_handed_out_before_its_time(rig: Rig):
    """INV-13."""
    rig.do(add("a", due=After(1_000)), add("b", due=rig.now + 2_000))
    assert rig.states("a", "b") == [State.SCHEDULED] * 2
    rig.advance(999)
    sweep(rig)
    assert rig.claim(n=5) == []
    rig.advance(1)
    sweep(rig)
    assert rig.claim_names(n=5) == ["a"]
    rig.advance(1_000)
    sweep(rig)
    assert rig.claim_names(n=5) == ["b"]


def test_a_due_time_in_the_past_is_now(rig: Rig):
    rig.do(add("a", due=5))
    assert (rig.state("a"), rig.job("a").due) == (State.AVAILABLE, rig.now)


def test_expiry_counts_from_the_due_time_and_the_earlier_of_two_bounds_holds(rig: Rig):
    rig.do(add("a", due=After(1_000), expires=500))
    assert rig.job("a").expires_at == rig.now + 1_500


@pytest.mark.capability("P5")
def test_the_same_id_with_the_same_content_is_no_second_job(rig: Rig):
    """INV-3, INV-17."""
    rig.do(add("a", payload=b"p"))
    before = rig.dump()
    again = rig.do(add("a", payload=b"p"))
    assert (again.replayed, again.existing) == (True, (key_of("a"),))
    assert rig.dump() == before


@pytest.mark.capability("P5")
def test_the_same_id_is_known_while_the_job_runs_and_after_it_ended(rig: Rig):
    """INV-3."""
    job = rig.start("a")
    assert rig.do(add("a")).replayed
    rig.complete(job)
    assert rig.do(add("a")).replayed
    assert rig.state("a") is State.COMPLETED


@pytest.mark.capability("P5")
@pytest.mark.parametrize("other", [{"payload": b"x"}, {"kind": "x"}, {"queue": "x"}])
def test_the_same_id_with_other_content_is_refused(rig: Rig, other: dict):
    """INV-18."""
    rig.do(add("a", payload=b"p"))
    refused = rig.refused(add("a", **({"payload": b"p"} | other)))
    assert refused.job is not None
    assert refused.job.payload == b"p"
    assert refused.why == "the id is taken"


@pytest.mark.capability("P2")
def test_a_batch_with_a_known_member_stores_the_others(rig: Rig):
    """INV-1: what is acknowledged is stored, also beside a repeat."""
    rig.do(add("b"))
    done = rig.do(add("a"), add("b"), add("c"))
    assert (done.replayed, done.existing) == (False, (key_of("b"),))
    assert sorted(rig.claim_names(n=9)) == ["a", "b", "c"]


@pytest.mark.capability("P2")
def test_one_bad_member_and_nothing_of_the_batch_is_stored(rig: Rig):
    """INV-19, INV-33."""
    rig.do(add("b", payload=b"p"))
    refused = rig.refused(add("a"), add("b", payload=b"other"), add("c"))
    assert refused.guard == add("b", payload=b"other")


def test_an_id_that_is_free_again_never_gets_an_older_fence(rig: Rig):
    """INV-6: from the next millisecond on."""
    first = rig.start("a")
    rig.do(DropJob(first.id))
    rig.advance(1)
    second = rig.start("a")
    assert second.fence > first.fence
    assert isinstance(rig.finish(first), Refused)


# MoveJob ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(State))
def test_only_the_moves_of_the_state_machine_are_made(rig: Rig, state: State):
    """INV-14, INV-2, INV-5: and of those, leasing and setting aside are a claim's alone."""
    bring_to(rig, state)
    for to in sorted(State):
        if not allowed(state, to) or to in (State.RUNNING, State.BLOCKED):
            refused = rig.refused(MoveJob(key_of("a"), to))
            assert refused.job is not None
            assert refused.job.state is state


@pytest.mark.parametrize("state", sorted(State))
@pytest.mark.parametrize("level", sorted(EventLevel))
def test_a_move_to_available_with_a_due_time_ahead_lands_at_scheduled_or_is_refused(
    rig: Rig, state: State, level
):
    """INV-13, INV-14."""
    bring_to(rig, state)
    move = MoveJob(key_of("a"), State.AVAILABLE, After(5_000), Edits(held=False))
    answer = rig.ask(move)
    if state in (State.SCHEDULED, State.BLOCKED, State.COMPLETED):
        assert isinstance(answer, Refused)
        return
    assert isinstance(answer, Done)
    assert (rig.state("a"), rig.job("a").due) == (State.SCHEDULED, rig.now + 5_000)
    rig.advance(5_000)
    sweep(rig)
    assert rig.claim_names() == ["a"]


@pytest.mark.parametrize("level", sorted(EventLevel))
def test_a_redrive_may_be_due_later_at_every_event_level(rig: Rig, level: EventLevel):
    """INV-14."""
    rig.do(add("a", events=level), MoveJob(key_of("a"), State.DEAD))
    rig.move("a", State.AVAILABLE, due=After(1_000))
    assert rig.state("a") is State.SCHEDULED


def test_a_move_of_nobody_is_refused(rig: Rig):
    assert rig.refused(MoveJob(key_of("a"), State.DEAD)).why == "there is no such job"


@pytest.mark.capability("P10")
def test_a_pending_job_is_invisible_until_it_is_promoted(rig: Rig):
    rig.do(add("a", held=True))
    assert rig.claim(n=5) == []
    rig.refused(MoveJob(key_of("a"), State.AVAILABLE))
    rig.refused(MoveJob(key_of("a"), State.SCHEDULED, After(5)))
    rig.move("a", State.AVAILABLE, Edits(held=False))
    assert rig.claim_names(n=5) == ["a"]


def test_a_job_that_is_promoted_before_its_time_is_due_now(rig: Rig):
    """INV-28: not in a far future, behind all that became due since."""
    rig.do(add("early", due=After(86_400_000)), add("held", due=After(86_400_000), held=True))
    rig.move("early", State.AVAILABLE)
    rig.move("held", State.AVAILABLE, Edits(held=False))
    rig.advance(1)
    rig.do(add("later"))
    assert rig.claim_names(n=5) == ["early", "held", "later"]


@pytest.mark.parametrize("to", [State.AVAILABLE, State.SCHEDULED, State.WAITING, State.QUARANTINED, *NOWHERE])
def test_the_end_of_a_lease_leaves_nothing_of_it(rig: Rig, to: State):
    """INV-5, INV-6."""
    job = rig.start("a", needs="c")
    assert rig.counter("c") == (1, 0)
    assert isinstance(rig.finish(job, to, "released", reason="because"), Done)
    after = rig.job("a")
    assert (after.holder, after.lease_until, after.claimed_at, after.cap_at, after.holds) == ("", 0, 0, 0, ())
    assert (after.fence, after.last_fence, after.last_end) == (job.fence + 1, job.fence, "released")
    assert after.ends[-1] == End(1, "released", job.claimed_at, rig.now, "h")
    assert after.reason == "because"
    assert rig.counter("c") == (0, 0)


def test_the_row_keeps_its_last_ten_ends(rig: Rig):
    rig.do(add("a"))
    for attempt in range(1, 14):
        job = rig.take()
        assert job.attempt == attempt
        rig.advance(1)
        rig.finish(job, State.AVAILABLE, "released")
    assert [end.attempt for end in rig.job("a").ends] == list(range(4, 14))


@pytest.mark.parametrize("level", sorted(EventLevel))
@pytest.mark.parametrize("keep", [Keep(), Keep(completed=NEVER), Keep(completed=0)])
def test_a_completion_by_the_shortest_way_is_a_completion(rig: Rig, level: EventLevel, keep: Keep):
    """INV-14, INV-15, INV-25: alone under its lease, or in a group that has more to say."""
    rig.declare({"ceiling": Ceiling(1), "rate": Rate(9, 1_000)})
    jobs: list[dict] = [
        {},
        {"needs": "ceiling"},
        {"needs": "rate"},
        {"slots": ("u:x", "id:x")},
        {"tags": ("x",), "watched": True, "tenant": "t", "stride": 500, "priority": 3},
    ]
    for fields in jobs:
        for edits in (Edits(), Edits(result=b"1", ext=b"e"), Edits(failures=2)):
            rig.advance(2_000)
            ways = [
                completed(rig, edits, *more, events=level, keep=keep, **fields)
                for more in ((), (STILL_RUNS,))
            ]
            assert ways[0] == ways[1]
            assert (ways[0][0] is None) is (keep.completed == 0)


STILL_RUNS = InState(key_of("a"), (State.RUNNING,))


def completed(rig: Rig, edits: Edits, *more: Guard, **fields) -> tuple[Job | None, list[Event]]:
    """The row and the log of a completion, without what must differ between two lives."""
    rig.do(add("a", ends=(End(1, "failed", 1, 2),), **fields))
    job = rig.take()
    rig.do(EditJob(job.id, Edits(cancel_requested=True)))
    before = len(rig.events())
    end = end_of(job, "completed", "none")
    move = MoveJob(job.id, State.COMPLETED, After(9), edits, end, "so", by="h")
    assert rig.ask(move, given=[Held(job.id, job.fence, "completed"), *more]) == Done()
    told = [replace(event, pos=0, data=b"") for event in rig.events()[before:]]
    row = rig.find("a")
    if row is None:
        return None, told
    rig.do(DropJob(job.id))
    assert (row.fence, row.last_fence) == (job.fence + 1, job.fence)
    return replace(row, fence=0, last_fence=0, pass_=0), told


@pytest.mark.capability("A9")
def test_a_job_that_is_given_back_is_charged_with_nothing_and_keeps_its_place(rig: Rig):
    """INV-11."""
    rig.do(add("a"), add("b"))
    job = rig.take()
    rig.advance(10)
    given_back = MoveJob(job.id, State.AVAILABLE, edits=Edits(attempt=job.attempt - 1), refund=True)
    rig.do(given_back, given=[Held(job.id, job.fence)])
    assert rig.job("a").attempt == 0
    assert rig.claim_names(n=2) == ["a", "b"]


@pytest.mark.capability("U3")
@pytest.mark.parametrize("to", [State.AVAILABLE, State.SCHEDULED])
def test_a_cancel_that_was_acknowledged_is_not_lost_to_a_worker_that_lets_go_first(rig: Rig, to: State):
    """INV-21: the request lies in the row, whether or not the holder has seen it."""
    job = rig.start("a")
    rig.do(EditJob(job.id, Edits(cancel_requested=True)))
    assert isinstance(rig.finish(job, to, "failed", due=After(5)), Done)
    assert (rig.state("a"), rig.job("a").reason) == (State.CANCELLED, "cancelled")
    assert not rig.job("a").cancel_requested


@pytest.mark.capability("U3")
def test_a_job_that_split_before_it_saw_the_cancel_ends_with_its_children(rig: Rig):
    """INV-21."""
    job = rig.start("a")
    rig.do(EditJob(job.id, Edits(cancel_requested=True)))
    assert isinstance(rig.finish(job, State.WAITING, "split"), Done)
    assert (rig.state("a"), rig.job("a").cancel_requested) == (State.CANCELLED, False)


def test_a_completion_beats_a_cancel_that_came_too_late(rig: Rig):
    """INV-2."""
    job = rig.start("a")
    rig.do(EditJob(job.id, Edits(cancel_requested=True)))
    rig.complete(job)
    assert (rig.state("a"), rig.job("a").cancel_requested) == (State.COMPLETED, False)


# EditJob ----------------------------------------------------------------------------------------------------


def test_an_edit_changes_what_it_names_and_nothing_else(rig: Rig):
    rig.do(add("a", payload=b"p", priority=1, tags=("x",)))
    before = rig.job("a")
    rig.do(EditJob(key_of("a"), Edits(payload=b"q", tags=("y", "z"), max_attempts=3)))
    after = rig.job("a")
    assert (after.payload, after.tags, after.max_attempts) == (b"q", ("y", "z"), 3)
    assert (after.priority, after.state, after.fence, after.due) == (
        1,
        before.state,
        before.fence,
        before.due,
    )


def test_an_edited_priority_changes_the_place_in_the_line(rig: Rig):
    rig.do(add("a"), add("b"))
    rig.do(EditJob(key_of("b"), Edits(priority=1)))
    assert rig.claim_names(n=2) == ["b", "a"]


def test_an_archived_job_is_not_edited(rig: Rig):
    """INV-2."""
    rig.bury("a")
    refused = rig.refused(EditJob(key_of("a"), Edits(payload=b"x")))
    assert refused.job is not None
    assert refused.job.state is State.DEAD
    assert rig.refused(EditJob(key_of("b"), Edits())).job is None


def test_an_edited_due_time_moves_a_scheduled_job_and_no_other(rig: Rig):
    """INV-13."""
    rig.do(add("a", due=After(1_000)), add("b"))
    rig.do(EditJob(key_of("a"), Edits(due=After(9_000))), EditJob(key_of("b"), Edits(due=After(9_000))))
    assert (rig.job("a").due, rig.job("b").due) == (rig.now + 9_000, rig.now)
    rig.do(EditJob(key_of("a"), Edits(due=rig.now)))
    assert rig.state("a") is State.AVAILABLE
    assert rig.claim_names(n=2) == ["a", "b"]


@pytest.mark.capability("W2")
def test_a_heartbeat_moves_the_lease_but_never_past_its_cap(rig: Rig):
    """INV-9."""
    rig.do(add("a"))
    job = rig.take(cap_ms=50_000)
    assert (job.lease_until, job.cap_at) == (rig.now + LEASE, rig.now + 50_000)
    for _ in range(4):
        rig.advance(10_000)
        rig.do(EditJob(job.id, Edits(lease=After(LEASE))), given=[Held(job.id, job.fence)])
        assert rig.job("a").lease_until == min(rig.now + LEASE, job.cap_at)
    rig.advance(10_000)
    rig.refused(EditJob(job.id, Edits(lease=After(LEASE))), given=[Held(job.id, job.fence)])


def test_a_cap_below_the_lease_bounds_the_first_lease_too(rig: Rig):
    """INV-9."""
    rig.do(add("a"))
    assert rig.take(cap_ms=100).lease_until == rig.now + 100
