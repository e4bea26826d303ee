"""The store's clock is the process's and never goes back, in this process, the next, or another on the same
file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from tessera import seam
from tessera.model.changes import After, Group, Held, MoveJob, PutRecord
from tessera.model.states import State
from tessera.store.protocol import run_blocking
from tessera.store.sqlite import clock as clocks
from tests.store.sqlite.rig import START, Clock, Handle, key_of

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR


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


# A clock that was far ahead ---------------------------------------------------------------------------------


class Machine(seam.RealSeam):
    """A machine whose two clocks stand where the test puts them."""

    def __init__(self) -> None:
        self.now = START
        self.up = 100.0

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.up

    def pass_ms(self, ms: int) -> None:
        self.now += ms
        self.up += ms / 1_000


@pytest.fixture
def machine() -> Iterator[Machine]:
    with seam.use(Machine()) as machine:
        assert isinstance(machine, Machine)
        yield machine


@pytest.fixture
def open_here(open_handle, machine):
    """Opens handles that go by the machine's clock."""
    return lambda: open_handle(clock=None)


def glance(machine: Machine, handle: Handle, lead: int, name: str) -> None:
    """Store a job while the machine's clock is wrong, for that one call."""
    machine.now += lead
    handle.add(name)
    machine.now -= lead


def test_a_small_step_back_is_waited_out_and_a_great_one_is_not():
    machine = Machine()
    clock = clocks.Clock(machine.now_ms, machine.monotonic)
    assert clock.follow(START + clocks.STEP_MS) == START + clocks.STEP_MS
    machine.pass_ms(1_000)
    assert clock.now() == START + clocks.STEP_MS
    assert clock.follow(START + HOUR) == START + HOUR
    machine.pass_ms(1_500)
    assert clock.now() == START + HOUR + 1_500
    machine.now += 2 * HOUR
    assert clock.now() == machine.now


@pytest.mark.parametrize("lead", [HOUR, YEAR])
def test_after_a_clock_that_was_far_ahead_time_goes_on_and_never_back(open_here, machine, lead):
    handle = open_here()
    handle.add("a")
    [job] = handle.claim().jobs
    glance(machine, handle, lead, "b")
    seen = [now_of(handle)]
    for _ in range(4):
        machine.pass_ms(10_000)
        seen.append(now_of(handle))
    assert seen == [START + lead + 10_000 * n for n in range(5)]
    assert [row.id for row in run_blocking(handle.store.due(9)).lapsed] == [job.id]


def test_processes_on_one_file_do_not_drive_each_other_ahead(open_here, machine):
    one, two = open_here(), open_here()
    glance(machine, one, YEAR, "a")
    assert now_of(one) == now_of(two) == START + YEAR
    for n in range(6):
        machine.pass_ms(1_000)
        assert now_of((one, two)[n % 2]) == START + YEAR + 1_000 * (n + 1)
        (one, two)[n % 2].add(f"b{n}")


def test_a_time_far_ahead_under_which_nothing_was_stored_is_forgotten(open_here, machine):
    handle = open_here()
    handle.add("a")
    machine.now += YEAR
    assert run_blocking(handle.store.due(1)).now == START + YEAR
    machine.now -= YEAR
    handle.add("b")
    assert handle.job("b").created_at == START


def test_a_clock_set_back_takes_its_spans_along(open_here, machine):
    handle, other = open_here(), open_here()
    handle.add("old")
    machine.now += YEAR
    handle.add("running", "retried", "waiting", queue="far")
    retried, running = handle.claim("far", n=2).jobs
    handle.commit(
        [Group((Held(retried.id, retried.fence),), (MoveJob(retried.id, State.SCHEDULED, After(5_000)),))]
    )
    handle.commit([Group(changes=(PutRecord("~duty", "d", b"x", expires=After(10_000)),))])
    machine.now -= YEAR
    assert now_of(other) == START + YEAR
    assert run_blocking(handle.store.set_clock_back()) == YEAR
    assert (now_of(handle), now_of(other)) == (START, START)
    assert handle.job("running").lease_until == START + 30_000
    assert handle.job("retried").due == START + 5_000
    assert [job.id for job in other.claim("far").jobs] == [key_of("waiting")]
    assert [job.id for job in other.claim().jobs] == [key_of("old")]
    machine.pass_ms(10_000)
    assert run_blocking(handle.store.scan("~duty")) == []
    assert [row.id for row in run_blocking(handle.store.due(9)).scheduled] == [retried.id]
    machine.pass_ms(20_000)
    assert running.id in {row.id for row in run_blocking(handle.store.due(9)).lapsed}
    assert handle.verify() == []


def test_a_rate_that_was_used_far_ahead_refills_after_the_clock_was_set_back(open_here, machine, path):
    handle = open_here()
    mark = START + YEAR
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE tessera_meta SET clock = ?", [mark])
        connection.execute(
            "INSERT INTO tessera_counter VALUES ('r', 0, 0, 1, 1000, 1, 0, ?, ?, 0, 0, ?, 1)",
            [mark, mark + 500, mark + 1_000],
        )
    assert run_blocking(handle.store.set_clock_back()) == YEAR
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT level_at, closed_until, wake_at FROM tessera_counter").fetchall()
    assert found == [(START, START + 500, START)]


def test_a_holder_goes_on_over_a_clock_set_back(open_here, machine):
    handle = open_here()
    machine.now += YEAR
    handle.add("a")
    jobs = handle.claim().jobs
    machine.now -= YEAR
    run_blocking(handle.store.set_clock_back())
    handle.complete(jobs)
    assert handle.job("a").finished_at == START


def test_a_clock_that_is_not_far_ahead_is_left_alone(open_here, machine):
    handle = open_here()
    glance(machine, handle, clocks.STEP_MS, "a")
    assert run_blocking(handle.store.set_clock_back()) == 0
    assert now_of(handle) == START + clocks.STEP_MS
