"""What a worker claims, how much of it, and in which order it begins."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tessera import seam
from tessera.engine.policies import declare, override_queue
from tessera.model.changes import After
from tessera.model.job import End, Need
from tessera.model.policy import Ceiling
from tessera.model.states import State
from tessera.worker import slots
from tessera.worker.rate import Rate
from tests.worker import isolated
from tests.worker.rig import FaultyStore, Rig

pytestmark = pytest.mark.asyncio


class Gated:
    """A handler that notes its order and goes on when it is let."""

    def __init__(self, rig: Rig, name: str = "gated") -> None:
        self.began: list[str] = []
        self.gate = asyncio.Event()
        self.running = 0
        self.most = 0

        async def gated(name: str = "") -> None:
            self.began.append(name)
            self.running += 1
            self.most = max(self.most, self.running)
            await self.gate.wait()
            self.running -= 1

        rig.kind(gated, kind=name)


async def test_no_more_than_concurrency_run_at_once(rig):
    gated = Gated(rig)
    async with rig.working(concurrency=3):
        jobs = await rig.enqueue_many(9, "gated")
        await rig.until(lambda: gated.running == 3)
        gated.gate.set()
        for job in jobs:
            await rig.ends(job)
    assert gated.most == 3


@pytest.mark.capability("A9")
async def test_without_prefetch_only_what_can_run_is_claimed(rig):
    gated = Gated(rig)
    async with rig.working(concurrency=3, prefetch=0) as worker:
        await rig.enqueue_many(9, "gated")
        await rig.until(lambda: gated.running == 3)
        assert worker.buffered == 0
        assert sum(row.state is State.AVAILABLE for row in rig.jobs()) == 6
        gated.gate.set()


@pytest.mark.capability("A9")
async def test_prefetch_holds_that_many_ahead(rig):
    gated = Gated(rig)
    async with rig.working(concurrency=2, prefetch=5) as worker:
        await rig.enqueue_many(20, "gated")
        await rig.until(lambda: gated.running == 2 and worker.buffered == 5)
        assert sum(row.state is State.AVAILABLE for row in rig.jobs()) == 13
        gated.gate.set()


@pytest.mark.capability("A9")
async def test_adaptive_prefetch_holds_nothing_ahead_before_it_knows_the_rate(rig):
    gated = Gated(rig)
    async with rig.working(concurrency=2) as worker:
        await rig.enqueue_many(20, "gated")
        await rig.until(lambda: gated.running == 2)
        assert worker.buffered == 0
        gated.gate.set()


@pytest.mark.capability("A9")
async def test_adaptive_prefetch_holds_a_second_of_work_at_most():
    clock = [100.0]

    class Clock(seam.RealSeam):
        def monotonic(self) -> float:
            return clock[0]

    def ahead(seconds: float, slots: int) -> int:
        rate = Rate()
        for _ in range(max(40, int(1 / seconds))):
            clock[0] += seconds
            for _ in range(slots):
                rate.ended(seconds)
            rate.ahead()
        return rate.ahead()

    with seam.use(Clock()):
        assert ahead(0.001, 10) == 500
        assert ahead(0.1, 10) in (99, 100)
        assert ahead(0.5, 10) in (19, 20)
        assert ahead(1.5, 10) == 0


@pytest.mark.capability("A9")
async def test_a_buffer_that_nobody_empties_is_given_back(rig, monkeypatch):
    monkeypatch.setattr(slots, "STALE_BUFFER_SECONDS", 0.2)
    gated = Gated(rig)
    async with rig.working(concurrency=1, prefetch=4) as worker:
        jobs = await rig.enqueue_many(5, "gated")
        await rig.until(lambda: worker.buffered == 4)
        await rig.until(lambda: worker.stats.given_back >= 4)
        gated.gate.set()
        for job in jobs:
            assert (await rig.ends(job)).crashes == 0


@pytest.mark.capability("A9")
async def test_jobs_with_a_counter_are_claimed_for_free_slots_only(rig):
    gated = Gated(rig)
    async with rig.working(concurrency=2, prefetch=10) as worker:
        await rig.enqueue_many(8, "gated", {"needs": (Need("gpu"),)})
        await rig.until(lambda: gated.running == 2)
        assert worker.buffered == 0
        gated.gate.set()
        await rig.until(lambda: worker.stats.finished == 8)


async def test_jobs_with_a_counter_begin_before_plain_ones_of_the_same_claim(rig):
    gated = Gated(rig)
    plain = await rig.enqueue_many(3, "gated", name="plain")
    await rig.enqueue("gated", {"needs": (Need("gpu"),)}, name="counted")
    async with rig.working(concurrency=1, prefetch=10):
        await rig.until(lambda: gated.began)
        gated.gate.set()
        for job in plain:
            await rig.ends(job)
    assert gated.began == ["counted", "plain", "plain", "plain"]


@pytest.mark.parametrize("every", [1, 2])
async def test_a_slot_that_gets_free_takes_the_next_job_with_a_counter_at_once(rig, every):
    """A claim made while all slots were busy could not take it, and says nothing about what is there."""

    async def short() -> None:
        await asyncio.sleep(0.005)

    rig.kind(short)
    # Not watched: the end of a watched job rings, and so hides a worker that has forgotten to ask again.
    jobs = [
        await rig.enqueue("short", {"watched": False, "needs": (Need("gpu"),) if number % every == 0 else ()})
        for number in range(24)
    ]
    began = seam.monotonic()
    async with rig.working(concurrency=2, prefetch=4) as worker:
        await rig.until(lambda: worker.stats.finished == len(jobs))
    assert seam.monotonic() - began < 3, "with a poll a second it is over 5"


async def test_jobs_that_one_claim_may_not_set_aside_hide_nobody(rig):
    """INV-28: 2,200 jobs of a full counter stand before one that may run; no claim moves more than 500."""
    gated = Gated(rig)
    gated.gate.set()
    await declare(rig.store, counters={"gpu": Ceiling(0)})
    await rig.enqueue_many(2_200, "gated", {"needs": (Need("gpu"),)})
    free = await rig.enqueue("gated")
    began = seam.monotonic()
    async with rig.working():
        await rig.ends(free)
    assert seam.monotonic() - began < 2


async def test_a_finish_that_frees_a_unit_lets_the_next_one_begin(rig):
    gated = Gated(rig)
    await declare(rig.store, counters={"gpu": Ceiling(1)})
    gated.gate.set()
    async with rig.working(concurrency=5):
        for job in await rig.enqueue_many(10, "gated", {"needs": (Need("gpu"),)}):
            await rig.ends(job)
    assert gated.most == 1


@pytest.mark.capability("A7")
async def test_queues_are_served_by_weight(rig):
    gated = Gated(rig)
    gated.gate.set()
    for queue in ("critical", "low"):
        await rig.enqueue_many(300, "gated", {"queue": queue}, name=queue)
    async with rig.working(queues={"critical": 6, "low": 1}, concurrency=1, prefetch=0) as worker:
        await rig.until(lambda: len(gated.began) >= 140)
        worker.stop()
        await worker.run()
    assert Counter(gated.began[:140]) == {"critical": 120, "low": 20}


@pytest.mark.capability("A7")
async def test_a_queue_of_small_weight_does_not_wait_for_an_empty_one(rig):
    gated = Gated(rig)
    gated.gate.set()
    jobs = await rig.enqueue_many(30, "gated", {"queue": "low"})
    async with rig.working(queues={"critical": 100, "low": 1}, prefetch=0):
        for job in jobs:
            await rig.ends(job)


@pytest.mark.capability("A8")
async def test_strict_order_drains_the_first_queue_before_the_second(rig):
    gated = Gated(rig)
    gated.gate.set()
    for queue in ("second", "first"):
        await rig.enqueue_many(20, "gated", {"queue": queue}, name=queue)
    async with rig.working(queues=["first", "second"], mode="strict", concurrency=2, prefetch=3) as worker:
        await rig.until(lambda: worker.stats.finished == 40)
    assert gated.began == ["first"] * 20 + ["second"] * 20


async def test_a_paused_queue_is_left_alone(rig):
    gated = Gated(rig)
    await override_queue(rig.store, "default", paused=True)
    await rig.enqueue("gated", name="paused")
    other = await rig.enqueue("gated", {"queue": "other"}, name="other")
    gated.gate.set()
    async with rig.working(queues=["default", "other"]):
        await rig.ends(other)
        assert gated.began == ["other"]
        await override_queue(rig.store, "default", paused=None)
        await rig.until(lambda: gated.began == ["other", "paused"])


async def test_a_job_enqueued_later_is_begun_without_waiting_for_a_poll(rig):
    gated = Gated(rig)
    gated.gate.set()
    async with rig.working() as worker:
        await rig.until(lambda: worker._parts.fetcher._is_dry)
        began = seam.monotonic()
        for _ in range(5):
            await rig.ends(await rig.enqueue("gated"))
        assert seam.monotonic() - began < 0.6


async def test_a_store_that_does_not_notify_is_polled(rig):
    class Silent:
        """All of a store but its ``wait``."""

        def __init__(self, store: FaultyStore) -> None:
            self._store = store

        def __getattr__(self, name: str) -> object:
            if name == "wait":
                raise AttributeError(name)
            return getattr(self._store, name)

    gated = Gated(rig)
    gated.gate.set()
    rig.worker_store = Silent(rig.worker_store)
    async with rig.working():
        for _ in range(3):
            await rig.ends(await rig.enqueue("gated"))


async def test_a_scheduled_job_begins_when_it_falls_due(rig):
    gated = Gated(rig)
    gated.gate.set()
    async with rig.working(sweep_seconds=30, lease_seconds=180):
        job = await rig.enqueue("gated", {"due": After(400)})
        await rig.until(lambda: rig.job(job).is_final)
        row = rig.job(job)
    assert 400 <= row.ends[-1].started_at - row.created_at < 900


async def test_kinds_of_others_are_left_to_them(rig):
    gated = Gated(rig)
    gated.gate.set()
    async with rig.working():
        other = await rig.enqueue("unknown")
        mine = await rig.enqueue("gated")
        await rig.ends(mine)
    assert rig.job(other).state is State.BLOCKED
    assert rig.job(other).attempt == 0


# Solo runs --------------------------------------------------------------------------------------------------


def suspected(count: int = 2) -> dict[str, object]:
    ends = tuple(End(n, "crashed", 1, 1) for n in range(count))
    return {"crashes": count, "max_crashes": count + 1, "ends": ends}


async def test_a_suspected_job_runs_alone_and_nothing_waits_in_the_buffer_meanwhile(rig):
    ordinary = Gated(rig, "ordinary")
    suspect = Gated(rig, "suspect")
    async with rig.working(concurrency=4, prefetch=10) as worker:
        first = await rig.enqueue_many(2, "ordinary", {"priority": 2})
        await rig.until(lambda: ordinary.running == 2)
        job = await rig.enqueue("suspect", {"priority": 1, **suspected()})
        await rig.until(lambda: rig.job(job).state is State.RUNNING)
        later = await rig.enqueue_many(3, "ordinary")
        assert suspect.running == 0
        ordinary.gate.set()
        await rig.until(lambda: suspect.running == 1)
        assert (worker.in_flight, worker.buffered) == (1, 0)
        assert all(rig.job(one).state is State.AVAILABLE for one in later)
        suspect.gate.set()
        for one in (*first, job, *later):
            await rig.ends(one)


async def test_a_claim_with_a_suspected_job_gives_the_others_back_uncharged(rig):
    ordinary = Gated(rig, "ordinary")
    suspect = Gated(rig, "suspect")
    ordinary.gate.set()
    job = await rig.enqueue("suspect", suspected())
    others = await rig.enqueue_many(4, "ordinary")
    async with rig.working(concurrency=5, prefetch=5) as worker:
        await rig.until(lambda: suspect.running == 1)
        assert worker.stats.given_back == 4
        assert {rig.job(one).attempt for one in others} == {0}
        suspect.gate.set()
        await rig.ends(job)
        for one in others:
            await rig.ends(one)


async def test_a_suspected_job_in_the_buffer_is_given_back_at_a_stop(rig):
    ordinary = Gated(rig, "ordinary")
    Gated(rig, "suspect")
    async with rig.working(concurrency=2, grace_seconds=30) as worker:
        await rig.enqueue("ordinary")
        await rig.until(lambda: ordinary.running == 1)
        job = await rig.enqueue("suspect", suspected())
        await rig.until(lambda: worker.buffered == 1)
        worker.stop()
        await rig.until(lambda: worker.stats.given_back == 1)
        ordinary.gate.set()
    assert (rig.job(job).state, rig.job(job).attempt) == (State.AVAILABLE, 0)


async def test_an_isolated_handler_needs_no_worker_of_its_own(rig):
    ordinary = Gated(rig, "ordinary")
    rig.kind(isolated.double, isolation="process")
    async with rig.working(concurrency=2):
        await rig.enqueue("ordinary")
        await rig.until(lambda: ordinary.running == 1)
        job = await rig.enqueue("double", suspected(), n=4)
        await rig.ends(job)
        assert ordinary.running == 1
        ordinary.gate.set()
