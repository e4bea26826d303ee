"""Leases: kept whatever handlers do, and never worked under once they are over."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tessera import seam
from tessera.model.changes import EditJob, Group, MoveJob
from tessera.model.errors import OutcomeUnknown, StaleLease, StoreUnavailable
from tessera.model.job import Job
from tessera.model.states import State
from tessera.worker.context import Context
from tessera.worker.leases import Leases
from tests.worker.rig import Rig, signalled

pytestmark = pytest.mark.asyncio


def is_renewal(groups) -> bool:
    return any(isinstance(change, EditJob) for group in groups for change in group.changes)


async def take_away(rig: Rig, job) -> None:
    """Another holder gets the job: what a sweep and a claim do when a lease has lapsed."""
    await rig.store.commit([Group(changes=(MoveJob(job, State.AVAILABLE),))])


@pytest.mark.capability("R3")
async def test_a_long_job_keeps_its_lease(rig):
    started, gate = asyncio.Event(), asyncio.Event()

    async def long() -> None:
        started.set()
        await gate.wait()

    rig.kind(long)
    async with rig.working(lease_seconds=0.6):
        job = await rig.enqueue("long")
        await signalled(started)
        first = rig.job(job).lease_until
        await rig.until(lambda: rig.world.now() > first + 600)
        gate.set()
        row = await rig.ends(job)
    assert (row.attempt, row.crashes) == (1, 0)


@pytest.mark.capability("R3")
async def test_a_handler_that_blocks_the_event_loop_for_three_leases_keeps_its_lease(rig):
    async def computes() -> int:
        end = seam.monotonic() + 3
        turns = 0
        while seam.monotonic() < end:  # holds the loop, and the GIL for the most part
            turns += 1
        return turns

    rig.kind(computes)
    async with rig.working(lease_seconds=1) as worker:
        job = await rig.enqueue("computes", {"terms": {}})
        row = await rig.ends(job)
    assert (row.attempt, row.crashes, row.failures) == (1, 0, 0)
    assert worker.stats.fenced == 0


async def test_a_short_job_costs_no_renewal(rig):
    renewals: list[object] = []

    async def note(groups, call):
        if is_renewal(groups):
            renewals.append(groups)
        return await call()

    async def quick() -> None: ...

    rig.kind(quick)
    rig.renewer_store.on_commit = note
    async with rig.working():
        for job in await rig.enqueue_many(50, "quick"):
            await rig.ends(job)
    assert renewals == []


async def test_jobs_in_the_buffer_are_renewed_too(rig):
    started, gate = asyncio.Event(), asyncio.Event()

    async def long() -> None:
        started.set()
        await gate.wait()

    rig.kind(long)
    async with rig.working(lease_seconds=0.6, concurrency=1, prefetch=5) as worker:
        jobs = await rig.enqueue_many(3, "long")
        await signalled(started)
        await rig.until(lambda: worker.buffered == 2)
        first = rig.job(jobs[2]).lease_until
        await rig.until(lambda: rig.world.now() > first + 300)
        gate.set()
        for job in jobs:
            assert (await rig.ends(job)).attempt == 1


@pytest.mark.capability("R3")
async def test_a_worker_that_cannot_renew_stops_its_handler_before_the_lease_ends(rig):
    started = asyncio.Event()
    stopped_at: list[int] = []

    async def long(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped_at.append(rig.world.now())

    async def refuse(groups, call):
        raise StoreUnavailable

    rig.kind(long)
    rig.renewer_store.on_commit = refuse
    async with rig.working(lease_seconds=1) as worker:
        job = await rig.enqueue("long")
        await signalled(started)
        await rig.until(lambda: stopped_at)
        row = rig.job(job)
        assert row.state is State.RUNNING
        assert stopped_at[0] < row.lease_until
        await rig.until(lambda: worker.stats.fenced == 1)
        await rig.until(lambda: worker.in_flight == 0)
    assert worker.stats.finished == 0


@pytest.mark.capability("R3")
async def test_nothing_is_begun_under_a_lease_that_is_about_to_end(rig):
    began: list[int] = []
    started, gate = asyncio.Event(), threading.Event()

    async def first() -> None:
        started.set()
        await asyncio.sleep(0)
        gate.wait(10)  # blocks the loop, so that the guard cannot look either

    async def second() -> None:
        began.append(rig.world.now())

    async def refuse(groups, call):
        raise StoreUnavailable

    rig.kind(first)
    rig.kind(second)
    rig.renewer_store.on_commit = refuse
    async with rig.working(lease_seconds=0.6, concurrency=1, prefetch=5, lag_seconds=60):
        await rig.enqueue("first")
        job = await rig.enqueue("second")
        threading.Timer(0.6, gate.set).start()
        await signalled(started)
        await rig.until(lambda: rig.world.now() > rig.job(job).lease_until > 0 or began)
    assert began == []


@pytest.mark.capability("R3")
async def test_the_loss_of_a_lease_stops_the_handler_and_nothing_of_it_is_written(rig, caplog):
    started, stopped = asyncio.Event(), asyncio.Event()

    async def long() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    rig.kind(long)
    async with rig.working(lease_seconds=0.9) as worker:
        job = await rig.enqueue("long")
        await signalled(started)
        fence = rig.job(job).fence
        started.clear()
        await take_away(rig, job)
        await signalled(stopped, "the handler to be stopped")
        assert worker.stats.fenced == 1
        await signalled(started, "the next run")
        assert rig.job(job).fence > fence
        worker.stop_now()
    assert worker.stats.stale == 0


@pytest.mark.capability("R3")
async def test_a_stale_finish_is_refused_counted_and_logged(rig, caplog):
    started, gate = asyncio.Event(), asyncio.Event()

    async def long() -> str:
        started.set()
        await gate.wait()
        return "late"

    rig.kind(long)
    async with rig.working(lease_seconds=30) as worker:
        job = await rig.enqueue("long", {"queue": "default"})
        await signalled(started)
        worker._parts.fetcher.stop()
        await take_away(rig, job)
        gate.set()
        await rig.until(lambda: worker.stats.stale == 1)
    assert rig.job(job).state is State.AVAILABLE
    assert rig.job(job).result is None
    [record] = [record for record in caplog.records if "was refused" in record.getMessage()]
    assert record.__dict__["kind"] == "long"
    assert record.__dict__["attempt"] == 1


@pytest.mark.capability("H20")
@pytest.mark.parametrize("how", ["extend", "aextend", "extend in a thread"])
async def test_a_handler_can_extend_its_lease(rig, how):
    async def coroutine(ctx: Context) -> None:
        if how == "extend":
            ctx.extend(600)
        else:
            await ctx.aextend(600)
        until.append(rig.job(ctx.job.id).lease_until - rig.world.now())

    def plain(ctx: Context) -> None:
        ctx.extend(600)
        until.append(rig.job(ctx.job.id).lease_until - rig.world.now())

    until: list[int] = []
    rig.kind(plain if how == "extend in a thread" else coroutine, kind="extends")
    async with rig.working():
        await rig.ends(await rig.enqueue("extends"))
    assert 590_000 < until[0] <= 600_000


async def test_a_renewal_does_not_cut_an_extended_lease(rig):
    gate = asyncio.Event()
    extended = asyncio.Event()

    async def extends(ctx: Context) -> None:
        await ctx.aextend(600)
        ctx.progress(1)
        extended.set()
        await gate.wait()

    rig.kind(extends)
    async with rig.working(lease_seconds=0.6):
        job = await rig.enqueue("extends")
        await signalled(extended)
        await rig.until(lambda: rig.job(job).ext)
        assert rig.job(job).lease_until - rig.world.now() > 590_000
        gate.set()
        await rig.ends(job)


async def test_extending_to_less_than_is_left_changes_nothing(rig):
    async def extends(ctx: Context) -> bool:
        before = rig.job(ctx.job.id).lease_until
        await ctx.aextend(1)
        return rig.job(ctx.job.id).lease_until == before

    rig.kind(extends)
    async with rig.working(lease_seconds=30):
        job = await rig.enqueue("extends")
        await rig.ends(job)
    assert rig.result(job) is True


async def test_extending_a_lost_lease_raises_stale_lease(rig):
    raised: list[BaseException] = []

    async def extends(ctx: Context) -> None:
        await take_away(rig, ctx.job.id)
        try:
            await ctx.aextend(600)
        except StaleLease as error:
            raised.append(error)

    rig.kind(extends)
    async with rig.working(lease_seconds=30) as worker:
        await rig.enqueue("extends")
        await rig.until(lambda: raised)
        worker.stop_now()
    assert "not current" in str(raised[0])


async def test_a_renewal_whose_reply_was_lost_is_made_again(rig):
    started, gate = asyncio.Event(), asyncio.Event()
    lost: list[int] = []

    async def lose_the_first(groups, call):
        answers = await call()
        if is_renewal(groups) and not lost:
            lost.append(1)
            raise OutcomeUnknown
        return answers

    async def long() -> None:
        started.set()
        await gate.wait()

    rig.kind(long)
    rig.renewer_store.on_commit = lose_the_first
    async with rig.working(lease_seconds=0.9) as worker:
        job = await rig.enqueue("long")
        await signalled(started)
        first = rig.job(job).lease_until
        await rig.until(lambda: rig.world.now() > first + 900)
        gate.set()
        await rig.ends(job)
    assert lost == [1]
    assert worker.stats.fenced == 0


def hold(leases: Leases, sent_at: float, **fields):
    job = Job(id=seam.new_id(), kind="k", queue="q", claimed_at=1_000_000, fence=1, **fields)
    return leases.add([job], sent_at)[0]


async def test_renewals_come_together():
    leases = Leases(30)
    old, middle, young = hold(leases, 0.0), hold(leases, 4.0), hold(leases, 9.0)
    assert leases.to_renew(9.9) == []
    assert leases.to_renew(10.1) == [old, middle]
    assert young in leases.to_renew(15.1)


async def test_a_lease_is_not_renewed_past_its_cap():
    leases = Leases(30)
    capped = hold(leases, 100.0, cap_at=1_040_000)
    leases.renewed(capped, 120.0, 30)
    assert capped.until == 140.0
    assert leases.to_renew(139.0) == []


async def test_the_deadline_counts_from_the_sending_of_the_claim():
    leases = Leases(30)
    held = hold(leases, 100.0)
    assert held.until == 130.0
    assert leases.is_spent(held, 125.6)
    assert not leases.is_spent(held, 125.4)


async def test_store_times_become_local_without_a_look_at_any_clock():
    assert hold(Leases(30), 100.0).local(1_005_000) == 105.0


async def test_dropping_an_old_lease_leaves_the_new_one_of_the_same_job():
    leases = Leases(30)
    old = hold(leases, 0.0)
    [new] = leases.add([old.job], 50.0)
    leases.drop([old])
    assert leases.get(old.job.id) is new


@pytest.mark.capability("R3")
async def test_a_job_does_not_run_beside_its_own_former_run(rig):
    """Its lease was lost, this worker claims it again, and the thread of the first run cannot be stopped."""
    gate = threading.Event()
    running: list[int] = []
    most: list[int] = []

    def deaf(ctx: Context) -> str:
        running.append(ctx.attempt)
        most.append(len(running))
        if ctx.attempt == 1:
            gate.wait(10)
        running.remove(ctx.attempt)
        return f"attempt {ctx.attempt}"

    rig.kind(deaf)
    async with rig.working(lease_seconds=30) as worker:
        job = await rig.enqueue("deaf")
        await rig.until(lambda: running)
        await take_away(rig, job)
        await rig.until(lambda: rig.job(job).state is State.SCHEDULED)
        row = rig.job(job)
        assert (row.failures, row.crashes, row.ends[-1].end) == (0, 0, "released")
        assert worker.stats.fenced == 1
        gate.set()
        await rig.until(lambda: rig.job(job).is_final)
    assert max(most) == 1
    assert rig.result(job) == "attempt 3"
