"""Edges: who waits for whom, and what an end means to those who wait."""

from itertools import pairwise

import pytest

from tessera.model.changes import (
    After,
    Change,
    DropJob,
    Edge,
    EditJob,
    Edits,
    Group,
    Held,
    Link,
    MoveJob,
    Refused,
    SettleEdges,
)
from tessera.model.job import Keep
from tessera.model.states import State
from tests.conformance.rig import LEASE, Rig, add, end_of, key_of, name_of, sweep

KEPT = Keep()
MANY = 1_000
"""So many edges are settled with an end; what is above goes on by a follow-up."""


def edge(parent: str, child: str, on: str = "completed", otherwise: str = "cancel") -> Edge:
    return Edge(key_of(parent), key_of(child), on, otherwise)


def waits(child: str, *parents: str, on: str = "completed", otherwise: str = "cancel", **fields):
    return add(child, after=[edge(parent, child, on, otherwise) for parent in parents], **fields)


def split(rig: Rig, job, *children: str, otherwise: str = "cancel", on: str = "completed") -> None:
    """The group by which a handler splits its job."""
    changes: list[Change] = [add(child, parent=job.id) for child in children]
    changes.append(MoveJob(job.id, State.WAITING, end=end_of(job, "split")))
    changes += [Link(edge(child, name_of(job.id), on, otherwise)) for child in children]
    rig.do(*changes, given=[Held(job.id, job.fence, "split")])


def drain(rig: Rig) -> list[str]:
    """Run all that may run, one after the other."""
    order = []
    while jobs := rig.claim():
        order.append(name_of(jobs[0].id))
        rig.complete(jobs[0])
    return order


# Waiting ----------------------------------------------------------------------------------------------------


@pytest.mark.capability("W17")
def test_a_job_waits_for_all_its_parents(rig: Rig):
    """INV-20."""
    rig.do(add("p1"), add("p2"), waits("c", "p1", "p2"))
    assert (rig.state("c"), rig.job("c").open) == (State.PENDING, 2)
    assert sorted(rig.run(rig.store.edges(key_of("c")))) == [
        (key_of("p1"), "completed"),
        (key_of("p2"), "completed"),
    ]
    first, second = rig.claim(n=9)
    rig.complete(second)
    assert rig.claim(n=9) == []
    assert rig.run(rig.store.edges(key_of("c"))) == [(key_of("p1"), "completed")]
    rig.complete(first)
    assert rig.claim_names(n=9) == ["c"]


def test_a_job_that_waits_cannot_be_pushed_past_its_parents(rig: Rig):
    """INV-20: neither now nor with a due time."""
    rig.do(add("p"), waits("c", "p"))
    for to, due in ((State.AVAILABLE, 0), (State.AVAILABLE, After(50)), (State.SCHEDULED, After(50))):
        assert "waits for 1 other job" in rig.refused(MoveJob(key_of("c"), to, due, Edits(held=False))).why


def test_a_delayed_job_that_waits_keeps_its_due_time(rig: Rig):
    """INV-13."""
    rig.do(add("p"), waits("c", "p", due=After(9_000)))
    rig.complete(rig.take())
    assert rig.state("c") is State.SCHEDULED
    rig.advance(9_000)
    sweep(rig)
    assert rig.claim_names() == ["c"]


def test_a_held_job_waits_for_its_promote_after_its_parents_too(rig: Rig):
    rig.do(add("p"), waits("c", "p", held=True))
    rig.complete(rig.take())
    assert (rig.state("c"), rig.job("c").open) == (State.PENDING, 0)
    rig.move("c", State.AVAILABLE, Edits(held=False))
    assert rig.claim_names() == ["c"]


def test_a_held_job_that_is_let_go_after_its_last_parent_ended_is_not_forgotten(rig: Rig):
    """INV-20: whoever lets it go may have read the row while it still waited."""
    rig.do(add("p"), waits("c", "p", held=True))
    rig.complete(rig.take())
    rig.do(EditJob(key_of("c"), Edits(held=False)))
    assert rig.claim_names() == ["c"]


def test_a_parent_that_completed_long_ago_satisfies_at_once(rig: Rig):
    """INV-20."""
    rig.complete(rig.start("p"))
    rig.do(waits("c", "p"))
    assert rig.claim_names() == ["c"]


@pytest.mark.parametrize("order", [("bad", "live"), ("live", "bad")])
def test_a_parent_that_ended_badly_long_ago_cancels_at_once_wherever_it_is_named(
    rig: Rig, order: tuple[str, str]
):
    """INV-20."""
    rig.bury("bad")
    rig.do(add("live"), waits("c", *order))
    assert (rig.state("c"), rig.job("c").reason) == (State.CANCELLED, "parent_dead")


