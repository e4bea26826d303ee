"""Jobs that wait for other jobs: for those they depend on, and for the children they were split into."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable
from typing import Any, Literal

import pytest

from tessera import Context, Dependency, Retry, State, Tessera
from tessera.model.errors import InvalidArgument
from tests.scenarios.rig import Client, reaches, working

pytestmark = pytest.mark.asyncio


# W17 --------------------------------------------------------------------------------------------------------


@pytest.fixture
def order() -> list[str]:
    """The names of the jobs in the order in which they ended."""
    return []


@pytest.fixture
def step(app: Tessera, order: list[str]) -> Any:
    @app.job(retry=Retry(max_attempts=1))
    async def step(name: str) -> None:
        if name == "breaks":
            raise ValueError
        order.append(name)

    return step


@pytest.mark.capability("W17")
async def test_a_job_runs_once_all_that_it_waits_for_have_completed(
    app: Tessera, client: Client, step: Any, order: list[str]
):
    first = await client(step.with_options(delay=0.1), "enqueue", "first")
    second = await client(step.with_options(id="second", delay=0.2), "enqueue", "second")
    last = await client(step.with_options(depends_on=[first, "second"], priority=9), "enqueue", "last")
    assert (await client(app.jobs, "get", last)).open_edges == 2
    async with working(app):
        await last.aresult(10)
        await second.aresult(10)
    assert order == ["first", "second", "last"]


@pytest.mark.capability("W17")
@pytest.mark.parametrize(
    "on, otherwise, state",
    [
        ("completed", "cancel", State.CANCELLED),
        ("completed", "hold", State.PENDING),
        ("completed", "go", State.COMPLETED),
        ("ended", "cancel", State.COMPLETED),
    ],
)
async def test_each_edge_says_what_a_dead_parent_means(
    app: Tessera,
    client: Client,
    step: Any,
    on: Literal["completed", "ended"],
    otherwise: Literal["cancel", "hold", "go"],
    state: State,
):
    parent = await client(step, "enqueue", "breaks")
    edge = Dependency(job=parent, on=on, otherwise=otherwise)
    child = await client(step.with_options(depends_on=[edge]), "enqueue", "child")
    async with working(app):
        await reaches(app, parent, State.DEAD)
        await reaches(app, child, state)
        # The same where the parent was dead before.
        late = await client(step.with_options(depends_on=[edge]), "enqueue", "late")
        await reaches(app, late, state)


@pytest.mark.capability("W17")
async def test_a_job_on_hold_goes_when_its_parent_was_redriven_and_completed(
    app: Tessera, sibling: Callable[[], Tessera], step: Any, order: list[str]
):
    parent = await step.aenqueue("breaks")
    edge = Dependency(job=parent, otherwise="hold")
    child = await step.with_options(depends_on=[edge]).aenqueue("child")
    async with working(app):
        await reaches(app, parent, State.DEAD)
    mended = sibling()

    @mended.job(kind="step")
    async def works(name: str) -> None:
        order.append(name)

    await app.jobs.aretry(parent)
    async with working(mended):
        await child.aresult(10)
    assert order == ["breaks", "child"]


@pytest.mark.capability("W17")
async def test_a_job_cannot_wait_for_one_that_is_not_there(app: Tessera, client: Client, step: Any):
    with pytest.raises(InvalidArgument, match=r"depends_on: .*no such parent"):
        await client(step.with_options(depends_on=["nobody"]), "enqueue", "child")
    assert (await client(app.jobs, "list")).jobs == ()


# Split and join ---------------------------------------------------------------------------------------------


@pytest.fixture
def part(app: Tessera) -> Any:
    @app.job(retry=Retry(max_attempts=1))
    async def part(n: int) -> int:
        if n < 0:
            raise ValueError("below zero")
        return n * n

    return part


@pytest.mark.parametrize("how", ["coroutine", "plain"])
async def test_a_split_job_runs_again_with_the_results_of_its_children(app: Tessera, part: Any, how: str):
    """W6, save the limits of a tree and late children, which are not built."""

    async def coroutine(*, ctx: Context) -> list[Any]:
        children = await ctx.achildren()
        if not children:
            ctx.split([part.with_options(priority=n).job(n) for n in (3, 1, 2)])
        return [child.value for child in children]

    def plain(*, ctx: Context) -> list[Any]:
        children = ctx.children()
        if not children:
            ctx.split([part.with_options(priority=n).job(n) for n in (3, 1, 2)])
        return [child.value for child in children]

    parent = await app.job(kind="whole")({"coroutine": coroutine, "plain": plain}[how]).aenqueue()
    async with working(app, concurrency=1):
        assert await parent.aresult(10) == [9, 1, 4]  # in the order given
    job = await parent.aget()
    assert (job.failures, job.crashes, [end.end for end in job.ends]) == (0, 0, ["split", "completed"])
    assert len((await app.jobs.alist(parent=parent)).jobs) == 3


def whole(app: Tessera, part: Any, on_child_dead: Literal["continue", "fail", "wait"]) -> Any:
    @app.job
    async def whole(*, ctx: Context) -> list[Any]:
        children = await ctx.achildren()
        if not children:
            ctx.split([part.job(-1), part.job(2)], on_child_dead=on_child_dead)
        return [[child.state, child.value, child.reason] for child in children]

    return whole


async def test_a_parent_that_continues_is_told_which_child_died(app: Tessera, part: Any):
    parent = await whole(app, part, "continue").aenqueue()
    async with working(app):
        assert await parent.aresult(10) == [["dead", None, "attempts_used"], ["completed", 4, ""]]


async def test_a_parent_that_needs_every_child_ends_with_the_first_that_dies(app: Tessera, part: Any):
    parent = await whole(app, part, "fail").aenqueue()
    async with working(app):
        await reaches(app, parent, State.DEAD)


async def test_a_parent_that_waits_is_joined_when_the_dead_child_was_redriven(
    app: Tessera, sibling: Callable[[], Tessera], part: Any
):
    parent = await whole(app, part, "wait").aenqueue()
    async with working(app):
        await reaches(app, parent, State.WAITING)
        for job in (await app.jobs.alist(parent=parent)).jobs:
            await reaches(app, await app.jobs.ahandle(job.key), State.DEAD, State.COMPLETED)
        assert (await parent.aget()).state is State.WAITING
    mended = sibling()

    @mended.job(kind="part")
    async def works(n: int) -> int:
        return abs(n)

    whole(mended, works, "wait")
    assert (await app.jobs.aredrive(kind="part")).redriven == 1
    async with working(mended):
        assert await parent.aresult(10) == [["completed", 1, ""], ["completed", 4, ""]]


async def test_cancelling_a_parent_cancels_the_children_that_are_left(app: Tessera):
    @app.job(queue="nobody-serves")
    async def part() -> None: ...

    @app.job
    async def whole(*, ctx: Context) -> None:
        ctx.split([part.job(), part.job()])

    parent = await whole.aenqueue()
    async with working(app, queues=["default"]):
        await reaches(app, parent, State.WAITING)
        assert await parent.acancel() is State.CANCELLED
        for job in (await app.jobs.alist(parent=parent)).jobs:
            await reaches(app, await app.jobs.ahandle(job.key), State.CANCELLED)


async def test_a_split_whose_child_contradicts_what_is_stored_is_a_failure_and_no_crash(
    app: Tessera, part: Any
):
    @app.job(retry=Retry(max_attempts=1))
    async def whole(*, ctx: Context) -> None:
        ctx.split([part.with_options(id="taken").job(2)])

    await part.with_options(id="taken", queue="parts").aenqueue(1)
    parent = await whole.aenqueue()
    async with working(app, queues=["default"]):
        dead = await reaches(app, parent, State.DEAD)
    assert (dead.failures, dead.crashes) == (1, 0)
    assert "the id is taken" in dead.ends[-1].error


async def test_the_children_of_a_split_are_logged_as_their_queue_is(app: Tessera, part: Any):
    @app.job
    async def whole(*, ctx: Context) -> None:
        ctx.split([part.with_options(queue="parts").job(2)])

    app.queue("parts", events="full")
    await app.adeclare()
    parent = await whole.aenqueue()
    async with working(app, queues=["default"]):
        await reaches(app, parent, State.WAITING)
    store: Any = await app._astore()
    assert [event.what for event in await store.events() if event.queue == "parts"] == ["enqueued"]


async def test_counts_by_queue_and_state_are_exact_through_a_split(app: Tessera, client: Client, part: Any):
    """W11, save the record that shows them, which is not built."""
    parent = await whole(app, part.with_options(queue="parts"), "continue").aenqueue()
    assert await counted(app, client) == {("default", State.AVAILABLE): 1}
    async with working(app, queues=["default"]):
        await reaches(app, parent, State.WAITING)
        assert await counted(app, client) == {("default", State.WAITING): 1, ("parts", State.AVAILABLE): 2}
    async with working(app, queues=["default", "parts"]):
        await parent.aresult(10)
    assert await counted(app, client) == {
        ("default", State.COMPLETED): 1,
        ("parts", State.COMPLETED): 1,
        ("parts", State.DEAD): 1,
    }


async def counted(app: Tessera, client: Client) -> dict[tuple[str, State], int]:
    queues = await client(app.queues, "list")
    counts = Tally({(queue.name, state): n for queue in queues for state, n in queue.counts.items()})
    return dict(+counts)
