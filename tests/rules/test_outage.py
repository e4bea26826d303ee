"""Rescue after a time in which nobody could renew (INV-37). Lease 30 s; times in seconds."""

from __future__ import annotations

import pytest

from tessera.rules import outage

NO = outage.Rescue(allowed=False, charged=False)
FREE = outage.Rescue(allowed=True, charged=False)
USUAL = outage.Rescue(allowed=True, charged=True)


def sweeps(*times: float, more: frozenset[float] = frozenset(), failed: frozenset[float] = frozenset()):
    """What each sweep at these times may do."""
    watch = outage.Watch()
    allowed = []
    for now in times:
        watch, rescue = outage.before_sweep(watch, now, 30)
        allowed.append(rescue)
        if now not in failed:
            watch = outage.after_sweep(watch, now, rescue, more=now in more)
    return allowed


def test_sweeps_without_a_gap_rescue_as_usual():
    assert sweeps(0, 1, 16, 31) == [USUAL] * 4


def test_the_first_sweep_of_a_process_charges():
    assert sweeps(1_000) == [USUAL]


def test_after_a_gap_rescue_waits_one_lease_then_is_free_once():
    assert sweeps(0, 16, 30, 45, 46, 47) == [USUAL, NO, NO, NO, FREE, USUAL]


def test_the_wait_begins_at_the_first_sweep_that_succeeds():
    times = (0, 20, 40, 60, 75, 89, 90)
    assert sweeps(*times, failed=frozenset({20, 40})) == [USUAL, NO, NO, NO, NO, NO, FREE]


def test_a_rescue_that_did_not_get_through_goes_on_free():
    assert sweeps(0, 16, 31, 46, 47, 48, more=frozenset({46})) == [USUAL, NO, NO, FREE, FREE, USUAL]


def test_a_second_gap_during_the_wait_starts_the_wait_again():
    assert sweeps(0, 16, 40, 55, 69, 70, 71) == [USUAL, NO, NO, NO, NO, FREE, USUAL]


@pytest.mark.parametrize("gap, is_outage", [(15, False), (15.1, True), (3_600, True)])
def test_over_half_a_lease_is_a_gap(gap, is_outage):
    assert sweeps(0, gap)[1] == (NO if is_outage else USUAL)
