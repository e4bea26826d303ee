"""A store that fails, is away, or whose answers get lost."""

from __future__ import annotations

import asyncio

import pytest

from tessera import seam
from tessera.engine.policies import Policies
from tessera.model.changes import Held
from tessera.model.errors import OutcomeUnknown, StoreBusy, StoreUnavailable
from tessera.model.queries import ClaimRequest, Want
from tessera.model.states import State
from tessera.worker import fetcher
from tests.worker.rig import Rig, logged, signalled

pytestmark = pytest.mark.asyncio


def is_finish(groups) -> bool:
    return any(isinstance(guard, Held) and guard.end for group in groups for guard in group.guards)


async def test_jobs_of_a_claim_whose_reply_was_lost_are_adopted(rig):
    lost: list[int] = []

    async def lose_the_first(call):
        claimed = await call()
        if claimed.jobs and not lost:
            lost.append(len(claimed.jobs))
            raise OutcomeUnknown
        return claimed

    async def quick() -> None: ...

    rig.kind(quick)
    rig.worker_store.on_claim = lose_the_first
    jobs = await rig.enqueue_many(5, "quick")
    async with rig.working() as worker:
        for job in jobs:
            row = await rig.ends(job)
            assert (row.attempt, row.crashes) == (1, 0)
    assert lost == [5]
    assert worker.stats.adopted == 5


async def test_a_claim_that_was_lost_during_a_stop_is_given_back(rig):
    asked = asyncio.Event()
    proceed = asyncio.Event()

    async def lose(call):
        claimed = await call()
        if claimed.jobs:
            asked.set()
            await proceed.wait()
            raise OutcomeUnknown
        return claimed

    async def quick() -> None: ...

    rig.kind(quick)
    rig.worker_store.on_claim = lose
    async with rig.working() as worker:
        job = await rig.enqueue("quick")
        await signalled(asked)
        worker.stop()
        await rig.until(lambda: worker.state == "draining")
        proceed.set()
        await worker.run()
    row = rig.job(job)
    assert (row.state, row.attempt, row.crashes) == (State.AVAILABLE, 0, 0)


@pytest.mark.parametrize("error", [StoreUnavailable, StoreBusy, OutcomeUnknown])
async def test_an_end_is_written_once_the_store_answers_again(rig, error):
    failures: list[int] = []

    async def fail_twice(groups, call):
        if is_finish(groups) and len(failures) < 2:
            failures.append(1)
            if error is OutcomeUnknown:
                await call()
            raise error
        return await call()

    async def quick() -> str:
        return "done"

    rig.kind(quick)
    rig.worker_store.on_commit = fail_twice
    async with rig.working() as worker:
        job = await rig.enqueue("quick")
        await rig.until(lambda: worker.stats.finished == 1)
    assert len(failures) == 2
    assert rig.job(job).state is State.COMPLETED
    assert rig.job(job).attempt == 1
    assert worker.stats.stale == 0


async def test_an_end_that_cannot_be_written_before_its_lease_is_over_is_dropped_and_said(rig, caplog):
    async def refuse(groups, call):
        raise StoreUnavailable

    async def quick() -> None: ...

    rig.kind(quick)
    rig.worker_store.on_commit = refuse
    rig.renewer_store.on_commit = refuse
    async with rig.working(lease_seconds=0.4) as worker:
        await rig.enqueue("quick")
        await rig.until(lambda: worker.stats.unwritten == 1)
        assert len(worker._parts.leases) == 0
    assert any("not written before its lease was over" in record.getMessage() for record in caplog.records)


async def test_one_end_that_the_store_chokes_on_does_not_stop_the_others(rig):
    async def choke(groups, call):
        for group in groups:
            for change in group.changes:
                if getattr(getattr(change, "edits", None), "result", None) == b'"poison"':
                    raise ZeroDivisionError("an error of the store's own")
        return await call()

    async def returns(what: str) -> str:
        return what

    rig.kind(returns)
    rig.worker_store.on_commit = choke
    good = [await rig.enqueue("returns", what="good") for _ in range(3)]
    bad = await rig.enqueue("returns", {"terms": {}}, what="poison")
    async with rig.working():
        for job in good:
            await rig.ends(job)
        row = await rig.ends(bad, State.SCHEDULED)
    assert "could not take the outcome" in row.ends[-1].error


