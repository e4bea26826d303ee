"""Claims: in which order jobs are handed out, which are not, and what a claim says besides."""

import pytest

from tessera.model.changes import After, EditJob, Edits, Held, MoveJob, PutRecord
from tessera.model.policy import POLICY_SPACE, Ceiling, Policy, QueuePolicy
from tessera.model.queries import ClaimRequest, Want
from tessera.model.states import State
from tessera.rules.payload import fingerprint
from tests.conformance.rig import LEASE, Rig, add, key_of, name_of, sweep


@pytest.mark.capability("P8")
def test_higher_priority_first_then_due_time_then_key(rig: Rig):
    rig.do(add("d"), add("b", priority=-5), add("c", priority=32_767), add("a", priority=-32_768))
    rig.advance(1)
    rig.do(add("0"), add("1", priority=-5))
    assert rig.claim_names(n=9) == ["c", "d", "0", "b", "1", "a"]


def test_jobs_of_one_instant_go_in_the_order_of_their_keys(rig: Rig):
    rig.do(add("c"), add("a"))
    rig.do(add("b"))
    assert rig.claim_names(n=2) == ["a", "b"]
    assert rig.claim_names(n=2) == ["c"]


@pytest.mark.capability("R4")
def test_a_job_that_failed_queues_up_again_behind_its_neighbours(rig: Rig):
    rig.do(add("a"), add("b"))
    job = rig.take()
    rig.advance(1)
    rig.finish(job, State.AVAILABLE, "failed")
    assert rig.claim_names(n=2) == ["b", "a"]


def test_a_pass_goes_before_a_due_time(rig: Rig):
    rig.do(add("x1", tenant="x", stride=1_000), add("x2", tenant="x", stride=1_000))
    rig.advance(5)
    rig.do(add("y1", tenant="y", stride=1_000))
    assert rig.claim_names(n=3) == ["x1", "y1", "x2"]


def test_a_claim_leases_in_one_step(rig: Rig):
    """INV-5, INV-6."""
    rig.do(add("a", needs="c"))
    claimed = rig.ask_claim(holder="me", lease=12_000)
    [job] = claimed.jobs
    assert job == rig.job("a")
    assert (job.state, job.holder, job.attempt, job.lease_until) == (State.RUNNING, "me", 1, rig.now + 12_000)
    assert (job.claimed_at, job.holds, claimed.now) == (rig.now, job.needs, rig.now)
    assert job.fence >= rig.now * 1_000
    assert rig.claim(n=5) == []


def test_every_lease_of_a_job_has_a_higher_fence(rig: Rig):
    """INV-6: through release, failure, lapse, death and redrive, with a clock that stands or goes back."""
    rig.do(add("a"))
    fences = []
    for step in range(12):
        before = rig.job("a").fence
        job = rig.take()
        assert job.fence > before
        fences.append(job.fence)
        match step % 4:
            case 0:
                rig.finish(job, State.AVAILABLE, "released")
            case 1:
                rig.finish(job, State.DEAD, "aborted")
                rig.move("a", State.AVAILABLE)
            case 2:
                rig.advance(2 * LEASE)
                sweep(rig)
            case _:
                rig.advance(-LEASE)
                rig.finish(job, State.AVAILABLE, "failed")
    assert fences == sorted(set(fences))


@pytest.mark.capability("R13")
def test_the_stores_clock_never_goes_back(rig: Rig):
    """INV-29: a machine's clock may. A database server's clock is what it is; but no fence falls with it."""
    job = rig.start("a")
    if rig.store.name == "postgresql":
        rig.do(MoveJob(job.id, State.AVAILABLE), given=[Held(job.id, job.fence)])
        rig.advance(-3_600_000)
        assert rig.take().fence > job.fence
        return
    rig.advance(-3_600_000)
    assert rig.due().now == job.claimed_at
    rig.do(add("b"))
    assert rig.job("b").created_at == job.claimed_at
    rig.advance(3_600_000 + LEASE)
    assert [row.id for row in rig.due().lapsed] == [job.id]


# Several queues ---------------------------------------------------------------------------------------------


@pytest.mark.capability("A8")
def test_queues_are_drained_in_the_order_they_are_asked_in(rig: Rig):
    rig.do(*(add(f"{queue}{n}", queue, priority=queue == "low") for queue in ("low", "high") for n in (1, 2)))
    assert rig.claim_names("high", "low", n=3) == ["high1", "high2", "low1"]
    assert rig.claim_names("high", "low", n=3) == ["low2"]


