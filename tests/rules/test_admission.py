"""The arithmetic of counters: ceilings, buckets and exact rates, in whole numbers."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tessera.model.changes import Counter, Shift
from tessera.model.job import Need
from tessera.model.policy import Ceiling, Rate
from tessera.rules.admission import (
    UNLIMITED,
    admits,
    both,
    configure,
    free_units,
    full_at,
    impossible,
    is_idle,
    looks_again_at,
    most_units,
    settled_level,
    shifted,
    take,
    units_in_use,
)

T = 1_000_000
"""An instant to start from."""


def ceiling(limit: int, **fields) -> Counter:
    return replace(configure(Counter(key="k"), Ceiling(limit), 1, T), **fields)


def rate(limit: int, per_ms: int, burst: int = 0, *, exact: bool = False) -> Counter:
    return configure(Counter(key="k"), Rate(limit, per_ms, burst, exact), 1, T)


def starts(counter: Counter, asked_at: list[int]) -> list[int]:
    """The instants at which one unit is admitted, of those at which somebody asks."""
    started = []
    for at in asked_at:
        if admits(counter, 1, at):
            counter = take(counter, 1, at, woken=False)
            started.append(at)
    return started


def most_in_a_window(started: list[int], per_ms: int) -> int:
    """The most starts in any half-open window of that length. One that begins with a start holds the most."""
    return max((sum(t <= s < t + per_ms for s in started) for t in started), default=0)


waits = st.lists(st.integers(0, 400), min_size=1, max_size=80)


@given(st.integers(1, 12), st.integers(1, 700), st.integers(1, 12), waits)
def test_no_window_ever_holds_more_starts_than_an_exact_rate_allows(limit, per_ms, burst, gaps):
    """INV-26, exact mode: every window, not only aligned ones."""
    asked, at = [], T
    for gap in gaps:
        at += gap
        asked += [at, at, at]
    started = starts(rate(limit, per_ms, burst, exact=True), asked)
    assert most_in_a_window(started, per_ms) <= limit


@given(st.integers(1, 12), st.integers(1, 700), st.integers(0, 12), waits)
def test_a_token_bucket_lets_pass_its_limit_and_its_burst_at_most(limit, per_ms, burst, gaps):
    """INV-26, bucket mode."""
    asked, at = [], T
    for gap in gaps:
        at += gap
        asked += [at, at, at]
    started = starts(rate(limit, per_ms, burst), asked)
    assert most_in_a_window(started, per_ms) <= limit + (burst or limit)


@given(st.integers(1, 12), st.integers(2, 700), st.integers(1, 12), st.integers(1, 5))
def test_whoever_looks_when_told_to_finds_room_and_a_millisecond_before_does_not(limit, per_ms, burst, units):
    """INV-28: a timer of a rate is neither early nor late."""
    counter = rate(limit, per_ms, burst)
    units = min(units, burst)
    while admits(counter, 1, T):
        counter = take(counter, 1, T, woken=False)
    at = looks_again_at(counter, units, T)
    assert at > T
    assert admits(counter, units, at)
    assert not admits(counter, units, at - 1)


def test_a_ceiling_admits_up_to_its_limit_and_not_a_unit_more():
    """INV-25."""
    counter = ceiling(3)
    assert free_units(counter, T) == 3
    assert admits(counter, 3, T)
    assert not admits(counter, 4, T)
    counter = take(counter, 2, T, woken=False)
    assert counter.used == 2
    assert admits(counter, 1, T)
    assert not admits(counter, 2, T)
    assert shifted(counter, Shift(used=-2), T).used == 0


def test_a_ceiling_that_was_lowered_below_what_runs_has_no_room_and_no_debt():
    assert free_units(ceiling(1, used=3), T) == 0


def test_giving_back_more_than_was_taken_leaves_nothing_negative():
    assert shifted(ceiling(2, used=1), Shift(used=-5), T).used == 0


def test_no_policy_is_no_limit_but_units_are_still_counted():
    counter = configure(Counter(key="k"), None, 1, T)
    assert free_units(counter, T) == UNLIMITED
    assert take(counter, 7, T, woken=False).used == 7


def test_zero_is_a_kill_switch_for_both_kinds():
    """A limit of 0 lets nothing start, and no clock changes that."""
    for counter in (ceiling(0), rate(0, 1_000), rate(0, 1_000, exact=True)):
        assert not admits(counter, 1, T + 10**9)
        assert looks_again_at(counter, 1, T) == 0


def test_a_promise_keeps_nobody_from_free_units():
    """INV-28: it says how many to wake; whose turn it is the claim decides by the order."""
    counter = ceiling(3, awake=2)
    assert admits(counter, 3, T)
    assert not admits(counter, 4, T)
    assert take(counter, 2, T, woken=True).awake == 0
    assert take(counter, 1, T, woken=False).awake == 2


def test_a_closed_counter_opens_by_the_clock():
    counter = ceiling(5, closed_until=T + 500)
    assert free_units(counter, T + 499) == 0
    assert free_units(counter, T + 500) == 5
    assert looks_again_at(counter, 1, T) == T + 500
    assert looks_again_at(counter, 1, T + 500) == 0, "a ceiling is freed by a finish, not by the clock"
    closed_rate = replace(rate(1, 100), closed_until=T + 500)
    assert looks_again_at(closed_rate, 1, T) == T + 500


def test_a_rate_takes_cost_from_the_level_and_refunds_it_up_to_its_capacity():
    counter = take(rate(10, 1_000), 4, T, woken=False)
    assert free_units(counter, T) == 6
    assert counter.used == 0
    assert free_units(shifted(counter, Shift(refund=3), T), T) == 9
    assert free_units(shifted(counter, Shift(refund=9), T), T) == 10


def test_the_end_of_a_run_that_held_a_ceiling_is_no_credit_for_the_rate_that_replaced_it():
    """INV-26: a policy that changes while jobs run gives no start away."""
    counter = replace(take(rate(10, 1_000), 4, T, woken=False), used=2)
    after = shifted(counter, Shift(used=-2), T)
    assert after.used == 0
    assert free_units(after, T) == free_units(counter, T)


def test_a_refund_says_nothing_to_a_ceiling():
    """INV-25: a run begun under a rate holds no unit of the ceiling that replaced it."""
    assert shifted(ceiling(2, used=2), Shift(refund=1), T).used == 2


def test_a_level_flows_back_in_whole_numbers_and_stops_at_the_capacity():
    counter = rate(3, 1_000)
    for _ in range(3):
        counter = take(counter, 1, T, woken=False)
    assert settled_level(counter, T) == 0
    assert settled_level(counter, T + 333) == 999
    assert free_units(counter, T + 333) == 0
    assert free_units(counter, T + 334) == 1
    assert settled_level(counter, T + 10**9) == counter.capacity
    assert settled_level(counter, T - 50) == 0, "a clock that went back takes nothing away"


def test_a_changed_rate_keeps_its_level_cut_to_the_new_capacity():
    spent = take(rate(10, 1_000), 8, T, woken=False)
    assert free_units(configure(spent, Rate(10, 2_000), 2, T), T) == 2
    assert free_units(configure(rate(10, 1_000), Rate(4, 1_000), 2, T), T) == 4


def test_a_counter_may_change_its_kind():
    counter = ceiling(3, used=2)
    as_rate = configure(counter, Rate(5, 1_000), 2, T)
    assert (as_rate.ceiling, free_units(as_rate, T), as_rate.version) == (-1, 5, 2)
    again = configure(as_rate, Ceiling(3), 3, T)
    assert (again.unit, free_units(again, T)) == (0, 1), "what still runs is still counted"


def test_a_burst_above_an_exact_limit_is_cut_to_it():
    """INV-26."""
    assert free_units(rate(2, 1_000, burst=9, exact=True), T) == 2


def test_a_rate_that_rests_can_be_forgotten_when_it_is_full_again():
    counter = rate(2, 1_000)
    assert is_idle(counter, T)
    assert full_at(counter, T) == 0
    spent = take(counter, 1, T, woken=False)
    assert not is_idle(spent, T)
    at = full_at(spent, T)
    assert at == T + 500
    assert is_idle(spent, at)
    assert not is_idle(spent, at - 1)


def test_a_counter_that_still_says_something_is_not_forgotten():
    assert is_idle(ceiling(3), T)
    for fields in ({"used": 1}, {"blocked": 1}, {"awake": 1}, {"closed_until": T + 1}):
        assert not is_idle(ceiling(3, **fields), T)


def test_a_level_below_what_a_closed_rate_needs_waits_for_both():
    spent = replace(take(rate(2, 1_000), 2, T, woken=False), closed_until=T + 5_000)
    assert full_at(spent, T) == T + 5_000
    assert full_at(ceiling(2, closed_until=T + 5_000), T) == T + 5_000


def test_a_rate_with_room_that_nobody_used_is_looked_at_in_the_next_millisecond():
    assert looks_again_at(rate(2, 1_000), 1, T) == T + 1


def test_a_killed_rate_is_never_full_again_by_the_clock():
    killed = configure(take(rate(2, 1_000), 1, T, woken=False), Rate(0, 1_000), 2, T)
    assert full_at(killed, T) == 0
    drained = Counter(key="k", unit=1_000, capacity=2_000, level=0, level_at=T)
    assert full_at(drained, T) == 0


def test_a_need_above_what_the_counter_can_ever_give_is_told_apart_from_a_full_one():
    assert impossible(Ceiling(2), Need("k", 3))
    assert not impossible(Ceiling(2), Need("k", 2))
    assert not impossible(Ceiling(0), Need("k", 3)), "a kill switch is a pause, not a verdict"
    assert impossible(Rate(2, 1_000), Need("k", 3))
    assert not impossible(Rate(2, 1_000, burst=3), Need("k", 3))
    assert impossible(Rate(9, 1_000, exact=True), Need("k", 2)), (
        "an exact rate holds one unit unless told otherwise"
    )
    assert not impossible(Rate(0, 1_000), Need("k", 3))
    assert not impossible(None, Need("k", 3))


def test_a_unit_of_a_rate_is_in_use_until_the_whole_of_it_is_back():
    counter = take(rate(2, per_ms=1_000), 2, T, woken=False)
    assert [units_in_use(counter, T + ms) for ms in (0, 1, 499, 500, 999, 1_000)] == [2, 2, 2, 1, 1, 0]


def test_what_is_in_use_and_what_is_free_are_all_there_is():
    rates = (Rate(3, 1_000), Rate(3, 1_000, burst=7), Rate(3, 1_000, exact=True), Rate(0, 1_000))
    for policy in (Ceiling(3), *rates):
        counter = take(configure(Counter(key="k"), policy, 1, T), min(1, most_units(policy)), T, woken=False)
        for ms in (0, 1, 400, 5_000):
            assert units_in_use(counter, T + ms) + free_units(counter, T + ms) == most_units(policy)


def test_two_shifts_at_once_are_as_one_after_the_other():
    first = Shift(used=-1, blocked=2, awake=1, refund=1, close_until=T + 5)
    second = Shift(used=-2, blocked=-1, awake=3, refund=2, close_until=T + 9)
    counter = replace(rate(10, 1_000), used=8, level=0)
    one_by_one = shifted(shifted(counter, first, T), second, T)
    assert shifted(counter, both(first, second), T) == one_by_one
    assert (one_by_one.used, one_by_one.blocked, one_by_one.awake) == (5, 1, 4)
    assert one_by_one.closed_until == T + 9
    assert free_units(replace(one_by_one, closed_until=0), T) == 3
