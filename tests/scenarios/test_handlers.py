"""What a handler is given, what it may ask for, and what becomes of what it says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from tessera import Context, Handle, Retry, State, Tessera
from tests.scenarios.rig import reaches, signalled, until, working

pytestmark = pytest.mark.asyncio


@dataclass
class Page:
    number: int
    at: datetime


HOWS = ["coroutine", "plain"]


# H1 ---------------------------------------------------------------------------------------------------------


@pytest.mark.capability("H1")
@pytest.mark.parametrize("how", HOWS)
async def test_arguments_arrive_as_annotated(app: Tessera, how: str):
    seen: list[object] = []

    async def coroutine(page: Page, tags: set[str]) -> None:
        seen.extend((page, tags))

    def plain(page: Page, tags: set[str]) -> None:
        seen.extend((page, tags))

    kind = app.job({"coroutine": coroutine, "plain": plain}[how])
    page = Page(7, datetime(2026, 11, 30, tzinfo=UTC))
    async with working(app):
        await (await kind.aenqueue(page, tags={"a"})).aresult(10)
    assert seen == [page, {"a"}]


@pytest.mark.capability("H1")
@pytest.mark.parametrize("how", HOWS)
async def test_a_payload_that_does_not_fit_ends_the_job_before_user_code_and_without_retries(
    app: Tessera, sibling: Callable[[], Tessera], how: str
):
    ran: list[int] = []

    @app.job(kind="read")
    async def before_the_deploy(page: str) -> None: ...

    async def coroutine(page: int) -> None:
        ran.append(page)

    def plain(page: int) -> None:
        ran.append(page)

    handle = await before_the_deploy.aenqueue("seven")
    after = sibling()
    after.job(kind="read")({"coroutine": coroutine, "plain": plain}[how])
    async with working(after):
        job = await reaches(app, handle, State.DEAD)
    assert (job.reason, job.attempt, job.failures, ran) == ("undecodable", 1, 0, [])


# H9 ---------------------------------------------------------------------------------------------------------


@pytest.mark.capability("H9")
@pytest.mark.parametrize("how", HOWS)
async def test_whatever_a_handler_raises_is_a_failure_by_name_and_the_worker_stays(app: Tessera, how: str):
    errors = [
        ValueError,
        SystemExit,
        KeyboardInterrupt,
        RecursionError,
        GeneratorExit,
        asyncio.CancelledError,
    ]

    async def coroutine(n: int) -> None:
        raise errors[n]("no such page")

    def plain(n: int) -> None:
        raise errors[n]("no such page")

    @app.job
    async def good() -> str:
        return "still here"

    bad = app.job(retry=Retry(base=600))({"coroutine": coroutine, "plain": plain}[how])
    handles = [await bad.aenqueue(n) for n in range(len(errors))]
    async with working(app):
        for handle, error in zip(handles, errors, strict=True):
            job = await reaches(app, handle, State.SCHEDULED)
            assert (job.failures, job.crashes, job.ends[-1].end) == (1, 0, "failed")
            assert error.__name__ in job.ends[-1].error
        assert await (await good.aenqueue()).aresult(10) == "still here"


# H12 to H15 -------------------------------------------------------------------------------------------------


async def test_what_a_handler_says_is_readable_while_it_runs_and_afterwards(app: Tessera):
    """H12, H14 and H15, as far as they are built."""
    gate = asyncio.Event()

    @app.job
    async def digest(*, ctx: Context) -> str:
        ctx.progress(1, 10, "page 1")
        ctx.progress(3, 10, "page 3")
        ctx.log.info("read %d pages", 3)
        ctx.output({"pages": [1, 2, 3]})
        await gate.wait()
        return "all read"

    handle = await digest.aenqueue()
    async with working(app):

        async def is_told() -> bool:
            job = await handle.aget()
            return job.state is State.RUNNING and job.output == {"pages": [1, 2, 3]}

        await until(app, is_told, "the output of a running job")
        gate.set()
        await handle.aresult(10)
    job = await handle.aget()
    assert job.progress is not None
    assert (job.progress["current"], job.progress["total"], job.progress["message"]) == (3, 10, "page 3")
    assert [line.split(" ", 1)[1] for line in job.log] == ["INFO read 3 pages"]


async def test_a_result_is_the_value_by_its_annotation_and_lives_as_long_as_the_job(app: Tessera):
    """H13, save results of over 256 KiB, which are refused."""

    @app.job
    def measure(number: int) -> Page:
        return Page(number, datetime(2026, 11, 30, tzinfo=UTC))

    handle = await measure.aenqueue(7)
    async with working(app):
        assert await handle.aresult(10) == Page(7, datetime(2026, 11, 30, tzinfo=UTC))
    assert (await app.jobs.aget(handle, reveal=True)).result == {"number": 7, "at": "2026-11-30T00:00:00Z"}
    [listed] = (await app.jobs.alist()).jobs
    assert "result" not in {name for name in listed.__struct_fields__ if getattr(listed, name)}


# H16 --------------------------------------------------------------------------------------------------------


@pytest.mark.capability("H16")
@pytest.mark.parametrize("how", HOWS)
async def test_an_attempts_own_data_hides_the_workers_and_is_no_other_attempts(app: Tessera, how: str):
    both = threading.Barrier(2, timeout=10)
    seen: dict[int, list[object]] = {}

    def look(n: int, ctx: Context) -> None:
        seen[n] = [ctx.data["db"], ctx.data.get("mine")]
        ctx.data["db"] = ctx.data["mine"] = n

    async def coroutine(n: int, *, ctx: Context) -> None:
        look(n, ctx)
        await asyncio.to_thread(both.wait)  # two attempts at once, each past its write
        seen[n] += [ctx.data["db"], ctx.data["mine"]]

    def plain(n: int, *, ctx: Context) -> None:
        look(n, ctx)
        both.wait()
        seen[n] += [ctx.data["db"], ctx.data["mine"]]

    kind = app.job({"coroutine": coroutine, "plain": plain}[how])
    worker = working(app, concurrency=2)
    worker.data["db"] = "the worker's"
    handles = [await kind.aenqueue(n) for n in (1, 2)]
    async with worker:
        for handle in handles:
            await handle.aresult(10)
    assert seen == {n: ["the worker's", None, n, n] for n in (1, 2)}
    assert worker.data == {"db": "the worker's"}


# H17 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOWS)
async def test_a_handler_enqueues_with_its_workers_application(app: Tessera, how: str):
    """H17, save traces, which are not built."""

    @app.job(queue="mail")
    async def mail(to: str) -> str:
        return f"to {to}"

    async def coroutine(*, ctx: Context) -> str:
        handle = await ctx.aenqueue(mail, "ada", options={"tags": ["eu"]})
        assert isinstance(handle, Handle)
        return handle.id

    def plain(*, ctx: Context) -> str:
        handle = ctx.enqueue("mail", to="ada", options={"tags": ["eu"]})
        assert isinstance(handle, Handle)
        return handle.id

    kind = app.job({"coroutine": coroutine, "plain": plain}[how])
    async with working(app):
        name = await (await kind.aenqueue()).aresult(10)
        assert isinstance(name, str)
        follow_on = await app.jobs.ahandle(name)
        assert await follow_on.aresult(10) == "to ada"
    job = await follow_on.aget()
    assert (job.queue, job.tags) == ("mail", ("eu",))


# H20 --------------------------------------------------------------------------------------------------------


@pytest.mark.capability("H20")
@pytest.mark.parametrize("how", HOWS)
async def test_a_handler_extends_its_lease_by_more_than_a_beat(app: Tessera, how: str):
    gate = threading.Event()
    extended = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def coroutine(*, ctx: Context) -> None:
        await ctx.aextend(3600)
        extended.set()
        await asyncio.to_thread(gate.wait, 10)

    def plain(*, ctx: Context) -> None:
        ctx.extend(3600)
        loop.call_soon_threadsafe(extended.set)
        gate.wait(10)

    handle = await app.job({"coroutine": coroutine, "plain": plain}[how]).aenqueue()
    async with working(app):
        await signalled(extended)
        job = await handle.aget()
        gate.set()
        await handle.aresult(10)
    assert job.lease_until is not None
    assert (job.lease_until - datetime.now(UTC)).total_seconds() > 3500


@pytest.mark.capability("H20")
@pytest.mark.parametrize("how", HOWS)
async def test_a_handler_gives_its_job_up_and_another_run_takes_it_uncharged(app: Tessera, how: str):
    async def coroutine(*, ctx: Context) -> int:
        if ctx.attempt == 1:
            ctx.release(reason="not here")
        return ctx.attempt

    def plain(*, ctx: Context) -> int:
        if ctx.attempt == 1:
            ctx.release(reason="not here")
        return ctx.attempt

    handle = await app.job({"coroutine": coroutine, "plain": plain}[how]).aenqueue()
    async with working(app):
        assert await handle.aresult(10) == 2
    job = await handle.aget()
    assert (job.failures, job.crashes, job.snoozes) == (0, 0, 0)
    assert [end.end for end in job.ends] == ["released", "completed"]