def test_each_queue_has_its_own_limit_and_the_claim_has_one(rig: Rig):
    rig.do(*(add(f"{queue}{n}", queue) for queue in "abc" for n in (1, 2, 3)))
    request = ClaimRequest("h", (Want("a", 1), Want("b", 2), Want("c", 3)), 5, LEASE, rig.policy)
    claimed = rig.run(rig.store.claim(request))
    assert [name_of(job.id) for job in claimed.jobs] == ["a1", "b1", "b2", "c1", "c2"]


def test_a_queue_nobody_asked_for_is_left_alone(rig: Rig):
    rig.do(add("a", "mine"), add("b", "other"))
    assert rig.claim_names("mine", "none", n=9) == ["a"]
    assert rig.state("b") is State.AVAILABLE


def test_a_claim_of_nothing_takes_nothing(rig: Rig):
    rig.do(add("a"))
    assert rig.claim(n=0) == []
    assert rig.run(rig.store.claim(ClaimRequest("h", (), 5, LEASE, rig.policy))).jobs == ()


# What is not handed out -------------------------------------------------------------------------------------


@pytest.mark.capability("F9")
def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(rig: Rig):
    rig.declare(queues={"q": QueuePolicy(paused=True)})
    rig.do(add("a"), add("b", "other"))
    assert rig.claim_names("q", "other", n=9) == ["b"]
    assert rig.state("a") is State.AVAILABLE
    rig.declare(queues={"q": QueuePolicy(paused=False)})
    assert rig.claim_names(n=9) == ["a"]


@pytest.mark.capability("A14")
def test_nothing_is_claimed_under_a_policy_that_is_not_the_stores(rig: Rig):
    """INV-25: also not under a newer one, of another installation."""
    rig.do(add("a"))
    old = rig.policy
    rig.declare(queues={"q": QueuePolicy(paused=False)})
    for policy in (old, Policy(99)):
        claimed = rig.ask_claim(policy=policy)
        assert (claimed.replan, claimed.jobs, claimed.policy_version) == (True, (), rig.policy.version)
    assert rig.claim_names() == ["a"]


def test_a_write_to_a_policy_raises_the_version_and_no_other_write_does(rig: Rig):
    assert rig.run(rig.store.policy_version()) == 0
    rig.do(PutRecord("notes", "n", b"1"), PutRecord("~worker", "w", b"1"))
    assert rig.run(rig.store.policy_version()) == 0
    rig.do(PutRecord(POLICY_SPACE, "queue/q", b"1"))
    rig.do(PutRecord(POLICY_SPACE, "queue/q", b"2"))
    assert rig.run(rig.store.policy_version()) == 2


@pytest.mark.capability("H8")
def test_a_job_past_its_expiry_is_buried_and_not_handed_out(rig: Rig):
    rig.do(add("a", expires=1_000), add("b"))
    rig.advance(1_000)
    claimed = rig.ask_claim(n=2)
    assert [name_of(job.id) for job in claimed.jobs] == ["b"]
    assert claimed.set_aside == 1
    assert (rig.state("a"), rig.job("a").reason) == (State.DEAD, "expired")


def test_a_job_a_millisecond_before_its_expiry_is_handed_out(rig: Rig):
    rig.do(add("a", expires=1_000))
    rig.advance(999)
    assert rig.claim_names() == ["a"]


@pytest.mark.capability("A10")
def test_a_quarantined_fingerprint_is_kept_from_the_workers_until_a_person_releases_it(rig: Rig):
    """INV-12."""
    rig.do(add("a", payload=b"bomb"), add("b", payload=b"fine"), add("c", payload=b"bomb", kind="other"))
    rig.declare(quarantined=frozenset({fingerprint("work", b"bomb")}))
    assert rig.claim_names(n=9) == ["b", "c"]
    assert (rig.state("a"), rig.job("a").attempt) == (State.QUARANTINED, 0)
    rig.declare(quarantined=frozenset())
    assert rig.claim(n=9) == []
    rig.move("a", State.AVAILABLE, by="ada")
    assert rig.claim_names(n=9) == ["a"]


# Kinds ------------------------------------------------------------------------------------------------------


@pytest.mark.capability("U2")
def test_a_kind_that_a_worker_lacks_is_set_aside_and_woken_by_one_that_has_it(rig: Rig):
    """INV-28."""
    rig.do(add("a", kind="rare"), add("b"), add("c", kind="rare"))
    assert rig.claim_names(n=9, kinds=frozenset({"work"})) == ["b"]
    assert rig.states("a", "c") == [State.BLOCKED] * 2
    assert rig.job("a").blocked_on == "kind:q:rare"
    assert "no live worker" in rig.job("a").reason
    assert rig.claim(n=9, kinds=frozenset({"work"})) == []
    assert rig.claim_names(n=9, kinds=frozenset({"rare", "work"})) == ["a", "c"]


