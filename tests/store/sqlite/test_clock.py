"""The store's clock is the process's and never goes back, in this process, the next, or another on the same
file.
"""

from __future__ import annotations

from tessera.store.protocol import run_blocking
from tests.store.sqlite.rig import START, Clock


def now_of(handle) -> int:
    return handle.claim("empty").now


def test_a_clock_that_is_set_back_stands_still(handle, clock):
    handle.add("a")
    clock.now = START - 60_000
    assert now_of(handle) == START
    assert run_blocking(handle.store.due(1)).now == START
    clock.now = START + 5
    assert now_of(handle) == START + 5


def test_the_high_water_mark_outlives_the_process(open_handle, clock):
    clock.now = START + 1_000
    first = open_handle()
    first.add("a")
    first.close()
    clock.now = START
    second = open_handle()
    assert now_of(second) == START + 1_000
    second.add("b")
    assert second.job("b").created_at == START + 1_000


def test_another_process_with_a_slow_clock_is_not_behind(open_handle, clock):
    late = Clock()
    late.now = START - 30_000
    ahead, behind = open_handle(), open_handle(clock=late)
    ahead.add("a")
    behind.add("b")
    assert behind.job("b").created_at == START


def test_a_transaction_that_writes_nothing_leaves_no_mark(open_handle, clock):
    handle = open_handle()
    handle.add("a")
    version = handle.file.life().writer._data_version
    other = open_handle()
    clock.now = START + 1_000
    assert other.claim("empty").jobs == ()
    handle.claim("empty")
    assert handle.file.life().writer._data_version == version
