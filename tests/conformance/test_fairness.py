"""Tenants of one queue share it: by weight, at once, and without credit for having been away."""

from collections import Counter as Tally

import pytest
from msgspec.structs import replace

from tessera.model.changes import EditJob, Edits, Held, MoveJob
from tessera.model.policy import Ceiling
from tessera.model.states import State
from tessera.rules.ordering import stride
from tests.conformance.rig import Rig, add, key_of

ONE = stride(1, 1)


def brought(tenant: str, count: int, step: int = ONE, **fields):
    return [add(f"{tenant}{n:04}", tenant=tenant, stride=step, **fields) for n in range(count)]


def served(rig: Rig, count: int, at_once: int = 1) -> list[str]:
    """Tenants in the order in which their jobs were handed out."""
    order: list[str] = []
    while len(order) < count:
        claimed = rig.claim(n=at_once)
        if not claimed:
            break
        order += [job.tenant for job in claimed]
    return order


@pytest.mark.capability("A6")
def test_a_small_tenant_is_not_buried_under_a_large_one(rig: Rig):
    """INV-27."""
    rig.do(*brought("a", 200))
    rig.do(*brought("b", 5), *brought("c", 1))
    order = served(rig, 206, at_once=10)
    assert len(order) == 206, "work conserving: all is served"
    assert order.index("c") <= 3
    assert [place for place, tenant in enumerate(order) if tenant == "b"][-1] <= 13


@pytest.mark.capability("A6")
@pytest.mark.parametrize("weights", [(1, 1, 1), (1, 5, 2), (3, 1, 1)])
@pytest.mark.parametrize("at_once", [1, 7])
def test_backlogged_tenants_are_served_by_their_weights(
    rig: Rig, weights: tuple[int, int, int], at_once: int
):
    """INV-27: at every instant, to within the dearest job over the lightest weight, and the prefetch."""
    for tenant, weight in zip("abc", weights, strict=True):
        rig.do(*brought(tenant, 60, stride(1, weight)))
    order = served(rig, 60, at_once)
    tally: Tally[str] = Tally()
    for count, tenant in enumerate(order, 1):
        tally[tenant] += 1
        if count % at_once == 0:
            shares = [tally[name] / weight for name, weight in zip("abc", weights, strict=True)]
            assert max(shares) - min(shares) <= 1 / min(weights) + at_once, order[:count]


def test_dear_jobs_count_for_more(rig: Rig):
    """INV-27: a job of cost 4 is served where four of cost 1 are."""
    rig.do(*brought("a", 10, stride(4, 1)), *brought("b", 40))
    order = served(rig, 25)
    assert abs(order.count("a") * 4 - order.count("b")) <= 4


def test_being_away_earns_no_credit(rig: Rig):
    """INV-27: a tenant that comes back stands beside the others, not in front of all they brought."""
    rig.do(*brought("a", 50))
    served(rig, 30)
    rig.do(*brought("b", 20))
    order = served(rig, 20)
    assert 9 <= order.count("b") <= 11


def test_a_tenant_alone_is_served_without_a_pause(rig: Rig):
    """INV-28."""
    rig.do(*brought("a", 20))
    assert len(rig.claim(n=20)) == 20


def test_priority_goes_before_fairness(rig: Rig):
    rig.do(*brought("a", 10, priority=1), *brought("b", 10))
    assert served(rig, 20) == ["a"] * 10 + ["b"] * 10


def test_a_lane_is_fair_from_its_first_tenant_on_for_those_without_one_too(rig: Rig):
    """INV-27: no tenant is the tenant ''."""
    rig.do(*brought("a", 30))
    rig.do(*(add(f"x{n:02}") for n in range(30)))
    order = served(rig, 20)
    assert abs(order.count("a") - order.count("")) <= 1


def test_each_new_readiness_takes_a_new_pass(rig: Rig):
    """INV-27: a tenant whose jobs fail and come back pays for each run."""
    rig.do(*brought("a", 3), *brought("b", 12))
    order = []
    for _ in range(12):
        job = rig.take()
        order.append(job.tenant)
        rig.finish(job, State.AVAILABLE if job.tenant == "a" else State.COMPLETED, "failed")
    assert 5 <= order.count("a") <= 7


def test_what_was_given_back_or_set_aside_keeps_its_pass(rig: Rig):
    """INV-27: it was not served, so its tenant pays nothing more."""
    rig.declare({"c": Ceiling(1)})
    rig.do(*brought("a", 3, needs="c"), *brought("b", 1))
    first = rig.take()
    rig.do(MoveJob(first.id, State.AVAILABLE, refund=True), given=[Held(first.id, first.fence)])
    assert rig.job("a0000").pass_ == first.pass_
    again, _ = rig.claim(n=9)
    waiting = rig.job("a0001")
    assert waiting.state is State.BLOCKED
    rig.complete(again)
    rig.wake()
    assert rig.job("a0001").state is State.AVAILABLE
    assert rig.job("a0001").pass_ == waiting.pass_
    rig.do(*brought("d", 1))
    assert rig.job("d0000").pass_ == waiting.pass_, "a newcomer's first job stands beside it"


def test_a_job_that_comes_back_is_never_in_front_of_what_was_claimed(rig: Rig):
    """INV-27: pass >= floor, for those that were edited or woken too."""
    rig.do(*brought("a", 5), *brought("z", 1, priority=-1), add("plain", priority=-2))
    claimed = rig.claim(n=5)
    floor = max(job.pass_ for job in claimed)
    for name in ("z0000", "plain"):
        rig.do(EditJob(key_of(name), Edits(priority=0)))
        assert rig.job(name).pass_ >= floor
    assert replace(claimed[0]).pass_ <= floor
