"""Limits of time, cancelling what runs, and stopping a worker."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tessera import Context, Handle, Retry, State, Tessera, Worker
from tessera.engine import inspecting
from tessera.model.errors import StaleLease
from tessera.store.protocol import Store
from tests.scenarios import isolated
from tests.scenarios.rig import PATIENCE, QUICK, Client, logged, reaches, signalled, until, working


class Running:
    """One long job of each sort of handler, and whether it has begun."""

    def __init__(self, app: Tessera, folder: Path) -> None:
        self._app = app
        self._file = folder / "started"
        self.gate = threading.Event()
        self.begun = threading.Event()
        begun, gate = self.begun, self.gate

        @app.job(retry=Retry(base=600))
        async def coroutine() -> str:
            begun.set()
            await asyncio.sleep(30)
            return "was not stopped"

        @app.job(retry=Retry(base=600))
        def thread(*, ctx: Context) -> str:
            begun.set()
            while not ctx.cancelled and not gate.wait(0.005):
                pass
            raise RuntimeError("stopped half-way")

        self.kinds: dict[str, Any] = {
            "coroutine": coroutine,
            "thread": thread,
            "process": app.job(kind="process", isolation="process", retry=Retry(base=600))(isolated.waits),
        }

    async def enqueue(self, how: str, **options: Any) -> Handle[Any]:
        arguments = [str(self._file)] if how == "process" else []
        return await self.kinds[how].with_options(**options).aenqueue(*arguments)

    async def has_begun(self, how: str) -> None:
        async def holds() -> bool:
            return self.pid > 0 if how == "process" else self.begun.is_set()

        await until(self._app, holds, f"the {how} to begin")

    @property
    def pid(self) -> int:
        """The child process; 0 = none yet."""
        return int(self._file.read_text() or 0) if self._file.exists() else 0


@pytest.fixture
def running(app: Tessera, tmp_path: Path):
    made = Running(app, tmp_path)
    yield made
    made.gate.set()


SORTS = ["coroutine", "thread", "process"]


# H7, H8 -----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.capability("H7")
@pytest.mark.parametrize("how", SORTS)
async def test_a_timeout_stops_the_attempt_and_is_a_failure(app: Tessera, running: Running, how: str):
    """A thread cannot be killed: it sees ``ctx.cancelled``. A process is ended whatever it does."""
    seconds = 1.5 if how == "process" else 0.05  # a process must come up first
    handle = await running.enqueue(how, timeout=seconds)
    async with working(app):
        job = await reaches(app, handle, State.SCHEDULED)
        assert (job.attempt, job.failures, job.crashes, job.ends[-1].end) == (1, 1, 0, "timed_out")
    if running.pid:
        assert not isolated.is_alive(running.pid)


@pytest.mark.asyncio
@pytest.mark.capability("H8")
async def test_a_deadline_ends_a_job_over_all_its_attempts(app: Tessera, running: Running):
    handle = await running.enqueue("coroutine", deadline=0.3)
    async with working(app):
        job = await reaches(app, handle, State.DEAD)
    assert (job.reason, job.failures) == ("expired", 0)


@pytest.mark.asyncio
@pytest.mark.capability("H8")
async def test_a_deadline_ends_a_job_that_waits_for_its_retry(app: Tessera):
    @app.job(retry=Retry(base=600), deadline=1)
    async def fails() -> None:
        raise ValueError

    handle = await fails.aenqueue()
    async with working(app):
        job = await reaches(app, handle, State.DEAD)
    assert (job.reason, job.failures) == ("expired", 1)


@pytest.mark.asyncio
@pytest.mark.capability("H8")
async def test_a_job_that_did_not_start_in_time_after_its_due_time_never_does(app: Tessera, client: Client):
    ran: list[int] = []

    @app.job
    async def work(n: int) -> None:
        ran.append(n)

    late = await client(work.with_options(expires=0.05), "enqueue", 1)
    waits = await client(work.with_options(expires=60, delay=0.2), "enqueue", 2)

    async def is_over() -> bool:
        seen = await client(app.jobs, "get", late)
        return bool((await (await app._astore()).due(1, ())).now > seen.created_at.timestamp() * 1_000 + 50)

    await until(app, is_over, "the time to pass")
    async with working(app):
        await waits.aresult(10)  # expiry counts from its due time, which was after the other's end
        assert (await reaches(app, late, State.DEAD)).reason == "expired"
    assert ran == [2]


# Cancelling -------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("draining", [False, True], ids=["at work", "draining"])
@pytest.mark.parametrize("how", SORTS)
async def test_one_cancel_stops_every_sort_of_handler(
    app: Tessera, running: Running, how: str, draining: bool
):
    """U3, for the holders there are: remote ones are to come."""
    handle = await running.enqueue(how)
    async with working(app, grace_seconds=60) as worker:
        await running.has_begun(how)
        if draining:
            worker.stop()
        assert await handle.acancel() is State.RUNNING  # asked to stop; it ends by itself
        job = await reaches(app, handle, State.CANCELLED)
    assert (job.failures, job.crashes, job.ends[-1].end) == (0, 0, "cancelled")
    if running.pid:
        assert not isolated.is_alive(running.pid)


@pytest.mark.asyncio
@pytest.mark.capability("R3")
@pytest.mark.parametrize("how", SORTS)
async def test_a_hard_cancel_takes_the_lease_and_nothing_of_that_run_is_written(
    app: Tessera, running: Running, how: str
):
    handle = await running.enqueue(how)
    async with working(app, lease_seconds=0.6) as worker:
        await running.has_begun(how)
        before = await handle.aget()
        assert await handle.acancel(hard=True) is State.CANCELLED

        async def is_stopped() -> bool:
            return worker.in_flight == 0

        await until(app, is_stopped, "the renewal to find the lease lost and the handler to be stopped")
        assert worker.stats.fenced == 1
    job = await handle.aget()
    assert (job.state, job.failures, job.crashes, job.progress) == (State.CANCELLED, 0, 0, before.progress)


# H10 --------------------------------------------------------------------------------------------------------


async def drains(app: Tessera, worker: Worker) -> None:
    async def holds() -> bool:
        return worker.state == "draining"

    await until(app, holds, "the worker to drain")


@pytest.mark.asyncio
@pytest.mark.capability("H10")
async def test_a_stop_takes_nothing_new_keeps_the_leases_and_lets_handlers_end(app: Tessera):
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.job
    async def work(n: int) -> int:
        begun.set()
        await gate.wait()
        return n

    handle = await work.aenqueue(1)
    async with working(app, grace_seconds=60, lease_seconds=1) as worker:
        await signalled(begun)
        worker.stop()
        await drains(app, worker)
        late = await work.aenqueue(2)
        first = (await handle.aget()).lease_until

        async def is_renewed() -> bool:
            until_now = (await handle.aget()).lease_until
            return until_now is not None and first is not None and (until_now - first).total_seconds() > 1

        await until(app, is_renewed, "the lease to be kept for longer than it is")
        gate.set()
        assert await handle.aresult(10) == 1
    waiting = await late.aget()
    assert (waiting.state, waiting.attempt) == (State.AVAILABLE, 0)


@pytest.mark.asyncio
@pytest.mark.capability("H10")
@pytest.mark.parametrize("how", SORTS)
async def test_when_the_grace_is_over_what_runs_is_released_uncharged_and_at_once(
    app: Tessera, running: Running, how: str
):
    handle = await running.enqueue(how)
    async with working(app, grace_seconds=0):
        await running.has_begun(how)
    job = await handle.aget()
    assert (job.state, job.failures, job.crashes, job.ends[-1].end) == (State.AVAILABLE, 0, 0, "released")


@pytest.mark.capability("H10")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_graceful_and_the_second_is_not(
    app: Tessera, sibling: Callable[[], Tessera], number: signal.Signals
):
    begun, beside = threading.Event(), sibling()
    states: list[str] = []
    pause = threading.Event()

    @app.job
    async def work() -> None:
        begun.set()
        await asyncio.sleep(30)

    def send_twice() -> None:
        assert begun.wait(PATIENCE)
        os.kill(os.getpid(), number)
        while "draining" not in beside._run(worker_states):
            pause.wait(0.01)
        states.append(handle.get().state)
        os.kill(os.getpid(), number)

    handle = beside.job(kind="work")(work.function).enqueue()
    sender = threading.Thread(target=send_twice)
    sender.start()
    assert app.run_worker(**{**QUICK, "grace_seconds": 60}) == 0
    sender.join(PATIENCE)
    assert states == [State.RUNNING]  # after the first one it was let go on
    job = beside.jobs.get(handle)
    assert (job.state, job.ends[-1].end, job.failures) == (State.AVAILABLE, "released", 0)


async def worker_states(store: Store) -> list[str]:
    return [worker.state for worker in await inspecting.workers(store)]


# U4 ---------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.capability("U4")
async def test_a_handler_that_blocks_the_loop_past_its_lease_keeps_it_and_is_reported_with_its_stack(
    app: Tessera, caplog: pytest.LogCaptureFixture
):
    @app.job
    async def computes_without_an_await() -> str:
        threading.Event().wait(1.5)
        return "done"

    handle = await computes_without_an_await.aenqueue()
    async with working(app, lease_seconds=0.9, lag_seconds=0.4), working(app, queues=["elsewhere"]):
        assert await handle.aresult(10) == "done"
        record = await logged(app, caplog, "the event loop has not turned for")
    assert "computes_without_an_await" in record.getMessage()
    job = await handle.aget()
    assert (job.attempt, job.crashes) == (1, 0)


@pytest.mark.asyncio
@pytest.mark.capability("U4")
async def test_a_handler_that_goes_on_after_it_was_asked_to_stop_is_reported_with_its_stack(
    app: Tessera, caplog: pytest.LogCaptureFixture
):
    gate = threading.Event()

    @app.job(timeout=0.05)
    def is_deaf() -> str:
        gate.wait(10)
        return "in the end"

    handle = await is_deaf.aenqueue()
    async with working(app, hang_seconds=0.1):
        record = await logged(app, caplog, "a handler goes on")
        gate.set()
        assert await handle.aresult(10) == "in the end"
    assert "in is_deaf" in record.getMessage()
    assert record.__dict__["kind"] == "is_deaf"


@pytest.mark.asyncio
async def test_a_job_whose_lease_is_gone_enqueues_nothing_any_more(app: Tessera):
    """INV-7, INV-10: what a handler stores through its context is fenced like its end."""
    refused = asyncio.Event()
    began = asyncio.Event()
    go_on = asyncio.Event()

    @app.job
    async def follow() -> None: ...

    @app.job
    async def lead(*, ctx: Context) -> None:
        began.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        try:
            await ctx.aenqueue(follow)
        except StaleLease:
            refused.set()

    job = await lead.aenqueue()
    async with working(app):
        await asyncio.wait_for(began.wait(), PATIENCE)
        await app.jobs.acancel(job, hard=True)
        go_on.set()
        await asyncio.wait_for(refused.wait(), PATIENCE)
    assert (await app.jobs.alist(kind="follow")).jobs == ()
