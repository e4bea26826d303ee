"""Duties: held by one process at a time."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from tessera import seam
from tessera.engine.duties import DUTY_SPACE, Duty, Sweeper
from tessera.engine.policies import Policies
from tessera.model.changes import AddJob, After, Group, Record
from tessera.model.errors import StoreError, StoreUnavailable
from tessera.model.job import Job
from tessera.model.queries import ClaimRequest, Want
from tessera.model.states import State
from tessera.store.memory import MemoryStore, World
from tessera.store.protocol import run_blocking


class Clock(seam.RealSeam):
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def now_ms(self) -> int:
        return round(self.seconds * 1_000)

    def monotonic(self) -> float:
        return self.seconds


class Setting:
    """A store under a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.world = World(bytes(16), self.clock.now_ms)
        self.store = MemoryStore(self.world, blocking=True)
        self.run(self.store.open())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        with seam.use(self.clock):
            return run_blocking(work)

    def wait(self, seconds: float) -> None:
        self.clock.seconds += seconds

    def add(self, queue: str, **fields: Any) -> Job:
        job = Job(id=seam.new_id(), kind="k", queue=queue, **fields)
        self.run(self.store.commit([Group(changes=(AddJob(job),))]))
        return job

    def claim(self, queue: str, lease_ms: int) -> None:
        policy = self.run(Policies().current(self.store))
        request = ClaimRequest("gone", (Want(queue, 1),), 1, lease_ms, policy)
        assert len(self.run(self.store.claim(request)).jobs) == 1

    def job(self, job: Job) -> Job:
        [row] = self.run(self.store.get_jobs([job.id]))
        assert row is not None
        return row


@pytest.fixture
def at() -> Setting:
    return Setting()


def test_a_duty_has_one_holder(at):
    first, second = Duty("sweep", "one"), Duty("sweep", "two")
    assert at.run(first.hold(at.store))
    assert not at.run(second.hold(at.store))
    assert at.run(first.hold(at.store))


def test_a_holder_keeps_its_duty_by_asking(at):
    first, second = Duty("sweep", "one"), Duty("sweep", "two")
    for _ in range(10):
        assert at.run(first.hold(at.store))
        assert not at.run(second.hold(at.store))
        at.wait(4)


def test_a_holder_that_is_gone_is_replaced_after_ten_seconds(at):
    first, second = Duty("sweep", "one"), Duty("sweep", "two")
    assert at.run(first.hold(at.store))
    at.wait(9.9)
    assert not at.run(second.hold(at.store))
    at.wait(0.2)
    assert at.run(second.hold(at.store))
    assert not at.run(first.hold(at.store))


def test_a_holder_that_resigns_is_replaced_at_once(at):
    first, second = Duty("sweep", "one"), Duty("sweep", "two")
    assert at.run(first.hold(at.store))
    at.run(first.resign(at.store))
    assert at.run(second.hold(at.store))


def test_resigning_takes_nothing_from_another(at):
    first, second = Duty("sweep", "one"), Duty("sweep", "two")
    at.run(first.hold(at.store))
    at.run(second.resign(at.store))
    assert not at.run(second.hold(at.store))
    at.run(first.resign(at.store))
    at.run(first.resign(at.store))


def test_of_two_that_see_it_free_one_gets_it(at):
    """Both read, then both write: the record's version decides."""
    first, second = Duty("sweep", "one"), Duty("sweep", "two")
    real = at.store.get

    async def rival_comes_between(keys: Any) -> list[Record | None]:
        found: list[Record | None] = await real(keys)
        at.store.get = real
        assert await second.hold(at.store)
        return found

    at.store.get = rival_comes_between
    assert not at.run(first.hold(at.store))


def test_duties_of_other_names_are_others(at):
    assert at.run(Duty("sweep", "one").hold(at.store))
    assert at.run(Duty("counts", "two").hold(at.store))
    assert {record.key for record in at.run(at.store.scan(DUTY_SPACE))} == {"sweep", "counts"}


