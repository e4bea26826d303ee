"""Who is charged for a crash, and who was only near."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tessera import seam
from tessera.engine.duties import Sweeper
from tessera.model.changes import Answer, Group
from tessera.model.job import End
from tessera.model.queries import Claimed
from tessera.model.states import State
from tessera.rules import outage
from tessera.rules.endings import WAITS_ALONE, is_condemned
from tests.worker.rig import Rig
from tests.worker.test_fetching import Gated, suspected

pytestmark = pytest.mark.asyncio


async def test_a_suspect_says_in_its_row_that_it_waits_and_takes_it_back_before_it_runs(rig: Rig):
    ordinary, suspect = Gated(rig, "ordinary"), Gated(rig, "suspect")
    async with rig.working(concurrency=4):
        await rig.enqueue("ordinary")
        await rig.until(lambda: ordinary.running == 1)
        job = await rig.enqueue("suspect", suspected())
        await rig.until(lambda: rig.job(job).reason == WAITS_ALONE)
        assert not is_condemned(rig.job(job), seam.now_ms())
        ordinary.gate.set()
        await rig.until(lambda: suspect.running == 1)
        assert (rig.job(job).state, rig.job(job).reason) == (State.RUNNING, "")
        suspect.gate.set()
        await rig.ends(job)


async def test_a_suspect_that_waits_is_not_condemned_by_what_others_do(rig: Rig):
    ends = tuple(End(n, "crashed", 1, seam.now_ms()) for n in range(2))
    job = rig.add("suspect", {"crashes": 2, "ends": ends}).job
    assert is_condemned(job, seam.now_ms())
    assert not is_condemned(
        rig.add("suspect", {"crashes": 2, "ends": ends, "reason": WAITS_ALONE}).job, seam.now_ms()
    )


async def test_of_several_suspects_a_worker_keeps_one(rig: Rig):
    """A worker that one suspect takes down must not hold the others."""
    suspect = Gated(rig, "suspect")
    jobs = await rig.enqueue_many(3, "suspect", suspected())
    async with rig.working(concurrency=4) as worker:
        await rig.until(lambda: suspect.running == 1)
        assert worker.stats.given_back == 2
        assert sorted(rig.job(job).state for job in jobs) == [State.AVAILABLE, State.AVAILABLE, State.RUNNING]
        suspect.gate.set()
        for job in jobs:
            await rig.ends(job)
    assert suspect.most == 1


async def test_what_a_claim_brings_that_took_longer_than_a_lease_is_given_back(rig: Rig):
    """By the store's clock the leases have just begun. Left to lapse they would be crashes of nobody."""
    gated = Gated(rig)
    slow = 1

    async def late(claim: Callable[[], Awaitable[Claimed]]) -> Claimed:
        nonlocal slow
        if slow:
            slow -= 1
            await asyncio.sleep(0.5)  # how long a writer elsewhere held the store
        return await claim()

    rig.worker_store.on_claim = late
    [job] = await rig.enqueue_many(1, "gated")
    async with rig.working(lease_seconds=0.4) as worker:
        await rig.until(lambda: worker.stats.given_back == 1)
        await rig.until(lambda: gated.running == 1)
        gated.gate.set()
        row = await rig.ends(job)
    assert (row.attempt, row.crashes, row.failures) == (1, 0, 0)


async def test_a_sweep_that_waited_for_a_writer_charges_nobody(rig: Rig):
    """INV-37 where questions are answered while nobody can write."""
    held = 0.0

    async def waits(groups: Sequence[Group], commit: Callable[[], Awaitable[list[Answer]]]) -> list[Answer]:
        nonlocal held
        seconds, held = held, 0.0
        await asyncio.sleep(seconds)
        return await commit()

    job = await _leased_for(rig, 0.2)
    sweeper = Sweeper("sweeper", ("default",), lease_seconds=0.2)
    await sweeper.sweep(rig.store)
    rig.store.on_commit, held = waits, 0.3
    swept = await sweeper.sweep(rig.store)
    assert (swept.rescued, rig.job(job).state) == (0, State.RUNNING)
    while not swept.rescued:
        await asyncio.sleep(0.02)
        swept = await sweeper.sweep(rig.store)
    assert (rig.job(job).state, rig.job(job).crashes) == (State.AVAILABLE, 0)


async def test_a_first_sweep_that_waited_for_a_writer_charges_nobody():
    watch = outage.first_sweep(outage.Watch(), 100.0)
    assert outage.first_sweep(watch, 200.0) == watch
    _, rescue = outage.before_sweep(watch, 116.0, 30)
    assert rescue == outage.Rescue(allowed=False, charged=False)
    _, rescue = outage.before_sweep(watch, 114.0, 30)
    assert rescue == outage.Rescue(allowed=True, charged=True)


async def _leased_for(rig: Rig, seconds: float):
    from tessera.engine.claiming import Claimer
    from tessera.engine.policies import Policies

    job = await rig.enqueue("anything")
    claimer = Claimer(rig.store, Policies(), holder="gone", lease_ms=round(seconds * 1_000), kinds=None)
    claimed = await claimer.claim(("default",), 1, counted_limit=1)
    assert [one.id for one in claimed.jobs] == [job]
    return job