@pytest.mark.parametrize("order", [("done", "live"), ("live", "done")])
def test_a_split_may_name_a_child_that_ended_before_it(rig: Rig, order: tuple[str, str]):
    """INV-20, INV-21: a handler that splits again under the same ids finds some of them done."""
    rig.complete(rig.start("done"))
    rig.do(add("live", priority=-1))
    job = rig.start("j")
    links = [Link(edge(child, "j")) for child in order]
    split_move = MoveJob(job.id, State.WAITING, end=end_of(job, "split"))
    rig.do(split_move, *links, given=[Held(job.id, job.fence, "split")])
    assert (rig.state("j"), rig.job("j").open) == (State.WAITING, 1)
    assert drain(rig) == ["live", "j"]


@pytest.mark.parametrize("order", [("bad", "live"), ("live", "bad")])
def test_a_split_ends_with_a_child_that_ended_badly_before_it_wherever_it_is_named(
    rig: Rig, order: tuple[str, str]
):
    """INV-21."""
    rig.bury("bad")
    rig.do(add("live", priority=-1))
    job = rig.start("j")
    links = [Link(edge(child, "j", otherwise="dead")) for child in order]
    split_move = MoveJob(job.id, State.WAITING, end=end_of(job, "split"))
    rig.do(split_move, *links, given=[Held(job.id, job.fence, "split")])
    assert (rig.state("j"), rig.job("j").reason) == (State.DEAD, "child_dead")


@pytest.mark.parametrize("keep", [KEPT, Keep(cancelled=0)])
def test_a_chain_behind_a_parent_that_ended_badly_is_cancelled_in_the_call_that_brings_it(
    rig: Rig, keep: Keep
):
    """INV-20: also where no row of a cancelled job is kept."""
    rig.bury("bad")
    rig.do(waits("c", "bad", keep=keep), waits("d", "c"))
    assert rig.state("d") is State.CANCELLED


@pytest.mark.parametrize("parents", [("nobody",), ("p", "nobody"), ("bad", "nobody"), ("c",)])
def test_an_unknown_parent_or_itself_refuses_the_job(rig: Rig, parents: tuple[str, ...]):
    """INV-33."""
    rig.do(add("p"))
    rig.bury("bad")
    rig.refused(waits("c", *parents))
    assert rig.find("c") is None


def test_the_same_parent_named_twice_is_one_edge(rig: Rig):
    """INV-20."""
    rig.do(add("p"), waits("c", "p", "p"))
    assert rig.job("c").open == 1
    assert drain(rig) == ["p", "c"]


def test_only_a_pending_or_waiting_job_may_be_made_to_wait(rig: Rig):
    """INV-20: no edge into what may have started."""
    rig.do(add("p"), add("c"))
    rig.refused(Link(edge("p", "c")))
    rig.refused(Link(edge("p", "nobody")))


@pytest.mark.parametrize(
    "on,otherwise,end,then",
    [
        ("completed", "cancel", State.COMPLETED, State.AVAILABLE),
        ("completed", "cancel", State.DEAD, State.CANCELLED),
        ("completed", "cancel", State.CANCELLED, State.CANCELLED),
        ("completed", "dead", State.DEAD, State.DEAD),
        ("completed", "hold", State.DEAD, State.PENDING),
        ("completed", "hold", State.CANCELLED, State.PENDING),
        ("completed", "go", State.DEAD, State.AVAILABLE),
        ("ended", "cancel", State.COMPLETED, State.AVAILABLE),
        ("ended", "cancel", State.DEAD, State.AVAILABLE),
        ("ended", "dead", State.CANCELLED, State.AVAILABLE),
    ],
)
def test_what_an_end_means_to_a_dependant(rig: Rig, on: str, otherwise: str, end: State, then: State):
    """INV-20."""
    rig.do(add("p"), waits("c", "p", on=on, otherwise=otherwise))
    rig.finish(rig.take(), end, end.value)
    assert rig.state("c") is then
    if then in (State.DEAD, State.CANCELLED):
        assert rig.job("c").reason == f"parent_{end}"


def test_a_chain_is_cancelled_to_its_end_however_long(rig: Rig):
    """INV-20."""
    names = [f"n{number:03}" for number in range(300)]
    rig.do(add(names[0]), *(waits(child, parent) for parent, child in pairwise(names)))
    rig.move(names[0], State.CANCELLED)
    assert set(rig.states(*names)) == {State.CANCELLED}


def test_a_diamond_runs_in_order_and_each_once(rig: Rig):
    """INV-20."""
    rig.do(add("z-root"), waits("b", "z-root"), waits("a", "z-root"), waits("0-end", "a", "b"))
    assert drain(rig) == ["z-root", "a", "b", "0-end"]


