"""The one order, and fairness by stride: who is served when."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.rules.ordering import MAX_PASS, PASS_SCALE, next_pass, sort_key, stride


def job(**fields) -> Job:
    return Job(**{"id": JobId(bytes(16)), "kind": "k", "queue": "q"} | fields)


rows = st.builds(
    lambda number, priority, pass_, due: job(
        id=JobId(number.to_bytes(16)), priority=priority, pass_=pass_, due=due
    ),
    st.integers(0, 5),
    st.integers(-32_768, 32_767),
    st.integers(0, 3),
    st.integers(0, 3),
)


@given(rows, rows)
def test_priority_decides_first_then_pass_then_due_time_then_key(one: Job, other: Job):
    columns: tuple[tuple[Any, Any], ...] = (
        (other.priority, one.priority),
        (one.pass_, other.pass_),
        (one.due, other.due),
        (one.id, other.id),
    )
    first_difference = next(((a, b) for a, b in columns if a != b), None)
    if first_difference is None:
        assert sort_key(one) == sort_key(other)
    else:
        assert (sort_key(one) < sort_key(other)) is (first_difference[0] < first_difference[1])


def test_a_higher_number_goes_first():
    assert sort_key(job(priority=5)) < sort_key(job(priority=0)) < sort_key(job(priority=-5))


def test_a_stride_is_cost_over_weight_and_never_nothing():
    assert stride(1, 1) == PASS_SCALE
    assert stride(3, 1) == 3 * PASS_SCALE
    assert stride(1, 4) == PASS_SCALE // 4
    assert stride(1, 1_000_000) == 1
    assert stride(0, 1) == 1


def test_an_idle_tenant_starts_at_the_floor():
    """INV-27: being away earns no credit."""
    assert next_pass(last=10, floor=5_000, job_stride=1_000) == 6_000
    assert next_pass(last=7_000, floor=5_000, job_stride=1_000) == 8_000


def test_a_pass_never_leaves_its_48_bits():
    assert next_pass(MAX_PASS, 0, 1_000) == MAX_PASS
    assert next_pass(0, MAX_PASS - 1, 1_000) == MAX_PASS


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), min_size=2, max_size=5),
    st.integers(1, 200),
)
def test_backlogged_tenants_are_served_by_their_weights(tenants: list[tuple[int, int]], served: int):
    """INV-27: service over weight differs by no more than the dearest job over the lightest weight."""
    last = [0] * len(tenants)
    heads = [next_pass(0, 0, stride(cost, weight)) for weight, cost in tenants]
    work = [0] * len(tenants)
    floor = 0
    for _ in range(served):
        turn = min(range(len(tenants)), key=lambda index: (heads[index], index))
        floor = last[turn] = heads[turn]
        work[turn] += tenants[turn][1]
        heads[turn] = next_pass(last[turn], 0, stride(tenants[turn][1], tenants[turn][0]))
    shares = [done / weight for done, (weight, _) in zip(work, tenants, strict=True)]
    bound = max(cost for _, cost in tenants) / min(weight for weight, _ in tenants)
    # A stride is rounded to 1/1000, so that 200 of them may drift by a tenth of a job.
    assert max(shares) - min(shares) <= bound + 0.2
    assert floor == max(last)
