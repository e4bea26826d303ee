"""What a handler can say and ask for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tessera.model.errors import InvalidArgument, TooLarge
from tessera.model.ids import show_id
from tessera.model.job import extras_of
from tessera.model.states import State
from tessera.worker.context import ChildResult, Context, ContextServices
from tessera.worker.report import JobLog, Report
from tests.worker.rig import Services, signalled

pytestmark = pytest.mark.asyncio


async def test_a_context_knows_its_job(rig):
    seen: list[tuple[object, ...]] = []

    async def looks(context: Context) -> None:
        seen.append((context.id, context.attempt, context.job.queue, context.deadline, context.cancelled))

    rig.kind(looks)
    async with rig.working():
        plain = await rig.enqueue("looks")
        await rig.ends(plain)
        await rig.ends(await rig.enqueue("looks", {"given_id": "order-17"}))
    assert seen == [(show_id(plain), 1, "default", None, False), ("order-17", 1, "default", None, False)]


@pytest.mark.capability("H14")
async def test_log_lines_stay_with_the_job(rig):
    async def talks(ctx: Context) -> None:
        ctx.log.debug("one")
        ctx.log.info("two %d", 2)
        ctx.log.warning("three %s", "x")
        ctx.log.error("100 %")
        ctx.log.log(logging.CRITICAL, "no %d", "number")

    rig.kind(talks)
    async with rig.working():
        job = await rig.enqueue("talks")
        await rig.ends(job)
    assert [line.split(" ", 1)[1] for line in rig.log(job)] == [
        "DEBUG one",
        "INFO two 2",
        "WARNING three x",
        "ERROR 100 %",
        "CRITICAL no %d ('number',)",
    ]


@pytest.mark.capability("H14")
async def test_log_lines_of_a_failed_attempt_are_kept_beside_those_of_the_next(rig):
    async def talks(ctx: Context) -> None:
        ctx.log.info("attempt %d", ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError

    rig.kind(talks)
    async with rig.working():
        job = await rig.enqueue("talks", {"terms": {"backoff_base_ms": 1}})
        await rig.until(lambda: rig.job(job).is_final)
    assert [line.split(" INFO ")[1] for line in rig.log(job)] == ["attempt 1", "attempt 2"]


@pytest.mark.capability("H12")
async def test_progress_is_seen_while_the_handler_runs(rig):
    said, gate = asyncio.Event(), asyncio.Event()

    async def works(ctx: Context) -> None:
        for page in range(1, 4):
            ctx.progress(page, 3, f"page {page}")
        said.set()
        await gate.wait()

    rig.kind(works)
    async with rig.working(lease_seconds=30):
        job = await rig.enqueue("works")
        await signalled(said)
        await rig.until(lambda: rig.job(job).ext)
        assert rig.job(job).state is State.RUNNING
        progress = extras_of(rig.job(job)).progress
        assert progress is not None
        assert (progress.current, progress.total, progress.message) == (3, 3, "page 3")
        gate.set()
        await rig.ends(job)
    assert extras_of(rig.job(job)).progress == progress


@pytest.mark.capability("H15")
async def test_output_is_seen_while_the_handler_runs_and_the_last_one_stays(rig):
    said, gate = asyncio.Event(), asyncio.Event()

    def works(ctx: Context) -> None:
        ctx.output({"rows": 1})

    async def aworks(ctx: Context) -> None:
        ctx.output([1])
        said.set()
        await gate.wait()
        ctx.output([1, 2])

    rig.kind(works)
    rig.kind(aworks)
    async with rig.working(lease_seconds=30):
        job = await rig.enqueue("aworks")
        await signalled(said)
        await rig.until(lambda: extras_of(rig.job(job)).output == b"[1]")
        gate.set()
        await rig.ends(job)
        other = await rig.enqueue("works")
        await rig.ends(other)
    assert extras_of(rig.job(job)).output == b"[1,2]"
    assert extras_of(rig.job(other)).output == b'{"rows":1}'


async def test_output_must_have_a_json_form_and_a_size(rig):
    raised: list[type] = []

    async def works(ctx: Context) -> None:
        for value in (object(), "x" * 300_000):
            try:
                ctx.output(value)
            except InvalidArgument as error:
                raised.append(type(error))

    rig.kind(works)
    async with rig.working():
        await rig.ends(await rig.enqueue("works"))
    assert raised == [InvalidArgument, TooLarge]


@pytest.mark.capability("H16")
async def test_data_of_an_attempt_lies_over_that_of_the_worker(rig):
    seen: list[object] = []

    async def works(name: str, ctx: Context) -> None:
        seen.append((ctx.data["db"], ctx.data.get("name")))
        ctx.data["name"] = name
        ctx.data["db"] = "mine"
        seen.append((ctx.data["db"], ctx.data["name"]))

    rig.kind(works)
    async with rig.working() as worker:
        worker.data["db"] = "shared"
        for name in ("a", "b"):
            await rig.ends(await rig.enqueue("works", name=name))
    assert seen == [("shared", None), ("mine", "a"), ("shared", None), ("mine", "b")]


@pytest.mark.capability("H17")
async def test_a_handler_can_enqueue(rig):
    async def coroutine(ctx: Context) -> str:
        return (await ctx.aenqueue("other", 1, options={"delay": 5}, to="ada")).id  # type: ignore[attr-defined]

    def plain(ctx: Context) -> str:
        return ctx.enqueue("other", 1, options={"delay": 5}, to="ada").id  # type: ignore[attr-defined]

    rig.kind(coroutine)
    rig.kind(plain)
    async with rig.working():
        jobs = [await rig.enqueue("coroutine"), await rig.enqueue("plain")]
        for job in jobs:
            await rig.ends(job)
    assert sorted(rig.result(job) for job in jobs) == ["child-1", "child-2"]
    assert {by.id for by, *_ in rig.services.enqueued} == set(jobs)
    assert [call[1:] for call in rig.services.enqueued] == [("other", (1,), {"to": "ada"}, {"delay": 5})] * 2


@pytest.mark.parametrize("verb", ["enqueue", "children"])
async def test_a_blocking_call_in_a_coroutine_names_the_one_to_await(rig, verb):
    async def coroutine(ctx: Context) -> str:
        try:
            ctx.enqueue("other") if verb == "enqueue" else ctx.children()
        except RuntimeError as error:
            return str(error)
        return ""

    rig.kind(coroutine)
    async with rig.working():
        job = await rig.enqueue("coroutine")
        await rig.ends(job)
    assert f"await ctx.a{verb}" in rig.result(job)


async def test_split_waits_for_children_and_finds_their_results(rig):
    async def part(n: int) -> int:
        if n == 3:
            raise ValueError("not three")
        return n * n

    async def whole(ctx: Context) -> list[object]:
        results = await ctx.achildren()
        if not results:
            ctx.split([("part", {"n": n}) for n in (1, 2)], note="squares")
        return [ctx.note, *(result.value for result in results)]

    rig.kind(part)
    rig.kind(whole)
    async with rig.working():
        job = await rig.enqueue("whole")
        await rig.until(lambda: rig.job(job).is_final)
    row = rig.job(job)
    assert rig.result(job) == ["squares", 1, 4]
    assert (row.attempt, row.failures) == (2, 0)
    assert row.ends[0].end == "split"


async def test_a_plain_function_can_split_and_read_children(rig):
    async def part(n: int) -> int:
        return n

    def whole(ctx: Context) -> int:
        results = ctx.children()
        if not results:
            ctx.split([("part", {"n": 7})])
        [child] = results
        assert isinstance(child, ChildResult)
        return child.value  # type: ignore[return-value]

    rig.kind(part)
    rig.kind(whole)
    async with rig.working():
        job = await rig.enqueue("whole")
        await rig.until(lambda: rig.job(job).is_final)
    assert rig.result(job) == 7


@pytest.mark.parametrize("children, on_child_dead", [([], "continue"), ([("part", {})], "perhaps")])
async def test_a_split_that_says_nothing_is_refused(rig, children, on_child_dead):
    async def whole(ctx: Context) -> None:
        ctx.split(children, on_child_dead=on_child_dead)

    rig.kind(whole)
    async with rig.working():
        row = await rig.ends(await rig.enqueue("whole", {"terms": {}}), State.SCHEDULED)
    assert "InvalidArgument" in row.ends[-1].error


async def test_the_services_of_these_tests_are_services(rig):
    assert isinstance(rig.services, ContextServices)
    assert isinstance(rig.services, Services)


async def test_a_report_forgets_no_news_that_did_not_arrive():
    report = Report()
    news = [report.has_news]
    report.line("one")
    version, _ = report.snapshot()
    report.line("two")
    report.arrived(version)
    news.append(report.has_news)
    version, extras = report.snapshot()
    report.arrived(version)
    news.append(report.has_news)
    assert news == [False, True, False]
    assert extras.log == ("one", "two")


async def test_a_report_keeps_the_last_lines():
    report = Report()
    for n in range(500):
        JobLog(report).info("%d", n)
    lines = report.snapshot()[1].log
    assert len(lines) == 200
    assert lines[0].endswith("INFO 300")


async def test_a_report_stores_what_can_be_stored():
    report = Report()
    report.line("x" * 5_000)
    report.line("half \ud800")
    report.progress(1, 2, "\udfff")
    _, extras = report.snapshot()
    assert len(extras.log[0]) == 2_000
    assert extras.log[1] == "half ?"
    assert extras.progress is not None
    extras.progress.message.encode()


async def test_what_no_store_can_hold_is_refused_where_it_is_said(rig):
    """Stored, it would hide the row from every reader, or hold up the ends of the jobs beside it."""
    numbers = (None, "1", float("nan"), float("inf"), 10**30, object())
    words = (None, 5, b"x", "a\ud800b", "a\0b", "x" * 100_000)
    no_lists: tuple[Any, ...] = (None, 5, "ab", b"ab", iter([1]), [])
    calls: list[Callable[[Context], object]] = [
        *(lambda ctx, n=n: ctx.progress(n) for n in numbers),
        *(lambda ctx, n=n: ctx.progress(1, n) for n in numbers),
        *(lambda ctx, w=w: ctx.progress(1, 1, w) for w in words[:3]),
        *(lambda ctx, w=w: ctx.release(1, w) for w in words),
        *(lambda ctx, w=w: ctx.split([1], note=w) for w in words),
        *(lambda ctx, c=c: ctx.split(c) for c in no_lists),
    ]
    refused: list[object] = []

    async def works(ctx: Context) -> None:
        for call in calls:
            try:
                call(ctx)
            except InvalidArgument:
                refused.append(call)

    rig.kind(works)
    async with rig.working():
        await rig.ends(await rig.enqueue("works"))
    assert refused == calls
