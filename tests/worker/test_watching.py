"""What the worker says in its log when something no longer moves, and the record that says it lives."""

from __future__ import annotations

import asyncio
import logging
import threading

import msgspec
import pytest

from tessera.engine.duties import DUTY_SPACE
from tessera.engine.inspecting import workers
from tessera.model.errors import StoreUnavailable
from tessera.model.states import State
from tessera.model.worker import WORKER_SPACE, WorkerInfo
from tessera.worker.context import Context
from tests.worker.rig import logged, signalled

pytestmark = pytest.mark.asyncio


async def test_a_blocked_event_loop_is_logged_with_the_line_that_blocks_it(rig, caplog):
    gate = threading.Event()

    async def blocks_the_loop() -> None:
        gate.wait(2)  # as a computation would, but this one can be ended

    def let_go() -> None:
        while not any("has not turned" in record.getMessage() for record in list(caplog.records)):
            threading.Event().wait(0.01)
        gate.set()

    rig.kind(blocks_the_loop)
    async with rig.working(lag_seconds=0.2):
        watcher = threading.Thread(target=let_go)
        watcher.start()
        job = await rig.enqueue("blocks_the_loop")
        await rig.ends(job)
        record = await logged(caplog, "has not turned", rig)
        await logged(caplog, "turns again", rig)
        watcher.join()
    assert "in blocks_the_loop" in record.getMessage()
    assert record.levelno == logging.ERROR


async def test_a_loop_that_stays_blocked_is_logged_ever_more_rarely(rig, caplog):
    async def blocks_the_loop() -> None:
        threading.Event().wait(1.5)

    rig.kind(blocks_the_loop)
    async with rig.working(lag_seconds=0.1):
        await rig.ends(await rig.enqueue("blocks_the_loop"))
    lines = [record for record in caplog.records if "has not turned" in record.getMessage()]
    assert 1 <= len(lines) <= 3


