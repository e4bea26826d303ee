"""How long a retry waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.model.job import Terms
from tessera.options import Retry
from tessera.rules.backoff import crash_delay_ms, delay_ms

DICE = st.floats(0, 1, exclude_max=True)
COUNTS = st.integers(1, 1_000_000)
TERMS = st.builds(
    Terms,
    backoff_base_ms=st.integers(0, 10**10),
    backoff_factor=st.floats(1, 100),
    backoff_cap_ms=st.integers(0, 10**13),
    backoff_jitter=st.floats(0, 1),
    backoff_delays_ms=st.just(()),
    crash_backoff_ms=st.integers(0, 10**10),
)


@pytest.mark.parametrize(
    "count, longest", [(1, 15_000), (2, 30_000), (3, 60_000), (8, 1_920_000), (9, 3_600_000)]
)
def test_the_default_begins_at_15_seconds_doubles_and_ends_at_an_hour(count: int, longest: int):
    assert delay_ms(Terms(), count, 0.0) == longest
    assert delay_ms(Terms(), count, 0.5) == longest * 3 // 4


@pytest.mark.parametrize("count", [10, 100, 1_000, 1_000_000])
@pytest.mark.parametrize("factor", [1.0001, 2.0, 37.0, 100.0])
def test_no_number_of_failures_is_too_great(count: int, factor: float):
    """A hundred to the power of a million is no float."""
    terms = Terms(backoff_factor=factor, backoff_base_ms=1)
    assert 0 < delay_ms(terms, count, 0.0) <= 3_600_000


@given(TERMS, COUNTS, DICE)
def test_the_wait_lies_in_the_stated_interval_and_never_passes_the_cap(terms: Terms, count: int, dice: float):
    """INV-13: in [d (1 - jitter), d], d being what no jitter gives."""
    longest = delay_ms(terms, count, 0.0)
    wait = delay_ms(terms, count, dice)
    assert longest * (1 - terms.backoff_jitter) <= wait <= longest <= terms.backoff_cap_ms


@given(TERMS, COUNTS)
def test_a_further_failure_never_waits_less(terms: Terms, count: int):
    assert delay_ms(terms, count, 0.0) <= delay_ms(terms, count + 1, 0.0)


@given(TERMS, st.integers(1, 30))
def test_the_wait_grows_by_the_factor_until_it_meets_the_cap(terms: Terms, count: int):
    here, there = delay_ms(terms, count, 0.0), delay_ms(terms, count + 1, 0.0)
    assert there == terms.backoff_cap_ms or abs(there - here * terms.backoff_factor) <= max(
        terms.backoff_factor + 1, there * 1e-9
    )


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=5), COUNTS, DICE)
def test_a_list_of_delays_replaces_the_growth_and_its_last_repeats(
    delays: list[int], count: int, dice: float
):
    terms = Terms(backoff_delays_ms=tuple(delays), backoff_jitter=0.2)
    longest = delays[min(count, len(delays)) - 1]
    assert delay_ms(terms, count, 0.0) == longest
    assert longest * 0.8 <= delay_ms(terms, count, dice) <= longest


def test_a_factor_of_one_waits_the_same_each_time():
    terms = Terms(backoff_factor=1.0, backoff_base_ms=7_000)
    assert {delay_ms(terms, count, 0.0) for count in (1, 2, 50, 1_000_000)} == {7_000}


def test_a_base_of_nothing_is_no_wait():
    assert delay_ms(Terms(backoff_base_ms=0), 1_000_000, 0.0) == 0


@given(TERMS, COUNTS, DICE)
def test_the_wait_after_a_crash_doubles_up_to_an_hour(terms: Terms, count: int, dice: float):
    """INV-13."""
    longest = min(3_600_000, terms.crash_backoff_ms << min(count - 1, 64))
    wait = crash_delay_ms(terms, count, dice)
    assert longest * (1 - terms.backoff_jitter) <= wait <= longest


def test_what_a_user_writes_is_what_is_waited():
    terms = Terms(**Retry(base=2, factor=3, cap=60, jitter=0).fields())
    assert [delay_ms(terms, count, 0.9) for count in (1, 2, 3, 4, 5)] == [
        2_000,
        6_000,
        18_000,
        54_000,
        60_000,
    ]