def test_the_holder_sweeps_all_queues_and_others_their_own(at):
    first = Sweeper("one", ["a"], lease_seconds=30)
    second = Sweeper("two", ["b"], lease_seconds=30)
    at.run(first.sweep(at.store))
    jobs = {queue: at.add(queue, max_crashes=5) for queue in "abc"}
    for queue in jobs:
        at.claim(queue, 1_000)
    at.wait(2)
    at.run(second.sweep(at.store))
    assert [at.job(jobs[queue]).state for queue in "abc"] == [State.RUNNING, State.SCHEDULED, State.RUNNING]
    at.run(first.sweep(at.store))
    assert [at.job(jobs[queue]).state for queue in "abc"] == [State.SCHEDULED] * 3


@pytest.mark.parametrize("gap, crashes", [(14, 1), (16, 0)])
def test_a_rescue_after_a_long_silence_charges_nobody(at, gap, crashes):
    sweeper = Sweeper("one", ["a"], lease_seconds=30)
    at.run(sweeper.sweep(at.store))
    job = at.add("a", max_crashes=5)
    at.claim("a", 1_000)
    for seconds in (gap, 10, 10, 10.1):
        at.wait(seconds)
        at.run(sweeper.sweep(at.store))
    assert at.job(job).crashes == crashes
    assert at.job(job).holder == ""


def test_a_sweep_that_fails_is_no_sweep(at):
    sweeper = Sweeper("one", ["a"], lease_seconds=30)
    at.run(sweeper.sweep(at.store))
    job = at.add("a", max_crashes=5)
    at.claim("a", 1_000)
    real = at.store.due

    async def away(*_: object) -> object:
        raise StoreUnavailable

    at.store.due = away
    for _ in range(4):
        at.wait(5)
        with pytest.raises(StoreUnavailable):
            at.run(sweeper.sweep(at.store))
    at.store.due = real
    at.run(sweeper.sweep(at.store))
    assert at.job(job).state is State.RUNNING
    for _ in range(3):
        at.wait(10.1)
        at.run(sweeper.sweep(at.store))
    assert (at.job(job).crashes, at.job(job).ends[-1].end) == (0, "released")


class Neglected(MemoryStore):
    """A store whose upkeep fails until it is mended."""

    is_mended = False
    asked = 0

    async def maintain(self) -> None:
        self.asked += 1
        if not self.is_mended:
            raise StoreError("the database user may not do this")

    async def condition(self) -> Any:
        raise NotImplementedError

    async def rebuild_indexes(self) -> list[str]:
        return []


def test_upkeep_that_fails_is_told_once_and_no_reason_not_to_sweep(caplog):
    setting = Setting()
    setting.store = Neglected(setting.world, blocking=True)
    setting.run(setting.store.open())
    sweeper = Sweeper("a", ["q"], lease_seconds=30)
    for number in range(3):
        job = Job(id=seam.new_id(), kind="k", queue="other", state=State.SCHEDULED)
        setting.run(setting.store.commit([Group(changes=(AddJob(job, After(5_000)),))]))
        setting.wait(10)
        assert setting.run(sweeper.sweep(setting.store)).promoted == 1, number
        assert setting.run(setting.store.get_jobs([job.id]))[0].state is State.AVAILABLE
    assert setting.store.asked == 3
    assert [record.message for record in caplog.records] == [
        "the store's upkeep failed, and is tried again: the database user may not do this"
    ]


def test_upkeep_is_for_whoever_holds_the_duty_and_not_for_every_sweep():
    setting = Setting()
    setting.store = Neglected(setting.world, blocking=True)
    setting.store.is_mended = True
    setting.run(setting.store.open())
    first, second = (Sweeper(name, ["q"], lease_seconds=30) for name in "ab")
    for _ in range(5):
        setting.run(first.sweep(setting.store))
        setting.run(second.sweep(setting.store))
    assert setting.store.asked == 1
