"""Groups: all or nothing, in order, each for itself; and repeats of a call whose reply was lost."""

from typing import Any

import pytest

from tessera.model.changes import (
    AtVersion,
    Count,
    Done,
    DropJob,
    Edge,
    EditJob,
    Edits,
    Free,
    Group,
    Held,
    InState,
    Link,
    LogEvent,
    MoveJob,
    PublishBlob,
    PutRecord,
    Refused,
    TakeSlot,
)
from tessera.model.policy import POLICY_SPACE
from tessera.model.states import State
from tests.conformance.rig import Rig, add, end_of, key_of

DAY = 86_400_000


@pytest.mark.capability("W9")
def test_a_group_whose_last_change_is_impossible_leaves_no_trace(rig: Rig):
    """INV-19, INV-33: over queue, records, slots, counters, events, edges and policy."""
    rig.do(add("parent"), add("child", held=True), add("running"), Count("~c", 2))
    job = rig.take()
    rig.refused(
        add("new"),
        MoveJob(job.id, State.COMPLETED),
        EditJob(key_of("child"), Edits(payload=b"x")),
        Link(Edge(key_of("parent"), key_of("child"))),
        TakeSlot("t:x", key_of("child"), rig.now + 5),
        Count("~c", 5),
        PutRecord("notes", "n", b"1"),
        PutRecord(POLICY_SPACE, "p", b"1"),
        LogEvent("said", job=key_of("child")),
        DropJob(key_of("nobody")),
    )
    assert rig.counter("~c") == (2, 0)
    assert rig.ask(given=[Free("t:x")]) == Done()
    assert rig.run(rig.store.history("notes", "n")) == []


def test_a_group_is_taken_back_also_when_it_made_the_store_look_at_its_edges(rig: Rig):
    """INV-19: what a query inside the group had to see is not left behind."""
    rig.do(add("p1"), add("p2"))
    rig.do(add("child", after=[Edge(key_of("p1"), key_of("child")), Edge(key_of("p2"), key_of("child"))]))
    rig.refused(
        add("new"),
        MoveJob(key_of("child"), State.CANCELLED),
        MoveJob(key_of("p1"), State.CANCELLED),
        DropJob(key_of("nobody")),
    )
    assert rig.job("child").open == 2


def test_a_refused_group_harms_none_of_its_neighbours(rig: Rig):
    """INV-7: one stale worker never fails the completions of the others."""
    rig.do(add("a"), add("b"), add("c"))
    a, b, c = rig.claim(n=3)

    def complete(job, fence):
        return Group(
            (Held(job.id, fence, "completed"),),
            (MoveJob(job.id, State.COMPLETED, end=end_of(job, "completed")),),
        )

    answers = rig.commit(complete(a, a.fence), complete(b, b.fence - 1), complete(c, c.fence))
    assert answers[0] == answers[2] == Done()
    assert isinstance(answers[1], Refused)
    assert rig.states("a", "b", "c") == [State.COMPLETED, State.RUNNING, State.COMPLETED]


def test_the_same_job_twice_in_one_call_is_finished_once(rig: Rig):
    """INV-2, INV-3: later groups see what earlier ones did."""
    job = rig.start("a")
    completed = Group(
        (Held(job.id, job.fence, "completed"),),
        (MoveJob(job.id, State.COMPLETED, end=end_of(job, "completed")),),
    )
    aborted = Group(
        (Held(job.id, job.fence, "aborted"),), (MoveJob(job.id, State.DEAD, end=end_of(job, "aborted")),)
    )
    first, second, third = rig.commit(completed, completed, aborted)
    assert (first, second) == (Done(), Done(replayed=True))
    assert isinstance(third, Refused)
    assert rig.told("a").count("completed") == 1


def test_later_groups_see_jobs_slots_records_and_edges_of_earlier_ones(rig: Rig):
    """INV-17, INV-19, INV-20."""
    answers = rig.commit(
        Group((Free("u:x"),), (add("a", slots=("u:x",)), PutRecord("notes", "n", b"1"))),
        Group((Free("u:x"),), (add("b"),)),
        Group((AtVersion("notes", "n", 1),), (PutRecord("notes", "n", b"2"),)),
        Group((AtVersion("notes", "n", 1),), (PutRecord("notes", "n", b"3"),)),
        Group((), (add("c", after=[Edge(key_of("a"), key_of("c"))]),)),
        Group((InState(key_of("a"), (State.AVAILABLE,)),), (MoveJob(key_of("a"), State.CANCELLED),)),
        Group((Free("u:x"),), (add("d", slots=("u:x",)),)),
    )
    assert [isinstance(answer, Done) for answer in answers] == [True, False, True, False, True, True, True]
    assert rig.states("a", "b", "c", "d") == [State.CANCELLED, None, State.CANCELLED, State.AVAILABLE]