@pytest.mark.capability("R6")
def test_a_held_dependant_goes_on_when_its_parent_was_redriven_and_completed(rig: Rig):
    """INV-20."""
    rig.do(add("p"), waits("c", "p", otherwise="hold"))
    rig.finish(rig.take(), State.DEAD, "aborted")
    rig.move("p", State.AVAILABLE)
    assert rig.state("c") is State.PENDING
    assert drain(rig) == ["p", "c"]


@pytest.mark.parametrize("gone", ["dropped", "evicted", "never kept"])
def test_nobody_is_held_for_a_parent_that_will_never_be_redriven(rig: Rig, gone: str):
    """INV-31: its row is gone, so those on hold see the end."""
    keep = Keep(dead=0) if gone == "never kept" else Keep(dead=1_000)
    rig.do(add("p", keep=keep), waits("c", "p", otherwise="hold"), waits("d", "c"))
    rig.move("p", State.DEAD)
    if gone == "dropped":
        rig.do(DropJob(key_of("p")))
    elif gone == "evicted":
        assert rig.state("c") is State.PENDING
        rig.advance(1_000)
        sweep(rig)
    assert rig.find("p") is None
    assert rig.states("c", "d") == [State.CANCELLED] * 2


@pytest.mark.capability("R10")
@pytest.mark.parametrize("on,then", [("completed", State.CANCELLED), ("ended", State.AVAILABLE)])
def test_a_discarded_parent_counts_as_cancelled(rig: Rig, on: str, then: State):
    """INV-20."""
    rig.do(add("p"), waits("c", "p", on=on))
    rig.do(DropJob(key_of("p")))
    assert rig.state("c") is then


def test_a_dependant_that_is_cancelled_itself_waits_for_nobody_and_is_not_run(rig: Rig):
    """INV-20."""
    rig.do(add("p1"), add("p2"), waits("c", "p1", "p2"))
    rig.move("c", State.CANCELLED)
    assert drain(rig) == ["p1", "p2"]
    assert rig.state("c") is State.CANCELLED


# Split and join ---------------------------------------------------------------------------------------------


@pytest.mark.capability("W6")
def test_a_join_fires_once_when_its_last_child_is_done(rig: Rig):
    """INV-20, INV-21."""
    job = rig.start("j")
    split(rig, job, "c1", "c2", "c3")
    assert (rig.state("j"), rig.job("j").open) == (State.WAITING, 3)
    for child in rig.claim(n=9):
        assert rig.state("j") is State.WAITING
        rig.complete(child)
    [joined] = rig.claim(n=9)
    assert (joined.id, joined.attempt) == (job.id, 2)
    rig.complete(joined)
    assert rig.claim(n=9) == []
    assert rig.told("j").count("became_available") == 1


def test_a_repeated_end_of_a_child_fires_no_join_twice(rig: Rig):
    """INV-3, INV-20."""
    split(rig, rig.start("j"), "c1", "c2")
    first, second = rig.claim(n=2)
    rig.complete(first)
    rig.finish(first)
    assert rig.job("j").open == 1
    rig.complete(second)
    rig.finish(second)
    assert rig.claim_names(n=9) == ["j"]


def test_a_failed_child_takes_the_join_and_its_siblings_with_it(rig: Rig):
    """INV-21: no orphan stays runnable; one that runs is asked to stop."""
    split(rig, rig.start("j"), "c1", "c2", "c3", otherwise="dead")
    first, second = rig.claim(n=2)
    rig.finish(first, State.DEAD, "aborted")
    assert (rig.state("j"), rig.job("j").reason) == (State.DEAD, "child_dead")
    assert rig.states("c2", "c3") == [State.RUNNING, State.CANCELLED]
    assert rig.job("c2").cancel_requested
    rig.advance(LEASE)
    sweep(rig)
    assert rig.state("c2") is State.CANCELLED
    assert isinstance(rig.finish(second), Refused)
    assert rig.claim(n=9) == []


def test_an_orphan_whose_run_fails_is_not_run_again(rig: Rig):
    """INV-21."""
    split(rig, rig.start("j"), "c1", "c2")
    first, second = rig.claim(n=2)
    rig.move("j", State.CANCELLED)
    rig.finish(first, State.AVAILABLE, "failed")
    rig.finish(second, State.AVAILABLE, "released")
    assert rig.states("j", "c1", "c2") == [State.CANCELLED] * 3


def test_a_join_may_go_on_without_a_child_that_died(rig: Rig):
    """INV-20."""
    split(rig, rig.start("j"), "c1", "c2", otherwise="go")
    first, second = rig.claim(n=2)
    rig.finish(first, State.DEAD, "aborted")
    assert rig.state("j") is State.WAITING
    rig.complete(second)
    assert rig.claim_names(n=9) == ["j"]


