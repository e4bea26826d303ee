"""What an operator does to queues, and what he is told of a job that does not run; in both colours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tessera import Ceiling, Rate, Retry, State, Tessera
from tessera.engine import inspecting
from tests.scenarios.rig import Client, reaches, signalled, until, working

pytestmark = pytest.mark.asyncio


@pytest.fixture
def work(app: Tessera) -> Any:
    @app.job
    async def work(n: int = 0) -> int:
        return n

    return work


# Queues -----------------------------------------------------------------------------------------------------


async def test_a_paused_queue_gives_nothing_to_any_worker_until_it_is_resumed(
    app: Tessera, client: Client, sibling: Callable[[], Tessera], work: Any
):
    """F9 and A14, as far as they are built: whole queues. What runs goes on."""
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.job
    async def long() -> str:
        begun.set()
        await gate.wait()
        return "went on"

    running = await long.aenqueue()
    elsewhere = await work.with_options(queue="elsewhere").aenqueue(1)
    async with working(app, queues=["default", "elsewhere"]):
        await signalled(begun)
        await client(sibling().queues, "pause", "default")
        handle = await client(work, "enqueue", 7)
        assert await elsewhere.aresult(10) == 1
        other = await work.with_options(queue="elsewhere").aenqueue(2)
        assert await other.aresult(10) == 2  # claims went on meanwhile
        gate.set()
        assert await running.aresult(10) == "went on"
        assert (await client(app.jobs, "get", handle)).state is State.AVAILABLE
        assert [queue.paused for queue in await client(app.queues, "list")] == [True, False]
        await client(app.queues, "resume", "default")
        assert await handle.aresult(10) == 7


async def test_a_purge_removes_what_waits_and_nothing_else(app: Tessera, client: Client, work: Any):
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.job
    async def long() -> str:
        begun.set()
        await gate.wait()
        return "went on"

    running = await long.aenqueue()
    async with working(app, concurrency=1, prefetch=0):
        await signalled(begun)
        for options in ({}, {"delay": 60}, {"pending": True}):
            await client(work.with_options(**options), "enqueue")
        kept = await client(work.with_options(queue="elsewhere"), "enqueue")
        assert await client(app.queues, "purge", "default", dry_run=True) == 3
        assert await client(app.queues, "purge", "default") == 3
        gate.set()
        assert await running.aresult(10) == "went on"
    assert {job.id for job in (await client(app.jobs, "list")).jobs} == {running.id, kept.id}


async def test_a_queue_says_how_many_live_workers_serve_it(app: Tessera, client: Client, work: Any):
    """F2, as far as it is built."""

    async def serving() -> int:
        return sum(queue.workers for queue in await client(app.queues, "list") if queue.name == "default")

    await client(work, "enqueue")
    assert await serving() == 0
    async with working(app), working(app):

        async def are_two() -> bool:
            return await serving() == 2

        await until(app, are_two, "both workers to say that they live")
    assert await serving() == 0


async def test_the_first_that_is_heard_of_a_worker_is_true(app: Tessera, work: Any):
    store = await app._astore()
    async with working(app, name="w1") as worker:

        async def is_told() -> bool:
            return bool(await inspecting.workers(store))

        await until(app, is_told, "the worker to say that it lives")
        [told] = await inspecting.workers(store)
    assert (told.incarnation, told.name, told.state) == (worker.incarnation, "w1", "running")
    assert 0 < told.started_at <= told.seen_at
    assert told.kinds == ("work",)


async def test_the_duty_of_a_worker_that_leaves_is_taken_by_another(app: Tessera, work: Any):
    """F1, as far as it is built: one duty, to sweep all queues, those that nobody serves included."""

    async def holder() -> bytes | None:
        [record] = await (await app._astore()).get([("~duty", "sweep")])
        return None if record is None else record.value

    async with working(app) as second:
        async with working(app) as first:
            one = (first.incarnation, second.incarnation)

            async def is_held() -> bool:
                held = await holder() or b""
                return any(name.encode() in held for name in one)

            await until(app, is_held, "a worker to have the duty")

        async def is_the_second() -> bool:
            return second.incarnation.encode() in (await holder() or b"")

        await until(app, is_the_second, "the one that is left to have it")
        promoted = await work.with_options(queue="nobody-serves", delay=0.05).aenqueue()
        await reaches(app, promoted, State.AVAILABLE)


# Explanations -----------------------------------------------------------------------------------------------


async def causes(app: Tessera, client: Client, job: Any) -> list[tuple[str, str, str]]:
    """Code, words and what it takes, of every cause."""
    explained = await client(app.jobs, "explain", job)
    return [(cause.code, cause.text, cause.clears) for cause in explained.causes]


@pytest.mark.capability("A13")
async def test_a_full_ceiling_is_named_with_its_units_and_clears_by_itself(app: Tessera, client: Client):
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.job(ceilings=[Ceiling("memory", 3, units="gigabytes")])
    async def load(gigabytes: int) -> None:
        begun.set()
        await gate.wait()

    await load.aenqueue(2)
    async with working(app):
        await signalled(begun)
        waits = await load.aenqueue(2)
        await reaches(app, waits, State.BLOCKED)
        code, text, clears = (await causes(app, client, waits))[0]
        # One unit is free, and the job's own cost is two.
        assert (code, clears) == ("ceiling_full", "by itself")
        assert "2 of 3 units of 'memory' run" in text
        gate.set()
        await waits.aresult(10)
    assert await causes(app, client, waits) == []


@pytest.mark.capability("A13")
@pytest.mark.parametrize(
    "counter, code, clears",
    [
        (Rate("api", 1, per=600), "rate_used", "by time"),
        (Rate("api", 0, per=600), "rate_used", "by a person"),
        (Ceiling("api", 0), "ceiling_closed", "by a person"),
    ],
    ids=["used up", "rate of none", "ceiling of none"],
)
async def test_whether_a_limit_clears_alone_is_said(
    app: Tessera, client: Client, counter: Any, code: str, clears: str
):
    async def call() -> None: ...

    kind = app.job(rates=[counter])(call) if isinstance(counter, Rate) else app.job(ceilings=[counter])(call)
    handles = [await kind.aenqueue() for _ in range(2)]
    async with working(app):
        await reaches(app, handles[1], State.BLOCKED)
        cause = (await causes(app, client, handles[1]))[0]  # the first one is what holds it
    assert (cause[0], cause[2]) == (code, clears)
    assert "'api'" in cause[1]


@pytest.mark.capability("A13")
async def test_nothing_blocks_a_job_whose_turn_it_is(app: Tessera, client: Client, work: Any):
    gate = asyncio.Event()

    @app.job
    async def long() -> None:
        await gate.wait()

    busy = await long.aenqueue()
    async with working(app, concurrency=1, prefetch=0):
        await reaches(app, busy, State.RUNNING)
        assert await causes(app, client, busy) == []
        waits = await client(work, "enqueue")

        async def is_its_turn() -> bool:  # once the worker has said that it is there
            return [code for code, _, _ in await causes(app, client, waits)] == ["its_turn"]

        await until(app, is_its_turn, "nothing but a slot to be missing")
        gate.set()
        await waits.aresult(10)


async def test_every_state_that_does_not_run_is_explained(app: Tessera, client: Client, work: Any):
    """U2, as far as it is built."""

    @app.job(queue="served", retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise ValueError("no such page")

    dead = await fails.aenqueue()
    async with working(app, queues=["served"]):
        await reaches(app, dead, State.DEAD)
    cancelled = await client(work, "enqueue")
    await client(cancelled, "cancel", reason="moot")
    expected = {
        dead: ("dead", "no such page", "by a person"),
        cancelled: ("cancelled", "moot", "by a person"),
        await client(work.with_options(delay=90), "enqueue"): ("scheduled", "1.5 min", "by time"),
        await client(work.with_options(pending=True), "enqueue"): ("held", "promoted", "by a person"),
        await client(work.with_options(depends_on=[dead]), "enqueue"): ("cancelled", "parent", "by a person"),
        await client(work, "enqueue"): ("no_worker", "'default'", "by a deploy"),
    }
    for handle, (code, words, clears) in expected.items():
        [cause] = await causes(app, client, handle)
        assert (cause[0], cause[2]) == (code, clears)
        assert words in cause[1]
    await client(app.queues, "pause", "default")
    assert (await causes(app, client, await client(work, "enqueue")))[0][0] == "queue_paused"


async def test_a_kind_that_no_worker_knows_waits_and_says_so_until_one_comes(
    app: Tessera, client: Client, sibling: Callable[[], Tessera], work: Any
):
    newer = sibling()

    @newer.job
    async def new_kind() -> str:
        return "known here"

    handle = await client(new_kind, "enqueue")
    async with working(app):
        assert (await reaches(app, handle, State.BLOCKED)).attempt == 0

        async def is_told() -> bool:
            return [code for code, _, _ in await causes(app, client, handle)] == ["kind_not_served"]

        await until(app, is_told, "the missing kind to be named")
        async with working(newer):
            assert await handle.aresult(10) == "known here"
