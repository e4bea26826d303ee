"""Limits of time: of an attempt, of a job, and of waiting to begin."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tessera.model.changes import After
from tessera.model.control import Snooze
from tessera.model.states import State
from tessera.worker.context import Context
from tests.worker.rig import signalled

pytestmark = pytest.mark.asyncio


@pytest.mark.capability("H7")
async def test_a_timeout_cancels_a_coroutine_and_is_a_failure(rig):
    async def slow() -> None:
        await asyncio.sleep(60)

    rig.kind(slow)
    async with rig.working():
        job = await rig.ends(await rig.enqueue("slow", {"terms": {"timeout_ms": 50}}), State.SCHEDULED)
    assert (job.failures, job.crashes, job.ends[-1].end) == (1, 0, "timed_out")
    assert "timed out after 0.05 s" in job.ends[-1].error


@pytest.mark.capability("H7")
async def test_a_handler_in_time_is_not_cancelled_later(rig):
    ended = asyncio.Event()

    async def quick() -> str:
        return "done"

    async def next_one() -> None:
        await asyncio.sleep(0.2)
        ended.set()

    rig.kind(quick)
    rig.kind(next_one)
    async with rig.working(concurrency=1):
        first = await rig.enqueue("quick", {"terms": {"timeout_ms": 100}})
        second = await rig.enqueue("next_one")
        await rig.ends(first)
        await rig.ends(second)
    assert ended.is_set()


@pytest.mark.capability("H7")
async def test_work_that_is_finished_in_spite_of_the_timeout_stands(rig):
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "saved what there was"
        return ""

    rig.kind(stubborn)
    async with rig.working():
        job = await rig.enqueue("stubborn", {"terms": {"timeout_ms": 50}})
        await rig.ends(job)
    assert rig.result(job) == "saved what there was"


@pytest.mark.capability("H7")
async def test_a_thread_sees_its_timeout_and_keeps_its_slot_until_it_ends(rig):
    running = threading.Event()
    proceed = threading.Event()
    overlapped: list[str] = []

    def slow(ctx: Context) -> None:
        running.set()
        while not ctx.cancelled:
            threading.Event().wait(0.005)
        proceed.wait(10)
        running.clear()
        raise RuntimeError("stopped in the middle")

    def next_one() -> None:
        if running.is_set():
            overlapped.append("next_one")

    rig.kind(slow)
    rig.kind(next_one)
    async with rig.working(concurrency=1) as worker:
        job = await rig.enqueue("slow", {"terms": {"timeout_ms": 50}})
        other = await rig.enqueue("next_one")
        await rig.until(lambda: any(a.stop for a in worker._parts.slots.attempts))
        proceed.set()
        row = await rig.ends(job, State.SCHEDULED)
        await rig.ends(other)
    assert (row.ends[-1].end, row.failures) == ("timed_out", 1)
    assert "stopped in the middle" in row.ends[-1].error
    assert overlapped == []


async def test_control_raised_after_the_timeout_stands(rig):
    async def careful() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise Snooze(60) from None

    rig.kind(careful)
    async with rig.working():
        job = await rig.ends(await rig.enqueue("careful", {"terms": {"timeout_ms": 50}}), State.SCHEDULED)
    assert job.ends[-1].end == "snoozed"


@pytest.mark.capability("H8")
async def test_the_deadline_ends_a_running_job_for_good(rig):
    async def slow() -> None:
        await asyncio.sleep(60)

    rig.kind(slow)
    async with rig.working():
        job = await rig.ends(await rig.enqueue("slow", {"deadline": After(300)}), State.DEAD)
    assert job.reason == "expired"
    assert job.failures == 0


@pytest.mark.capability("H8")
async def test_a_failure_after_the_deadline_is_no_retry(rig):
    def slow(ctx: Context) -> None:
        while not ctx.cancelled:
            threading.Event().wait(0.005)
        raise RuntimeError

    rig.kind(slow)
    async with rig.working():
        job = await rig.ends(await rig.enqueue("slow", {"deadline": After(300)}), State.DEAD)
    assert job.reason == "expired"


@pytest.mark.capability("H8")
async def test_a_job_that_expires_in_the_buffer_does_not_begin(rig):
    begun: list[int] = []
    gate = asyncio.Event()

    async def first() -> None:
        await gate.wait()

    async def second() -> None:
        begun.append(1)

    rig.kind(first)
    rig.kind(second)
    async with rig.working(concurrency=1, prefetch=5):
        await rig.enqueue("first")
        job = await rig.enqueue("second", {"expires": 150})
        await rig.until(lambda: rig.job(job).state is State.RUNNING)
        await rig.until(lambda: rig.world.now() > rig.job(job).expires_at)
        gate.set()
        row = await rig.ends(job, State.DEAD)
    assert row.reason == "expired"
    assert begun == []


async def test_the_context_says_when_it_will_be_stopped(rig):
    seen: list[float] = []
    asked = asyncio.Event()

    async def looks(ctx: Context) -> None:
        assert ctx.deadline is not None
        seen.append(ctx.deadline.timestamp() * 1_000 - ctx.job.claimed_at)
        asked.set()

    rig.kind(looks)
    async with rig.working():
        await rig.enqueue("looks", {"terms": {"timeout_ms": 60_000}})
        await signalled(asked)
        asked.clear()
        await rig.enqueue("looks", {"terms": {"timeout_ms": 60_000}, "deadline": After(20_000)})
        await signalled(asked)
    assert 59_000 < seen[0] < 61_000
    assert 19_000 < seen[1] < 21_000
