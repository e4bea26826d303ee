"""Asking for work: the plan, and what a claim remembers for the next one."""

from __future__ import annotations

import pytest

from tessera.engine.claiming import SCAN_LIMIT, Claimer
from tessera.model.changes import After
from tessera.model.job import Job
from tessera.model.queries import Claimed, ClaimRequest
from tessera.store.protocol import Store
from tests.engine.lab import LEASE, Lab, need


class Listening:
    """Remembers what was asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.requests: list[ClaimRequest] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def claim(self, request: ClaimRequest) -> Claimed:
        self.requests.append(request)
        return await self._store.claim(request)


def listen(lab: Lab, **fields: object) -> tuple[Listening, Claimer]:
    store = Listening(lab.store)
    return store, lab.claimer(store, **fields)  # type: ignore[arg-type]  # a proxy of all verbs


def test_a_claim_says_who_asks_for_what_and_how_long(lab: Lab):
    store, claimer = listen(lab, holder="me", kinds=frozenset({"work"}), cap_ms=99_000)
    lab.run(claimer.claim(["q", "r"], 5, counted_limit=2))
    [request] = store.requests
    assert (request.holder, request.lease_ms, request.limit, request.counted_limit) == ("me", LEASE, 5, 2)
    assert (request.cap_ms, request.kinds) == (99_000, frozenset({"work"}))
    assert [(want.queue, want.limit) for want in request.wants] == [("q", 5), ("r", 5)]


def test_a_claim_under_an_old_policy_is_planned_again_at_once(lab: Lab):
    store, claimer = listen(lab)
    lab.run(claimer.claim(["q"], 1, counted_limit=1))
    lab.ceiling("one", 1)
    lab.enqueue(needs=need("one"))
    claimed = lab.run(claimer.claim(["q"], 1, counted_limit=1))
    assert [request.policy.version for request in store.requests] == [0, 0, 1]
    assert len(claimed.jobs) == 1


@pytest.mark.capability("A4")
def test_a_claim_that_met_full_counters_looks_further_the_next_time(lab: Lab):
    """INV-28: what may run is found behind what may not."""
    lab.ceiling("shut", 0)
    store, claimer = listen(lab)
    for _ in range(600):
        lab.enqueue(needs=need("shut"))
    free = lab.enqueue()
    scans: list[int] = []
    found: list[Job] = []
    for _ in range(8):
        found += lab.run(claimer.claim(["q"], 2, counted_limit=2)).jobs
        scans.append(store.requests[-1].scan)
    assert [job.id for job in found] == [free]
    assert scans[:3] == [0, 8, 32]
    assert max(scans) <= SCAN_LIMIT
    assert scans[-1] == 0


@pytest.mark.capability("A2")
def test_a_job_takes_all_its_counters_or_none(lab: Lab):
    """INV-25."""
    lab.ceiling("a", 1)
    lab.ceiling("b", 1)
    holder = lab.start(needs=need("b"))
    both = lab.enqueue(needs=(*need("a"), *need("b")))
    assert lab.claim() == []
    assert (lab.used("a"), lab.used("b")) == ((0, 0), (1, 1))
    only_a = lab.enqueue(needs=need("a"))
    assert lab.take().id == only_a
    assert both != holder.id


@pytest.mark.capability("A4")
def test_a_ceiling_holds_over_all_claimers(lab: Lab):
    """INV-25."""
    lab.ceiling("two", 2)
    for _ in range(6):
        lab.enqueue(needs=need("two"))
    taken = [job for holder in "abc" for job in lab.claim(n=2, holder=holder)]
    assert len(taken) == 2
    assert lab.used("two") == (2, 4)


def test_a_claim_says_when_to_look_again(lab: Lab):
    lab.enqueue(due=After(5_000))
    claimed = lab.run(lab.claimer().claim(["q"], 1, counted_limit=1))
    assert (claimed.now, claimed.next_due) == (lab.now, lab.now + 5_000)
