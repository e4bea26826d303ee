"""Counters at the gate: what is never passed, what always comes back, and who is woken when."""

import pytest

from tessera.model.changes import After, Change, Count, DropJob, EditJob, Edits, Held, MoveJob
from tessera.model.job import Job, Need
from tessera.model.policy import Ceiling, QueuePolicy, Rate
from tessera.model.states import FINAL, State
from tests.conformance.rig import LEASE, Rig, add, key_of, name_of, sweep

WAYS_OUT = [State.AVAILABLE, State.SCHEDULED, State.WAITING, State.QUARANTINED, *sorted(FINAL)]


def jobs(prefix: str, count: int, needs="c", **fields):
    return [add(f"{prefix}{n}", needs=needs, **fields) for n in range(count)]


@pytest.mark.capability("A4")
def test_a_ceiling_is_never_passed(rig: Rig):
    """INV-25."""
    rig.declare({"c": Ceiling(3)})
    rig.do(*jobs("a", 8))
    running = rig.claim(n=8)
    assert len(running) == 3
    assert rig.claim(n=8, holder="other") == []
    assert rig.counter("c") == (3, 5)
    assert rig.job("a3").reason == "the counter c is full"
    rig.complete(running[0])
    assert len(rig.claim(n=8)) == 1
    assert rig.counter("c") == (3, 4)


@pytest.mark.parametrize("to", WAYS_OUT)
def test_units_come_back_on_every_way_out_of_running(rig: Rig, to: State):
    """INV-25: in the same commit, which wakes the next."""
    rig.declare({"c": Ceiling(1)})
    rig.do(*jobs("a", 2))
    job = rig.take(n=2)
    assert rig.state("a1") is State.BLOCKED
    rig.advance(1)
    rig.finish(job, to, "released", due=After(50) if to is State.SCHEDULED else After(0))
    assert rig.counter("c")[0] == 0
    assert rig.claim_names(n=2) == ["a1"]


def test_units_come_back_when_a_lease_lapses(rig: Rig):
    """INV-25, INV-8: a worker that dies leaks nothing."""
    rig.declare({"c": Ceiling(1)})
    rig.do(*jobs("a", 2))
    rig.take(n=2)
    rig.advance(LEASE - 1)
    sweep(rig)
    assert rig.claim(n=2) == []
    rig.advance(1)
    sweep(rig)
    assert rig.claim_names(n=2) == ["a1"]


def test_those_set_aside_are_woken_in_claim_order(rig: Rig):
    """INV-24: the order is kept while they wait."""
    rig.declare({"c": Ceiling(1)})
    rig.do(add("first", needs="c"))
    job = rig.take()
    rig.do(
        add("low", needs="c", priority=-1),
        add("mid1", needs="c"),
        add("mid2", needs="c"),
        add("high", needs="c", priority=1),
    )
    assert rig.claim(n=9) == []
    order = []
    for _ in range(4):
        rig.complete(job)
        job = rig.take(n=9)
        order.append(name_of(job.id))
    assert order == ["high", "mid1", "mid2", "low"]


def test_a_newcomer_does_not_overtake_those_set_aside(rig: Rig):
    """INV-24."""
    rig.declare({"c": Ceiling(1)})
    rig.do(*jobs("a", 2))
    job = rig.take(n=2)
    rig.complete(job)
    rig.advance(1)
    rig.do(add("0new", needs="c", priority=0))
    assert rig.claim_names(n=9) == ["a1"]
    assert rig.state("0new") is State.BLOCKED


def test_no_more_are_woken_than_units_are_free(rig: Rig):
    rig.declare({"c": Ceiling(2)})
    rig.do(*jobs("a", 6))
    first, _ = rig.claim(n=6)
    rig.complete(first)
    rig.wake()
    woken = [name for name in ("a2", "a3", "a4", "a5") if rig.state(name) is State.AVAILABLE]
    assert woken == ["a2"]


@pytest.mark.parametrize("leave", ["cancel", "drop", "bury", "reschedule"])
def test_a_woken_job_that_leaves_without_its_units_hands_the_wake_on(rig: Rig, leave: str):
    """INV-28: else those behind it sleep for ever."""
    rig.declare({"c": Ceiling(1)})
    rig.do(*jobs("a", 3))
    rig.complete(rig.take(n=3))
    rig.wake()
    assert rig.states("a1", "a2") == [State.AVAILABLE, State.BLOCKED]
    changes: dict[str, Change] = {
        "cancel": MoveJob(key_of("a1"), State.CANCELLED),
        "drop": DropJob(key_of("a1")),
        "bury": MoveJob(key_of("a1"), State.DEAD),
        "reschedule": MoveJob(key_of("a1"), State.SCHEDULED, After(9_000)),
    }
    rig.do(changes[leave])
    assert rig.claim_names(n=3) == ["a2"]