def test_a_worker_of_every_kind_wakes_them_all(rig: Rig):
    rig.do(add("a", kind="x:y"), add("b", kind="z"))
    assert rig.claim(n=9, kinds=frozenset({"work"})) == []
    assert rig.claim_names(n=9) == ["a", "b"]


def test_a_worker_of_another_queue_wakes_nobody(rig: Rig):
    rig.do(add("a", kind="rare"))
    assert rig.claim(kinds=frozenset()) == []
    assert rig.claim("other", kinds=frozenset({"rare"})) == []
    assert rig.state("a") is State.BLOCKED


def test_a_woken_job_keeps_its_priority(rig: Rig):
    rig.do(add("a", kind="rare"), add("b", kind="rare", priority=9))
    assert rig.claim(n=9, kinds=frozenset()) == []
    rig.do(add("c", priority=5))
    assert rig.claim_names(n=9) == ["b", "c", "a"]


def test_jobs_set_aside_for_their_kind_do_not_hide_those_behind(rig: Rig):
    """INV-28."""
    rig.do(*(add(f"a{n:03}", kind="rare") for n in range(60)), *(add(f"b{n}") for n in range(3)))
    assert rig.claim_names(n=2, kinds=frozenset({"work"})) == ["b0", "b1"]
    assert rig.claim_names(n=2, kinds=frozenset({"work"})) == ["b2"]


# Limits of one claim ----------------------------------------------------------------------------------------


@pytest.mark.capability("A9")
def test_no_more_counted_jobs_than_free_slots_are_claimed_and_the_others_keep_their_place(rig: Rig):
    rig.declare({"c": Ceiling(100)})
    rig.do(*(add(f"a{n}", needs="c") for n in range(4)), *(add(f"b{n}") for n in range(3)))
    assert rig.claim_names(n=7, counted_limit=2) == ["a0", "a1", "b0", "b1", "b2"]
    assert rig.states("a2", "a3") == [State.AVAILABLE] * 2
    assert rig.counter("c") == (2, 0)
    assert rig.claim_names(n=7, counted_limit=0) == []
    assert rig.claim_names(n=7) == ["a2", "a3"]


def test_one_claim_sets_aside_a_bounded_number_and_the_next_goes_on(rig: Rig):
    """INV-28: 1,200 jobs of a full key stand in front of one that may run."""
    rig.declare({"c": Ceiling(0)})
    rig.do(*(add(f"a{n:04}", needs="c") for n in range(1_200)), add("b"))
    found: list[str] = []
    claims = 0
    while not found:
        claimed = rig.ask_claim(n=1, scan=400)
        assert claimed.set_aside <= 500
        found, claims = [name_of(job.id) for job in claimed.jobs], claims + 1
        assert claimed.set_aside > 0 or found
    assert found == ["b"]
    assert claims <= 4
    assert rig.counter("c") == (0, 1_200)


def test_next_due_names_the_next_instant_to_look(rig: Rig):
    """INV-13, INV-28."""
    assert rig.ask_claim().next_due == 0
    rig.do(add("a", due=After(9_000)), add("b", due=After(5_000)), add("c", "other", due=After(1_000)))
    assert rig.ask_claim().next_due == rig.now + 5_000
    assert rig.ask_claim("q", "other").next_due == rig.now + 1_000


def test_a_lapsed_job_of_a_worker_that_vanished_is_run_by_another(rig: Rig):
    """INV-8, INV-11."""
    rig.do(add("a"))
    rig.take(holder="gone")
    rig.advance(LEASE)
    assert rig.claim() == []
    sweep(rig)
    job = rig.take(holder="next")
    assert (job.attempt, job.crashes, job.failures, job.holder) == (2, 1, 0, "next")
    assert rig.job("a").ends[0].holder == "gone"


def test_a_job_is_never_handed_to_two_claims(rig: Rig):
    """INV-5."""
    rig.do(*(add(f"j{n:02}") for n in range(30)))
    handed_out = [name for holder in "xyz" for _ in range(4) for name in rig.claim_names(n=3, holder=holder)]
    assert sorted(handed_out) == [f"j{n:02}" for n in range(30)]


def test_edits_of_waiting_jobs_are_what_the_claim_hands_out(rig: Rig):
    rig.do(add("a", payload=b"old"))
    rig.do(EditJob(key_of("a"), Edits(payload=b"new")))
    assert rig.take().payload == b"new"
    rig.do(add("b", due=After(5)))
    rig.do(MoveJob(key_of("b"), State.AVAILABLE, edits=Edits(payload=b"now")))
    assert rig.take().payload == b"now"