def test_changes_of_a_group_see_those_before_them(rig: Rig):
    rig.do(
        add("a"),
        EditJob(key_of("a"), Edits(priority=4)),
        MoveJob(key_of("a"), State.CANCELLED),
        PutRecord("notes", "n", b"1"),
    )
    assert (rig.state("a"), rig.job("a").priority) == (State.CANCELLED, 4)


def test_an_error_inside_a_call_writes_nothing_of_it(rig: Rig):
    """INV-33: also of what a query inside it had to see."""
    rig.do(add("p"), add("c", after=[Edge(key_of("p"), key_of("c"))]))
    before = rig.dump()
    nonsense: Any = "no change"
    with pytest.raises(AssertionError):
        rig.commit(
            Group((), (add("new"), PutRecord("notes", "n", b"1"))),
            Group((), (MoveJob(key_of("c"), State.CANCELLED), Count("~c", 1))),
            Group((), (nonsense,)),
        )
    assert rig.dump() == before
    assert rig.counter("~c") == (0, 0)
    assert rig.claim_names(n=9) == ["p"]


def test_an_empty_call_has_no_answers(rig: Rig):
    assert rig.commit() == []


@pytest.mark.capability("W9")
def test_a_call_repeated_with_its_request_id_gets_the_first_answers_and_does_nothing(rig: Rig):
    """INV-3: whatever the answers were, refusals too."""
    rig.do(add("taken", slots=("u:x",)))
    groups = (
        Group((), (Count("~c", 1), LogEvent("said"))),
        Group((Free("u:x"),), (add("b"),)),
        Group((AtVersion("notes", "n", 0),), (PutRecord("notes", "n", b"1"),)),
        Group((InState(key_of("nobody"), (State.DEAD, State.RUNNING)),), (add("c"),)),
    )
    first = rig.commit(*groups, request_id="r-1")
    before = rig.dump()
    rig.advance(DAY - 1)
    assert rig.commit(*groups, request_id="r-1") == first
    assert rig.dump() == before
    assert rig.counter("~c") == (1, 0)


def test_a_request_id_answers_for_itself_and_for_a_day(rig: Rig):
    """INV-3."""
    count = Group((), (Count("~c", 1),))
    rig.commit(count, request_id="r-1")
    rig.commit(count, request_id="r-2")
    assert rig.counter("~c") == (2, 0)
    rig.advance(DAY)
    rig.commit(count, request_id="r-1")
    assert rig.counter("~c") == (3, 0)


def test_a_repeated_request_survives_its_job(rig: Rig):
    """INV-3: the answer is stored, not derived again."""
    first = rig.commit(Group((), (add("a"),)), request_id="r-1")
    rig.do(DropJob(key_of("a")))
    assert rig.commit(Group((), (add("a"),)), request_id="r-1") == first
    assert rig.find("a") is None


def test_an_upload_is_published_once_and_never_replaced_by_nothing(rig: Rig):
    """INV-19: two groups of one call publish the same upload."""
    rig.run(rig.store.stage("up", 0, b"data"))
    first, second = rig.commit(
        Group((), (PublishBlob("up", b"1" * 32, 4),)),
        Group((), (PublishBlob("up", b"2" * 32, 4), PutRecord("notes", "n", b""))),
    )
    assert first == Done()
    assert isinstance(second, Refused)
    assert rig.blob(b"1" * 32) == b"data"
    assert rig.record("notes", "n") is None


def test_a_hundred_groups_are_one_call_and_keep_their_order(rig: Rig):
    answers = rig.commit(*(Group((), (add(f"j{number:03}"),)) for number in range(100)))
    assert answers == [Done()] * 100
    assert rig.claim_names(n=100) == [f"j{number:03}" for number in range(100)]