def test_a_woken_job_that_another_counter_refuses_hands_the_wake_on(rig: Rig):
    """INV-28."""
    rig.declare({"c": Ceiling(1), "d": Ceiling(1)})
    rig.do(add("c0", needs="c"), add("d0", needs="d"))
    holder_of_c, holder_of_d = rig.claim(n=2)
    rig.do(add("a", needs=(Need("c"), Need("d"))), add("b", needs="c"))
    assert rig.claim(n=9) == []
    assert rig.job("a").blocked_on == "c"
    rig.complete(holder_of_c)
    assert rig.claim_names(n=9) == [], "a was woken, and set aside again under d"
    assert rig.claim_names(n=9) == ["b"], "its promise went to b"
    assert rig.job("a").blocked_on == "d"
    rig.complete(holder_of_d)
    assert rig.claim_names(n=9) == [], "b holds c"


@pytest.mark.capability("A2")
def test_all_counters_of_a_job_or_none(rig: Rig):
    """INV-25: a job that lacks one takes nothing of the others."""
    rig.declare({"c": Ceiling(1), "d": Ceiling(5)})
    rig.do(add("a", needs="c"))
    rig.take()
    rig.do(add("b", needs=(Need("d", 2), Need("c", 1))))
    assert rig.claim(n=9) == []
    assert rig.counter("d") == (0, 0)
    assert rig.counter("c") == (1, 1)


@pytest.mark.capability("A3")
def test_a_weight_above_one_takes_and_gives_so_many_units(rig: Rig):
    """INV-25."""
    rig.declare({"c": Ceiling(5)})
    rig.do(add("a", needs=(Need("c", 3),)), add("b", needs=(Need("c", 3),)), add("d", needs=(Need("c", 2),)))
    first = rig.take(n=9)
    assert rig.counter("c") == (3, 2), "d would fit, but b came first"
    rig.complete(first)
    assert rig.claim_names(n=9) == ["b", "d"]
    assert rig.counter("c") == (5, 0)


def test_a_heavy_job_at_the_head_is_not_starved_by_light_ones(rig: Rig):
    """INV-24, INV-31."""
    rig.declare({"c": Ceiling(2)})
    rig.do(add("a0", needs="c"), add("a1", needs="c"), add("b", needs=(Need("c", 2),)), add("d", needs="c"))
    first, second = rig.claim(n=9)
    rig.complete(first)
    assert rig.claim(n=9) == []
    rig.complete(second)
    assert rig.claim_names(n=9) == ["b"]


def test_each_value_of_a_key_has_its_own_counter_under_the_names_policy(rig: Rig):
    """INV-25."""
    rig.declare({"account": Ceiling(1)})
    rig.do(*(add(f"{account}{n}", needs=f"account/{account}") for account in "xy" for n in (0, 1)))
    assert rig.claim_names(n=9) == ["x0", "y0"]
    assert rig.counter("account/x") == (1, 1)


@pytest.mark.capability("A15")
def test_a_counter_without_a_policy_limits_nothing_but_is_counted(rig: Rig):
    rig.do(*jobs("a", 50))
    assert len(rig.claim(n=50)) == 50
    assert rig.counter("c") == (50, 0)


@pytest.mark.capability("A14")
def test_a_changed_policy_and_a_new_kind_wake_in_the_order_of_the_keys(rig: Rig):
    """INV-28: every store brings the same jobs forward in the same order, whoever was set aside first."""
    rig.declare({"c": Ceiling(0), "d": Ceiling(0)})
    rig.do(*jobs("d", 1, needs="d"), *jobs("c", 1), add("y", kind="y"), add("x", kind="x"))
    assert rig.claim(n=9, kinds=frozenset({"work"})) == []
    before = len(rig.events())
    rig.declare({"c": Ceiling(1), "d": Ceiling(1)})
    assert len(rig.claim(n=9)) == 4
    woken = [name_of(event.job or b"") for event in rig.events()[before:] if event.what == "became_available"]
    assert woken == ["c0", "d0", "x", "y"]


@pytest.mark.capability("A14")
def test_a_changed_policy_wakes_those_it_gives_room(rig: Rig):
    """INV-25, INV-28: at the next claim, of whatever queue."""
    rig.declare({"c": Ceiling(1)})
    rig.do(*jobs("a", 5))
    assert len(rig.claim(n=5)) == 1
    rig.declare({"c": Ceiling(3)})
    assert rig.claim("other") == []
    assert rig.claim_names(n=5) == ["a1", "a2"]
    rig.declare({"c": Ceiling(2)})
    assert rig.claim(n=5) == []
    assert rig.counter("c") == (3, 2)