async def test_claims_go_on_after_the_store_was_away(rig, caplog):
    away = True

    async def refuse(call):
        if away:
            raise StoreUnavailable
        return await call()

    async def quick() -> None: ...

    rig.kind(quick)
    rig.worker_store.on_claim = refuse
    async with rig.working():
        job = await rig.enqueue("quick")
        await logged(caplog, "nothing can be claimed", rig)
        away = False
        await rig.ends(job)


async def test_an_error_inside_a_claim_does_not_end_the_claim_loop(rig):
    broken = True

    async def break_once(call):
        nonlocal broken
        if broken:
            broken = False
            raise ZeroDivisionError
        return await call()

    async def quick() -> None: ...

    rig.kind(quick)
    rig.worker_store.on_claim = break_once
    async with rig.working():
        await rig.ends(await rig.enqueue("quick"))


async def test_with_too_many_ends_unwritten_nothing_more_is_claimed(rig, monkeypatch):
    monkeypatch.setattr(fetcher, "BACKLOG", 20)
    gate = asyncio.Event()

    async def wait(groups, call):
        if is_finish(groups):
            await gate.wait()
        return await call()

    async def quick() -> None: ...

    rig.kind(quick)
    rig.worker_store.on_commit = wait
    async with rig.working(concurrency=5, prefetch=0) as worker:
        await rig.enqueue_many(100, "quick")
        await rig.until(lambda: worker._parts.completer.backlog > 20)
        claimed = worker.stats.claimed
        worker._parts.fetcher.poke()
        assert worker._parts.fetcher._wanted() == 0
        gate.set()
        await rig.until(lambda: worker.stats.finished == 100)
    assert claimed < 40


# Rescue -----------------------------------------------------------------------------------------------------


async def abandoned_job(rig: Rig, lease_ms: int):
    """A job whose holder is gone for good."""
    job = await rig.enqueue("quick")
    policy = await Policies().current(rig.store)
    await rig.store.claim(ClaimRequest("gone", (Want("default", 1),), 1, lease_ms, policy))
    assert rig.job(job).state is State.RUNNING
    return job


@pytest.mark.capability("R9")
async def test_a_job_whose_holder_vanished_is_taken_back_and_charged_with_a_crash(rig):
    async def quick() -> None: ...

    rig.kind(quick)
    job = await abandoned_job(rig, 200)
    async with rig.working():
        row = await rig.ends(job, State.SCHEDULED)
    assert (row.crashes, row.failures) == (1, 0)
    assert row.due > row.ends[-1].ended_at


async def test_after_an_outage_longer_than_half_a_lease_what_lapsed_is_taken_back_uncharged(rig):
    """INV-37. The store is away for all sweeps, and the leases of others run out meanwhile."""
    away = False

    def maybe_away() -> None:
        if away:
            raise StoreUnavailable

    async def quick() -> None: ...

    rig.kind(quick)
    rig.renewer_store.on_due = maybe_away
    async with rig.working(lease_seconds=1.2) as worker:
        await rig.ends(await rig.enqueue("quick"))
        worker._parts.fetcher.stop()
        away = True
        began = seam.monotonic()
        job = await abandoned_job(rig, 300)
        await rig.until(lambda: seam.monotonic() - began > 0.9)
        away = False
        back_at = seam.monotonic()
        await rig.until(lambda: rig.job(job).state is not State.RUNNING)
        row = rig.job(job)
        waited = seam.monotonic() - back_at
    assert (row.state, row.crashes) == (State.AVAILABLE, 0)
    assert row.ends[-1].end == "released"
    assert waited > 1.0