@pytest.mark.capability("U3")
def test_a_cancelled_parent_reaches_every_descendant(rig: Rig):
    """INV-21: over two levels of splits."""
    split(rig, rig.start("j"), "c1", "c2")
    [inner] = rig.claim()
    split(rig, inner, "d1", "d2")
    rig.move("j", State.CANCELLED)
    assert set(rig.states("j", "c1", "c2", "d1", "d2")) == {State.CANCELLED}


def test_a_job_that_splits_although_it_was_asked_to_stop_is_cancelled_with_its_children(rig: Rig):
    """INV-21: the handler may not have seen the request yet."""
    job = rig.start("j")
    rig.do(EditJob(job.id, Edits(cancel_requested=True)))
    split(rig, job, "c1", "c2")
    assert rig.states("j", "c1", "c2") == [State.CANCELLED] * 3
    assert rig.claim(n=9) == []


def test_a_dropped_parent_takes_its_children_with_it(rig: Rig):
    """INV-21."""
    split(rig, rig.start("j"), "c1", "c2")
    rig.do(DropJob(key_of("j")))
    assert rig.states("c1", "c2") == [State.CANCELLED] * 2


def test_a_dependant_outside_the_split_does_not_end_with_the_join(rig: Rig):
    """INV-21: only children of the split are its own."""
    rig.do(add("other"))
    job = rig.start("0j")
    rig.do(MoveJob(job.id, State.WAITING), Link(edge("other", "0j")))
    rig.move("0j", State.CANCELLED)
    assert rig.claim_names() == ["other"]


def test_a_parked_job_without_children_waits_until_it_is_resumed(rig: Rig):
    """The slot is free meanwhile."""
    job = rig.start("a")
    rig.finish(job, State.WAITING, "parked")
    assert rig.claim(n=9) == []
    rig.move("a", State.AVAILABLE)
    assert rig.claim_names() == ["a"]


# Very many --------------------------------------------------------------------------------------------------


def fan_out(rig: Rig, count: int, *, keep: Keep = KEPT, on="completed", otherwise="cancel") -> list[str]:
    names = [f"c{number:05}" for number in range(count)]
    rig.do(add("p", keep=keep))
    rig.commit(*(Group((), (waits(name, "p", on=on, otherwise=otherwise),)) for name in names))
    return names


def follow_ups(rig: Rig) -> int:
    """Do what follow-ups ask for, as a duty does; how many there were."""
    done = 0
    while due := [record for record in rig.due().records if record.space == "~followup"]:
        done += 1
        assert done < 10, "a follow-up makes no progress"
        rig.do(*(SettleEdges(key_of("p")) for _ in due))
    return done


@pytest.mark.parametrize("keep", [KEPT, Keep(completed=0)], ids=["kept", "not kept"])
def test_more_than_a_thousand_dependants_are_settled_by_a_follow_up(rig: Rig, keep: Keep):
    """INV-20, INV-31: also when nothing of the parent is kept."""
    names = fan_out(rig, 2 * MANY + 50, keep=keep)
    rig.complete(rig.take())
    assert rig.counts()["q", State.AVAILABLE] == MANY
    assert follow_ups(rig) == 2
    assert rig.counts()["q", State.AVAILABLE] == len(names)
    assert rig.record("~followup", key_of("p").hex()) is None


def test_settling_again_what_is_settled_changes_nothing(rig: Rig):
    """INV-3, INV-20."""
    rig.do(add("p"), waits("c", "p"), waits("d", "p", otherwise="hold"))
    rig.move("p", State.DEAD)
    before = rig.dump()
    rig.do(SettleEdges(key_of("p")), SettleEdges(key_of("nobody")))
    assert rig.dump() == before


def test_a_follow_up_gets_past_those_that_are_on_hold(rig: Rig):
    """INV-31: a thousand held ones do not hide the one behind them."""
    fan_out(rig, MANY + 10, otherwise="hold")
    rig.do(waits("z", "p"))
    rig.move("p", State.CANCELLED)
    assert rig.state("z") is State.PENDING
    assert follow_ups(rig) == 1
    assert rig.state("z") is State.CANCELLED
    rig.move("p", State.AVAILABLE)
    rig.complete(rig.take())
    follow_ups(rig)
    assert rig.counts()["q", State.AVAILABLE] == MANY + 10


def test_a_follow_up_of_a_parent_that_was_redriven_leaves_its_dependants_alone(rig: Rig):
    """INV-20."""
    fan_out(rig, MANY + 5, on="completed", otherwise="cancel")
    rig.move("p", State.CANCELLED)
    rig.move("p", State.AVAILABLE)
    assert follow_ups(rig) == 1
    assert rig.counts()["q", State.PENDING] == 5
    rig.complete(rig.take())
    assert rig.counts()["q", State.AVAILABLE] == 5