def test_a_lowered_ceiling_is_kept_by_those_already_woken(rig: Rig):
    """INV-25."""
    rig.declare({"c": Ceiling(2)})
    rig.do(*jobs("a", 4))
    for job in rig.claim(n=4):
        rig.complete(job)
    rig.wake()
    assert rig.states("a2", "a3") == [State.AVAILABLE] * 2
    rig.declare({"c": Ceiling(1)})
    assert rig.claim_names(n=4) == ["a2"]
    assert rig.counter("c") == (1, 1)


@pytest.mark.capability("A15")
@pytest.mark.parametrize("policy", [Ceiling(0), Rate(0, 1_000), Rate(0, 1_000, exact=True)])
def test_a_limit_of_zero_is_a_kill_switch(rig: Rig, policy):
    """INV-25, INV-26."""
    rig.declare({"c": policy})
    rig.do(*jobs("a", 2))
    rig.advance(10**8)
    assert rig.claim(n=2) == []
    sweep(rig)
    assert rig.claim(n=2) == []
    rig.declare({"c": Ceiling(1)})
    assert rig.claim_names(n=2) == ["a0"]


def test_a_removed_limit_lets_all_go(rig: Rig):
    rig.declare({"c": Ceiling(0)})
    rig.do(*jobs("a", 150))
    while rig.ask_claim(n=150).set_aside:
        pass
    rig.policy.counters.clear()
    rig.declare()
    assert len(rig.claim(n=150)) == 150


@pytest.mark.capability("R16")
def test_a_closed_counter_lets_nothing_start_until_it_opens(rig: Rig):
    """INV-13, INV-26."""
    rig.declare({"c": Ceiling(5)})
    rig.do(*jobs("a", 3))
    job = rig.take()
    rig.do(Count("c", close=After(10_000)), MoveJob(job.id, State.AVAILABLE), given=[Held(job.id, job.fence)])
    assert rig.claim(n=3) == []
    rig.advance(9_999)
    sweep(rig)
    assert rig.claim(n=3) == []
    rig.advance(1)
    assert rig.due().counters == ("c",)
    sweep(rig)
    assert rig.claim_names(n=3) == ["a0", "a1", "a2"]
    assert rig.job("a0").failures == 0


def test_a_counter_that_nobody_needs_is_forgotten(rig: Rig):
    """No row for every key that was ever used."""
    rig.declare({"c": Ceiling(2), "r": Rate(1, 1_000)})
    rig.do(add("a", needs=(Need("c"), Need("r"))))
    rig.complete(rig.take())
    rig.do(Count("closed", close=After(500)))
    assert [key for key, *_ in rig.run(rig.store.counters(["c", "r", "closed"]))] == ["r", "closed"]
    rig.advance(1_000)
    sweep(rig)
    rig.wake()
    assert rig.run(rig.store.counters(["c", "r", "closed"])) == []
    assert rig.due().next_due == 0


# Rates ------------------------------------------------------------------------------------------------------


@pytest.mark.capability("A1")
def test_a_bucket_lets_its_burst_go_and_then_one_for_each_refill(rig: Rig):
    """INV-26."""
    rig.declare({"r": Rate(2, 1_000)})
    rig.do(*jobs("a", 5, "r"))
    assert rig.claim_names(n=5) == ["a0", "a1"]
    assert rig.counter("r") == (2, 3)
    assert rig.due().next_due == rig.now + 500
    rig.advance(499)
    sweep(rig)
    assert rig.claim(n=5) == []
    rig.advance(1)
    assert rig.due().counters == ("r",)
    sweep(rig)
    assert rig.claim_names(n=5) == ["a2"]
    rig.advance(1_000)
    sweep(rig)
    assert rig.claim_names(n=5) == ["a3", "a4"]


@pytest.mark.parametrize("exact", [False, True])
def test_no_window_holds_more_starts_than_the_rate_allows(rig: Rig, exact: bool):
    """INV-26: every window, with a claim each 37 ms and a duty that looks when told to."""
    limit, per_ms = 4, 1_000
    rig.declare({"r": Rate(limit, per_ms, burst=2, exact=exact)})
    rig.do(*jobs("a", 40, "r"))
    started: list[int] = []
    for _ in range(150):
        sweep(rig)
        started += [rig.now] * len(rig.claim(n=40, lease=10**9))
        rig.advance(37)
    assert len(started) >= 17, "the rate is also reached"
    most = max(sum(at <= other < at + per_ms for other in started) for at in started)
    assert most <= (limit if exact else limit + 2)