@pytest.mark.capability("R8")
async def test_a_thread_that_ignores_a_cancel_is_logged_once_with_its_stack(rig, caplog):
    started, gate = threading.Event(), threading.Event()

    def deaf_handler() -> None:
        started.set()
        gate.wait(30)

    rig.kind(deaf_handler)
    async with rig.working(hang_seconds=0.1) as worker:
        job = await rig.enqueue("deaf_handler")
        await rig.until(started.is_set)
        await rig.cancel(job)
        record = await logged(caplog, "after it was asked to stop (cancel)", rig)
        turns = worker._parts.watchdog
        turns._look_at_the_handlers(worker._parts.slots.attempts[0].stopped_at + 60)
        gate.set()
        await rig.ends(job)
    assert "in deaf_handler" in record.getMessage()
    assert record.__dict__["job"]
    assert sum("after it was asked to stop" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.capability("R8")
async def test_a_coroutine_that_ignores_a_cancel_is_logged_with_its_stack(rig, caplog):
    started, gate = asyncio.Event(), asyncio.Event()

    async def deaf_coroutine() -> None:
        started.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    rig.kind(deaf_coroutine)
    async with rig.working(hang_seconds=0.1):
        job = await rig.enqueue("deaf_coroutine")
        await signalled(started)
        await rig.cancel(job)
        record = await logged(caplog, "after it was asked to stop", rig)
        gate.set()
        await rig.ends(job)
    assert "deaf_coroutine" in record.getMessage()


async def test_a_worker_that_cannot_claim_says_so_and_is_unhealthy_until_it_can(rig, caplog):
    away = True

    async def refuse(call):
        if away:
            raise StoreUnavailable
        return await call()

    async def quick() -> None: ...

    rig.kind(quick)
    caplog.set_level(logging.INFO, "tessera.worker")
    rig.worker_store.on_claim = refuse
    async with rig.working(claim_watchdog_seconds=0.2) as worker:
        await logged(caplog, "nothing could be claimed for", rig)
        assert not worker.healthy
        await rig.until(lambda: record_of(rig).state == "unhealthy")
        away = False
        await logged(caplog, "the worker claims again", rig)
        assert worker.healthy
        await rig.until(lambda: record_of(rig).state == "running")


async def test_a_claim_that_hangs_is_no_successful_claim(rig):
    gate = asyncio.Event()

    async def hang(call):
        await gate.wait()
        return await call()

    async def quick() -> None: ...

    rig.kind(quick)
    rig.worker_store.on_claim = hang
    async with rig.working(claim_watchdog_seconds=0.2) as worker:
        await rig.until(lambda: not worker.healthy)
        gate.set()
        await rig.until(lambda: worker.healthy)


async def test_a_worker_whose_slots_are_all_taken_is_healthy(rig):
    started, gate = asyncio.Event(), asyncio.Event()

    async def long() -> None:
        started.set()
        await gate.wait()

    rig.kind(long)
    async with rig.working(claim_watchdog_seconds=1.5, concurrency=1) as worker:
        await rig.enqueue("long")
        await signalled(started)
        alive = worker._parts.fetcher.alive_at
        await rig.until(lambda: worker._parts.fetcher.alive_at > alive)
        assert worker.healthy
        gate.set()


# The record -------------------------------------------------------------------------------------------------


def record_of(rig):
    """What the only worker says of itself; before it said anything, an empty answer."""
    with rig.world.lock:
        records = [record for (space, _), record in rig.world.records.items() if space == WORKER_SPACE]
    return msgspec.json.decode(records[0].value, type=WorkerInfo) if records else WorkerInfo("", state="")


async def test_a_worker_says_what_it_is(rig):
    async def quick() -> None: ...

    rig.kind(quick)
    async with rig.working(name="one", queues=["mail", "default"], concurrency=7) as worker:
        await rig.until(lambda: rig.world.records)
        await rig.until(lambda: any(space == "~worker" for space, _ in rig.world.records))
        [info] = await workers(rig.store)
    assert (info.incarnation, info.name) == (worker.incarnation, "one")
    assert (info.queues, info.kinds, info.concurrency) == (("mail", "default"), ("quick",), 7)
    assert info.pid > 0
    assert info.version


async def test_a_worker_that_drains_says_so(rig):
    started, gate = asyncio.Event(), asyncio.Event()

    async def long() -> None:
        started.set()
        await gate.wait()

    rig.kind(long)
    async with rig.working(grace_seconds=60) as worker:
        await rig.enqueue("long")
        await signalled(started)
        worker.stop()
        await rig.until(lambda: record_of(rig).state == "draining")
        gate.set()


async def test_a_worker_that_ends_leaves_nothing_behind(rig):
    async def quick() -> None: ...

    rig.kind(quick)
    async with rig.working():
        await rig.until(lambda: {space for space, _ in rig.world.records} >= {"~worker", DUTY_SPACE})
    assert {space for space, _ in rig.world.records} & {"~worker", DUTY_SPACE} == set()


async def test_a_store_that_is_away_at_the_end_is_no_error(rig):
    async def quick() -> None: ...

    async def refuse(groups, call):
        raise StoreUnavailable

    rig.kind(quick)
    async with rig.working():
        await rig.ends(await rig.enqueue("quick"))
        rig.renewer_store.on_commit = refuse


async def test_the_log_names_job_kind_and_attempt(rig, caplog):
    async def quick(ctx: Context) -> None: ...

    rig.kind(quick)
    caplog.set_level(logging.DEBUG, "tessera.worker")
    async with rig.working():
        job = await rig.enqueue("quick")
        assert (await rig.ends(job)).state is State.COMPLETED
    starts = [record for record in caplog.records if record.getMessage() == "attempt starts"]
    assert [(record.__dict__["kind"], record.__dict__["attempt"]) for record in starts] == [("quick", 1)]
