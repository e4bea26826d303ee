"""Cancelling a running job, and stopping a worker."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

import pytest

from tessera.model.errors import StoreUnavailable
from tessera.model.outcomes import Cancelled, Completed, Expired, Failed, Released, Snoozed
from tessera.model.states import State
from tessera.worker.attempt import Stop
from tessera.worker.context import Context
from tessera.worker.signals import stops_on_signals
from tessera.worker.verdict import when_stopped
from tests.shape.source_rules import ROOT
from tests.worker.rig import Rig, logged, seconds, signalled

pytestmark = pytest.mark.asyncio


class Waiting:
    """A coroutine and a plain function that run until they are stopped or let go."""

    def __init__(self, rig: Rig) -> None:
        self.started = asyncio.Event()
        self.gate = asyncio.Event()
        self.thread_started = threading.Event()
        self.thread_gate = threading.Event()

        async def coroutine() -> str:
            self.started.set()
            await self.gate.wait()
            return "ended by itself"

        def plain(ctx: Context) -> str:
            self.thread_started.set()
            while not ctx.cancelled and not self.thread_gate.wait(0.005):
                pass
            return "looked at ctx.cancelled"

        def deaf() -> str:
            self.thread_started.set()
            self.thread_gate.wait(30)
            return "ended by itself"

        for function in (coroutine, plain, deaf):
            rig.kind(function)


@pytest.fixture
def waiting(rig):
    made = Waiting(rig)
    yield made
    made.thread_gate.set()


async def test_cancel_stops_a_coroutine(rig, waiting):
    async with rig.working():
        job = await rig.enqueue("coroutine")
        await signalled(waiting.started)
        await rig.cancel(job)
        row = await rig.ends(job, State.CANCELLED)
    assert row.ends[-1].end == "cancelled"


async def test_a_thread_sees_a_cancel_and_its_work_stands(rig, waiting):
    async with rig.working():
        job = await rig.enqueue("plain")
        await rig.until(waiting.thread_started.is_set)
        await rig.cancel(job)
        await rig.ends(job)
    assert rig.result(job) == "looked at ctx.cancelled"


async def test_a_cancelled_handler_that_fails_is_cancelled_and_not_retried(rig):
    started = asyncio.Event()

    async def wraps() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise RuntimeError("interrupted") from None

    rig.kind(wraps)
    async with rig.working():
        job = await rig.enqueue("wraps")
        await signalled(started)
        await rig.cancel(job)
        await rig.ends(job, State.CANCELLED)


async def test_cancel_works_while_the_worker_drains(rig, waiting):
    async with rig.working(grace_seconds=60) as worker:
        job = await rig.enqueue("coroutine")
        await signalled(waiting.started)
        worker.stop()
        await rig.until(lambda: worker.state == "draining")
        await rig.cancel(job)
        async with seconds(5, "the end of the drain"):
            await worker.run()
    assert rig.job(job).state is State.CANCELLED


async def test_cancel_of_a_job_that_waits_in_the_buffer(rig, waiting):
    async with rig.working(concurrency=1, prefetch=5):
        await rig.enqueue("coroutine")
        await signalled(waiting.started)
        job = await rig.enqueue("coroutine")
        await rig.until(lambda: rig.job(job).state is State.RUNNING)
        await rig.cancel(job)
        await rig.ends(job, State.CANCELLED)
        waiting.gate.set()


@pytest.mark.parametrize(
    "stop, outcome, after",
    [
        (Stop.LEASE, Completed(), None),
        (Stop.LEASE, None, None),
        (Stop.CANCEL, Completed(b"1"), Completed(b"1")),
        (Stop.CANCEL, Snoozed(5), Cancelled("cancelled while it ran")),
        (Stop.DEADLINE, Failed("x"), Expired()),
        (Stop.DEADLINE, None, Expired()),
        (Stop.TIMEOUT, Failed("x", 5), Failed("x", 5, timed_out=True)),
        (Stop.TIMEOUT, None, Failed("timed out after 2 s", timed_out=True)),
        (Stop.TIMEOUT, Snoozed(5), Snoozed(5)),
        (Stop.SHUTDOWN, None, Released(reason="shutdown")),
        (Stop.SHUTDOWN, Failed("x"), Released(reason="shutdown")),
        (Stop.SHUTDOWN, Snoozed(5), Snoozed(5)),
    ],
)
async def test_the_reason_of_a_stop_decides_what_becomes_of_an_outcome(stop, outcome, after):
    assert when_stopped(stop, outcome, timeout_seconds=2) == after


# Stopping the worker ----------------------------------------------------------------------------------------


@pytest.mark.capability("H10")
async def test_a_stop_lets_running_handlers_end(rig, waiting):
    async with rig.working(grace_seconds=60) as worker:
        job = await rig.enqueue("coroutine")
        await signalled(waiting.started)
        worker.stop()
        await rig.until(lambda: worker.state == "draining")
        waiting.gate.set()
        async with seconds(5, "the end of the drain"):
            await worker.run()
    assert rig.result(job) == "ended by itself"


@pytest.mark.capability("H10")
async def test_after_a_stop_nothing_is_claimed(rig, waiting):
    async with rig.working(grace_seconds=60) as worker:
        await rig.enqueue("coroutine")
        await signalled(waiting.started)
        worker.stop()
        await rig.until(lambda: worker.state == "draining")
        late = await rig.enqueue("coroutine")
        waiting.gate.set()
        await worker.run()
    assert rig.job(late).state is State.AVAILABLE
    assert rig.job(late).attempt == 0


@pytest.mark.capability("A9")
async def test_a_stop_gives_the_buffer_back_uncharged(rig, waiting):
    async with rig.working(concurrency=1, prefetch=10, grace_seconds=60) as worker:
        jobs = await rig.enqueue_many(6, "coroutine")
        await signalled(waiting.started)
        await rig.until(lambda: worker.buffered == 5)
        worker.stop()
        await rig.until(lambda: worker.stats.given_back == 5)
        assert worker.in_flight == 1
        waiting.gate.set()
        await worker.run()
    rows = sorted((rig.job(job) for job in jobs), key=lambda row: row.id)
    assert [row.state for row in rows] == [State.COMPLETED, *[State.AVAILABLE] * 5]
    assert [(row.attempt, row.failures, row.crashes) for row in rows[1:]] == [(0, 0, 0)] * 5


@pytest.mark.capability("H10")
async def test_when_the_grace_is_over_what_runs_is_released_uncharged(rig, waiting):
    async with rig.working(grace_seconds=0.05) as worker:
        job = await rig.enqueue("coroutine")
        await signalled(waiting.started)
        worker.stop()
        await worker.run()
    row = rig.job(job)
    assert (row.state, row.failures, row.crashes) == (State.AVAILABLE, 0, 0)
    assert row.ends[-1].end == "released"


@pytest.mark.capability("H10")
async def test_leases_are_kept_while_the_worker_drains(rig, waiting):
    async with rig.working(lease_seconds=0.6, grace_seconds=60) as worker:
        job = await rig.enqueue("coroutine")
        await signalled(waiting.started)
        worker.stop()
        await rig.until(lambda: worker.state == "draining")
        until = rig.job(job).lease_until
        await rig.until(lambda: rig.world.now() > until + 300)
        waiting.gate.set()
        await worker.run()
    assert rig.job(job).state is State.COMPLETED
    assert rig.job(job).attempt == 1


@pytest.mark.capability("H10")
async def test_a_second_stop_does_not_wait(rig, waiting):
    async with rig.working(grace_seconds=60) as worker:
        job = await rig.enqueue("coroutine")
        await signalled(waiting.started)
        worker.stop()
        await rig.until(lambda: worker.state == "draining")
        worker.stop_now()
        async with seconds(5, "the end after stop_now"):
            await worker.run()
    assert rig.job(job).ends[-1].end == "released"


@pytest.mark.capability("H10")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_is_graceful_and_the_second_is_not(rig, waiting, number):
    before = signal.getsignal(number)
    async with rig.working(grace_seconds=60) as worker:
        job = await rig.enqueue("coroutine")
        await signalled(waiting.started)
        with stops_on_signals(worker):
            os.kill(os.getpid(), number)
            await rig.until(lambda: worker.state == "draining")
            assert worker.in_flight == 1
            os.kill(os.getpid(), number)
            async with seconds(5, "the end after the second signal"):
                await worker.run()
    assert rig.job(job).ends[-1].end == "released"
    assert signal.getsignal(number) is before


async def test_a_thread_that_does_not_stop_is_named_and_its_lease_left_to_lapse(rig, waiting, caplog):
    async with rig.working(grace_seconds=0, cancel_grace_seconds=0.05) as worker:
        job = await rig.enqueue("deaf")
        await rig.until(waiting.thread_started.is_set)
        worker.stop()
        await worker.run()
    assert rig.job(job).state is State.RUNNING
    assert worker.stats.abandoned == 1
    record = await logged(caplog, "a handler did not stop", rig)
    assert record.__dict__["kind"] == "deaf"


async def test_a_thread_that_does_not_stop_is_released_if_the_process_ends_with_it(rig, waiting):
    async with rig.working(grace_seconds=0, cancel_grace_seconds=0.05, ends_process=True) as worker:
        job = await rig.enqueue("deaf")
        await rig.until(waiting.thread_started.is_set)
        worker.stop()
        await worker.run()
    row = rig.job(job)
    assert (row.state, row.failures, row.crashes) == (State.SCHEDULED, 0, 0)
    assert row.due - row.ends[-1].ended_at == 5_000


async def test_what_an_abandoned_thread_does_later_changes_nothing(rig, waiting):
    async with rig.working(grace_seconds=0, cancel_grace_seconds=0.05, ends_process=True) as worker:
        job = await rig.enqueue("deaf")
        await rig.until(waiting.thread_started.is_set)
        worker.stop()
        await worker.run()
    waiting.thread_gate.set()
    [attempt] = worker._parts.slots._given_up
    await rig.until(lambda: attempt.runner.done())
    assert rig.job(job).state is State.SCHEDULED
    assert worker.stats.finished == 1


async def test_leaving_the_block_stops_the_worker(rig):
    async def quick() -> None: ...

    rig.kind(quick)
    async with rig.working() as worker:
        await rig.ends(await rig.enqueue("quick"))
        assert worker.state == "running"
    assert worker.state == "stopped"


async def test_a_worker_may_be_stopped_from_a_thread(rig):
    async with rig.working() as worker:
        threading.Thread(target=worker.stop).start()
        async with seconds(5, "the end"):
            await worker.run()
    assert worker.state == "stopped"


async def test_a_worker_lives_once(rig):
    async with rig.working() as worker:
        pass
    with pytest.raises(RuntimeError, match="lives once"):
        await worker.__aenter__()


async def test_run_needs_an_entered_worker(rig):
    with pytest.raises(RuntimeError, match="enter the worker first"):
        await rig.worker().run()


async def test_a_store_that_does_not_open_is_the_callers_error(rig):
    worker = rig.worker()

    async def refuse() -> None:
        raise StoreUnavailable

    worker._open_renewer_store = refuse
    with pytest.raises(StoreUnavailable):
        async with worker:
            pass
    assert not rig.worker_store._is_open


async def test_no_thread_outlives_the_worker(rig, waiting):
    before = threading.active_count()
    waiting.thread_gate.set()
    async with rig.working():
        await rig.ends(await rig.enqueue("plain"))
    await rig.until(lambda: threading.active_count() <= before, "all threads to end")


SCRIPT = """
import asyncio, os, signal
from tests.worker.rig import Rig
from tessera.store.protocol import run_blocking
from tessera.worker import run_until_signalled

rig = Rig()
run_blocking(rig.store.open())

async def ends_the_process() -> str:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.2)
    return "ended by itself"

rig.kind(ends_the_process)
job = run_blocking(rig.enqueue("ends_the_process"))
status = run_until_signalled(rig.worker(ends_process=True))
print(status, rig.result(job))
"""


@pytest.mark.capability("H10")
async def test_a_process_that_is_a_worker_ends_by_a_signal_after_its_last_job():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", SCRIPT, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    async with seconds(30, "the process to end"):
        out, _ = await process.communicate()
    assert (process.returncode, out.split()[0], out.split(maxsplit=1)[1].strip()) == (
        0,
        b"0",
        b"ended by itself",
    )


async def test_a_worker_that_is_told_to_stop_before_it_has_begun_stops_as_soon_as_it_has(rig):
    """A signal may come while the store is being opened."""
    worker = rig.worker(grace_seconds=5)
    worker.stop()
    async with worker:
        async with seconds(5, "the end of the worker"):
            await worker.run()
        assert worker.state == "stopped"