def test_the_end_of_a_run_brings_no_unit_of_a_rate_back(rig: Rig):
    """INV-26."""
    rig.declare({"r": Rate(2, 60_000)})
    rig.do(*jobs("a", 4, "r"))
    for job in rig.claim(n=4):
        assert job.holds == ()
        rig.complete(job)
    sweep(rig)
    assert rig.claim(n=4) == []


@pytest.mark.capability("A9")
def test_a_run_that_never_began_is_refunded(rig: Rig):
    """INV-26: given back before it started, it cost nothing."""
    rig.declare({"r": Rate(2, 60_000), "c": Ceiling(9)})
    rig.do(*jobs("a", 4, (Need("r"), Need("c"))))
    job, _ = rig.claim(n=2)
    rig.do(MoveJob(job.id, State.AVAILABLE, refund=True), given=[Held(job.id, job.fence)])
    assert rig.counter("r")[0] == 1
    assert rig.counter("c")[0] == 1
    assert rig.claim_names(n=4) == ["a0"]


def test_a_policy_that_changes_its_kind_while_jobs_run_neither_leaks_nor_gives_away(rig: Rig):
    """INV-25, INV-26: from ceiling to rate and back."""
    rig.declare({"c": Ceiling(3)})
    rig.do(*jobs("a", 9))
    running = rig.claim(n=9)
    rig.declare({"c": Rate(1, 60_000)})
    [under_rate] = rig.claim(n=9)
    for job in running:
        rig.complete(job)
    assert rig.claim(n=9) == [], "what the ceiling held is no credit for the rate"
    rig.declare({"c": Ceiling(2)})
    assert len(rig.claim(n=9)) == 2
    rig.complete(under_rate)
    assert rig.claim(n=9) == [], "what the rate let go held no unit"
    assert rig.counter("c")[0] == 2


def test_two_queues_share_a_counter(rig: Rig):
    """INV-25, INV-28."""
    rig.declare({"c": Ceiling(1)})
    rig.do(add("a", "q1", needs="c"), add("b", "q2", needs="c"))
    job = rig.take("q1", "q2", n=2)
    assert rig.state("b") is State.BLOCKED
    rig.complete(job)
    assert rig.claim_names("q2") == ["b"]


def test_a_blocked_job_may_be_edited_cancelled_and_expire_where_it_waits(rig: Rig):
    """INV-14, INV-28."""
    rig.declare({"c": Ceiling(1)})
    rig.do(add("a", needs="c"), add("b", needs="c", expires=100), add("d", needs="c"), add("e", needs="c"))
    job: Job = rig.take(n=9)
    rig.do(EditJob(key_of("e"), Edits(priority=3)), MoveJob(key_of("d"), State.CANCELLED))
    rig.advance(100)
    sweep(rig)
    assert rig.states("b", "d", "e") == [State.DEAD, State.CANCELLED, State.BLOCKED]
    assert rig.counter("c") == (1, 1)
    rig.complete(job)
    assert rig.claim_names(n=9) == ["e"]


@pytest.mark.parametrize("why", ["paused", "without a worker"])
def test_a_unit_promised_to_a_job_that_nobody_claims_goes_to_the_next_in_line(rig: Rig, why: str):
    """INV-28: two queues share a counter, and one of them is not served any more."""
    rig.declare({"c": Ceiling(1)})
    rig.do(add("first", "qa", needs="c"))
    running = rig.take("qa")
    rig.do(add("a1", "qa", needs="c"), add("a2", "qb", needs="c"))
    assert rig.claim("qa", "qb", n=5) == []
    if why == "paused":
        rig.declare(queues={"qa": QueuePolicy(paused=True)})
    rig.complete(running)
    served = ("qa", "qb") if why == "paused" else ("qb",)
    assert rig.claim(*served, n=5) == []
    rig.advance(1_000)
    sweep(rig)
    assert rig.claim_names(*served, n=5) == ["a2"]
    assert rig.counter("c")[0] == 1


def test_a_promise_that_was_taken_back_is_made_again_in_turn(rig: Rig):
    """INV-28: whoever was passed over queues up at its place and loses no turn."""
    rig.declare({"c": Ceiling(1)})
    rig.do(add("first", needs="c"))
    running = rig.take()
    rig.do(*jobs("a", 3, needs="c"))
    assert rig.claim(n=5) == []
    rig.complete(running)
    for _ in range(3):
        rig.advance(1_000)
        sweep(rig)
    order = []
    for _ in range(3):
        [job] = rig.claim(n=5) or rig.claim(n=5)
        order.append(name_of(job.id))
        rig.complete(job)
    assert order == ["a0", "a1", "a2"]
