"""What becomes of a job whose run did not end well, or whose worker vanished."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tessera import (
    Abort,
    Cancel,
    Context,
    Discard,
    Handle,
    Rate,
    RateLimited,
    Retry,
    RetryAfter,
    Snooze,
    State,
    Tessera,
)
from tessera.engine.finishing import Finish, finish
from tessera.model.errors import NotFound, StaleLease, WrongState
from tessera.model.outcomes import Completed
from tests.scenarios import isolated
from tests.scenarios.rig import Client, reaches, until, vanish, working

pytestmark = pytest.mark.asyncio


# Failures ---------------------------------------------------------------------------------------------------


async def test_failures_are_tried_again_after_growing_waits_until_the_attempts_are_used(app: Tessera):
    """H5, save the forms of backoff that are functions, which are not built."""

    @app.job(retry=Retry(max_attempts=4, base=0.02, factor=3, jitter=0))
    async def fails() -> None:
        raise ValueError("no such page")

    handle = await fails.aenqueue()
    async with working(app):
        job = await reaches(app, handle, State.DEAD)
    assert (job.reason, job.failures, job.attempt) == ("attempts_used", 4, 4)
    starts = [end.started_at for end in job.ends]
    ends = [end.ended_at for end in job.ends]
    waited = [(start - end).total_seconds() for start, end in zip(starts[1:], ends, strict=False)]  # type: ignore[operator]
    assert all(wait >= least for wait, least in zip(waited, (0.02, 0.06, 0.18), strict=True))


async def test_a_handler_may_say_when_to_try_again(app: Tessera):
    @app.job
    async def fails() -> None:
        raise RetryAfter(3600, "come back in an hour")

    handle = await fails.aenqueue()
    async with working(app):
        job = await reaches(app, handle, State.SCHEDULED)
    assert job.due_at is not None
    assert job.ends[-1].ended_at is not None
    assert job.due_at - job.ends[-1].ended_at == timedelta(hours=1)


# R1 ---------------------------------------------------------------------------------------------------------


@pytest.mark.capability("R1")
async def test_failures_and_crashes_are_charged_apart_and_other_ends_not_at_all(app: Tessera):
    retry = Retry(base=600)
    crashes = app.job(kind="crashes", isolation="process")(isolated.is_killed)

    @app.job(retry=retry)
    async def ends(how: str, *, ctx: Context) -> None:
        if how == "fails":
            raise ValueError
        if how == "snoozes":
            raise Snooze(600)
        if how == "meets a limit":
            raise RateLimited(retry_after=600)
        ctx.release(600)

    handles = {how: await ends.aenqueue(how) for how in ("fails", "snoozes", "meets a limit", "releases")}
    handles["crashes"] = await crashes.aenqueue()
    async with working(app):
        jobs = {how: await reaches(app, handle, State.SCHEDULED) for how, handle in handles.items()}
    assert {how: (job.attempt, job.failures, job.crashes, job.snoozes) for how, job in jobs.items()} == {
        "fails": (1, 1, 0, 0),
        "crashes": (1, 0, 1, 0),
        "snoozes": (1, 0, 0, 1),
        "meets a limit": (1, 0, 0, 0),
        "releases": (1, 0, 0, 0),
    }


# Vanished workers -------------------------------------------------------------------------------------------


@pytest.fixture
def work(app: Tessera) -> Any:
    @app.job
    async def work(n: int = 0) -> int:
        return n

    return work


@pytest.mark.capability("R1")
@pytest.mark.capability("R9")
async def test_a_job_taken_back_from_a_vanished_worker_goes_behind_its_siblings(app: Tessera, work: Any):
    suspect = await work.aenqueue(1)
    sibling = await work.aenqueue(2)
    await vanish(app)
    async with working(app):
        job = await reaches(app, suspect, State.SCHEDULED)
        assert (job.failures, job.crashes, job.ends[-1].end, job.ends[-1].holder) == (
            0,
            1,
            "crashed",
            "vanished",
        )
        assert job.due_at is not None
        assert job.ends[-1].ended_at is not None
        # The wait after a first crash: 1 s, less half of it at most.
        assert timedelta(seconds=0.5) <= job.due_at - job.ends[-1].ended_at <= timedelta(seconds=1)
        assert await sibling.aresult(10) == 2
        assert await suspect.aresult(10) == 1


@pytest.mark.capability("R2")
@pytest.mark.capability("R15")
async def test_a_job_whose_worker_vanished_runs_again_and_stays_known_as_orphaned(app: Tessera, work: Any):
    handle, plain = await work.aenqueue(1), await work.aenqueue(2)
    await vanish(app)
    async with working(app):
        assert await handle.aresult(10) == 1
        assert await plain.aresult(10) == 2
    assert [(await each.aget()).orphaned for each in (handle, plain)] == [True, False]
    assert (await handle.aget()).attempt == 2


@pytest.mark.capability("R15")
async def test_a_job_that_only_failed_is_not_orphaned(app: Tessera):
    @app.job(retry=Retry(base=0))
    async def fails(*, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError

    handle = await fails.aenqueue()
    async with working(app):
        await handle.aresult(10)
    job = await handle.aget()
    assert (job.failures, job.orphaned) == (1, False)


@pytest.mark.capability("R3")
async def test_a_worker_that_comes_back_too_late_is_refused_and_changes_nothing(app: Tessera, work: Any):
    handle = await work.aenqueue(1)
    [lost] = await vanish(app)
    async with working(app):
        await reaches(app, handle, State.SCHEDULED)
        await app.jobs.apromote(handle)
        assert await handle.aresult(10) == 1
    before = await handle.aget()
    [answer] = await finish(await app._astore(), [Finish(lost, Completed(b"99"))])
    assert isinstance(answer, StaleLease)
    assert await handle.aget() == before


# H6 ---------------------------------------------------------------------------------------------------------


@pytest.mark.capability("H6")
@pytest.mark.timeout(180)
async def test_not_yet_is_no_failure_and_a_thousand_of_them_are_the_end(app: Tessera):
    @app.job(retry=Retry(max_attempts=1))
    async def not_yet() -> None:
        raise Snooze(0)

    handle = await not_yet.aenqueue()
    async with working(app, concurrency=1):
        job = await reaches(app, handle, State.DEAD, patience=120)  # two thousand commits, one after another
    assert (job.reason, job.snoozes, job.attempt, job.failures) == ("claims_exhausted", 1_000, 1_000, 0)


@pytest.mark.capability("H6")
async def test_a_job_that_puts_itself_off_ends_at_its_deadline(app: Tessera):
    @app.job(deadline=1)
    async def not_yet() -> None:
        raise Snooze(600)

    handle = await not_yet.aenqueue()
    async with working(app):
        job = await reaches(app, handle, State.DEAD)
    assert (job.reason, job.snoozes) == ("expired", 1)


# R10 --------------------------------------------------------------------------------------------------------


@pytest.mark.capability("R10")
async def test_abort_buries_a_job_at_once_and_visibly(app: Tessera):
    @app.job
    async def bad() -> None:
        raise Abort("no such customer")

    handle = await bad.aenqueue()
    async with working(app):
        job = await reaches(app, handle, State.DEAD)
    assert (job.reason, job.attempt, job.failures) == ("aborted: no such customer", 1, 0)
    assert [each.id for each in (await app.jobs.alist(state="dead")).jobs] == [handle.id]


@pytest.mark.capability("R10")
async def test_discard_removes_the_row(app: Tessera):
    @app.job
    async def unwanted() -> None:
        raise Discard

    handle = await unwanted.aenqueue()
    async with working(app):

        async def is_gone() -> bool:
            try:
                await handle.aget()
            except NotFound:
                return True
            return False

        await until(app, is_gone, "the row to go")
    assert (await app.jobs.alist()).jobs == ()


async def test_a_handler_may_end_its_job_as_cancelled(app: Tessera):
    @app.job
    async def moot() -> None:
        raise Cancel("the order was withdrawn")

    handle = await moot.aenqueue()
    async with working(app):
        assert (await reaches(app, handle, State.CANCELLED)).reason == "the order was withdrawn"


# R16 --------------------------------------------------------------------------------------------------------


@pytest.mark.capability("R16")
async def test_a_limit_elsewhere_is_no_failure_and_closes_its_counter_for_a_while(app: Tessera):
    ran: list[str] = []

    @app.job(rates=[Rate("api", 100)])
    async def call(who: str) -> None:
        ran.append(who)
        if who == "first":
            raise RateLimited("api", retry_after=600)

    @app.job
    async def other() -> str:
        return "not under that limit"

    first = await call.aenqueue("first")
    async with working(app):
        job = await reaches(app, first, State.SCHEDULED)
        assert (job.failures, job.crashes, job.ends[-1].end) == (0, 0, "rate_limited")
        second = await call.aenqueue("second")
        assert (await reaches(app, second, State.BLOCKED)).attempt == 0
        await (await other.aenqueue()).aresult(10)
    assert ran == ["first"]


# The dead letter --------------------------------------------------------------------------------------------


@pytest.fixture
def broken(app: Tessera) -> Any:
    """A kind that fails until its code is mended."""

    @app.job(retry=Retry(max_attempts=1))
    async def broken(n: int) -> int:
        raise ValueError("not mended yet")

    return broken


def mended(on: Tessera) -> Tessera:
    @on.job
    async def broken(n: int) -> int:
        return n

    return on


async def bury(app: Tessera, kind: Any, count: int) -> list[Handle[Any]]:
    handles = [await kind.aenqueue(n) for n in range(count)]
    async with working(app):
        for handle in handles:
            await reaches(app, handle, State.DEAD)
    return handles


async def test_the_dead_letter_is_kept_told_apart_and_redriven_by_filter_and_number(
    app: Tessera, client: Client, sibling: Callable[[], Tessera], broken: Any
):
    """R5 and R6, as far as they are built."""
    handles = await bury(app, broken, 3)
    job = await client(app.jobs, "get", handles[0], reveal=True)
    assert (job.reason, job.kept_until, job.payload) == ("attempts_used", None, {"n": 0})
    dry = await client(app.jobs, "redrive", kind="broken", dry_run=True)
    assert (dry.matched, dry.redriven) == (3, 0)
    assert (await client(app.jobs, "redrive", kind="another")).matched == 0
    assert (await client(app.jobs, "redrive", kind="broken", limit=2)).redriven == 2
    async with working(mended(sibling())):
        assert [await handle.aresult(10) for handle in handles[1:]] == [1, 2]  # the newest two
    assert (await client(app.jobs, "get", handles[0])).state is State.DEAD
    again = await client(app.jobs, "get", handles[1])
    assert (again.queue, again.attempt, again.failures) == ("default", 1, 0)


async def test_one_dead_job_is_run_again_with_a_clean_slate(
    app: Tessera, client: Client, sibling: Callable[[], Tessera], broken: Any
):
    [handle] = await bury(app, broken, 1)
    assert await client(app.jobs, "retry", handle) == handle
    async with working(mended(sibling())):
        assert await handle.aresult(10) == 0
    with pytest.raises(WrongState):
        await client(app.jobs, "cancel", handle)


async def test_a_finished_job_goes_when_its_retention_is_over_and_the_log_counts_it(app: Tessera, work: Any):
    """F12, as far as it is built."""
    handles = [await work.with_options(retention=0.05).aenqueue(n) for n in range(3)]
    kept = await work.aenqueue(9)
    async with working(app):
        await kept.aresult(10)

        async def are_gone() -> bool:
            return [job.id for job in (await app.jobs.alist()).jobs] == [kept.id]

        await until(app, are_gone, "the rows to go")
    log = await (await app._astore()).events()
    counts = [event.data for event in log if event.what == "evicted"]
    assert sum(int(data.removeprefix(b'{"count":').removesuffix(b"}")) for data in counts) == len(handles)
