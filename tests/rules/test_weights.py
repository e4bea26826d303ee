"""Smooth weighted round robin over queues."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.rules import weights

pytestmark = pytest.mark.capability("A7")


def serve(shares, claims, *, batch=1, has=lambda queue, claim: True):
    """How often each queue was served, if those that ``has`` says have jobs are never empty."""
    owed: weights.Credits = {}
    served: list[str] = []
    for claim in range(claims):
        order = weights.order(shares, owed)
        dry: list[str] = []
        for queue in order:
            if has(queue, claim):
                served += [queue] * batch
                owed = weights.charge(shares, owed, {queue: batch}, dry)
                break
            dry.append(queue)
    return served


def test_service_is_in_proportion_to_the_weights():
    assert Counter(serve({"critical": 6, "low": 1}, 70)) == {"critical": 60, "low": 10}


def test_the_order_is_smooth():
    assert serve({"a": 5, "b": 1, "c": 1}, 7) == ["a", "a", "b", "a", "c", "a", "a"]


def test_large_claims_keep_the_proportion():
    assert Counter(serve({"a": 3, "b": 1}, 400, batch=50)) == {"a": 15_000, "b": 5_000}


def test_an_empty_queue_gives_its_share_away():
    served = serve({"a": 1, "b": 1, "c": 8}, 100, has=lambda queue, _: queue != "c")
    assert Counter(served) == {"a": 50, "b": 50}


def test_a_queue_that_was_empty_comes_back_without_a_burst():
    served = serve({"a": 1, "b": 1}, 200, has=lambda queue, claim: queue == "a" or claim >= 100)
    assert Counter(served[100:120]) == {"a": 10, "b": 10}


def test_equal_weights_take_turns_in_the_order_given():
    assert serve({"a": 1, "b": 1, "c": 1}, 6) == ["a", "b", "c", "a", "b", "c"]


def test_a_queue_that_took_too_many_before_it_ran_dry_still_owes_them():
    assert weights.charge({"a": 1, "b": 1}, {"a": -5.0, "b": 5.0}, {"b": 2}, dry=["a"])["a"] == -5.0


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 100), min_size=1),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 500)), max_size=60),
)
def test_credits_of_busy_queues_sum_to_nothing(shares, claims):
    owed: weights.Credits = {}
    for place, count in claims:
        order = weights.order(shares, owed)
        owed = weights.charge(shares, owed, {order[place % len(order)]: count}, ())
    assert sum(owed.values()) == pytest.approx(0, abs=1e-6)


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 100), min_size=1))
def test_every_queue_is_in_the_order_once(shares):
    assert sorted(weights.order(shares, {})) == sorted(shares)
