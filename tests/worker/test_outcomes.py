"""What becomes of a job, by what its handler does."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from tessera.model.control import Abort, Cancel, Control, Discard, RateLimited, RetryAfter, Snooze
from tessera.model.job import Need
from tessera.model.states import State
from tessera.worker.context import Context

pytestmark = pytest.mark.asyncio


def raises(error: BaseException) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The same end, from a coroutine and from a plain function."""

    async def coroutine() -> None:
        raise error

    def plain() -> None:
        raise error

    return coroutine, plain


@pytest.mark.capability("H13")
async def test_what_a_coroutine_returns_is_the_result(rig):
    async def add(a: int, b: int) -> int:
        return a + b

    rig.kind(add)
    async with rig.working():
        job = await rig.enqueue("add", a=2, b=3)
        assert (await rig.ends(job)).attempt == 1
    assert rig.result(job) == 5


@pytest.mark.capability("H13")
async def test_what_a_plain_function_returns_is_the_result(rig):
    def add(a: int, b: int) -> int:
        return a + b

    rig.kind(add)
    async with rig.working():
        job = await rig.enqueue("add", a=2, b=3)
        await rig.ends(job)
    assert rig.result(job) == 5


@pytest.mark.capability("H1")
async def test_arguments_arrive_as_annotated(rig):
    seen: list[object] = []

    async def note(at: datetime, tags: set[str]) -> None:
        seen.extend([at, tags])

    rig.kind(note)
    async with rig.working():
        await rig.ends(await rig.enqueue("note", at="2026-11-30T00:00:00Z", tags=["a"]))
    assert seen == [datetime.fromisoformat("2026-11-30T00:00:00+00:00"), {"a"}]


@pytest.mark.capability("H1")
@pytest.mark.parametrize("how", ["coroutine", "plain"])
async def test_a_payload_that_does_not_fit_ends_the_job_at_once(rig, how):
    async def coroutine(a: int) -> None: ...

    def plain(a: int) -> None: ...

    rig.kind({"coroutine": coroutine, "plain": plain}[how], kind="strict")
    async with rig.working():
        job = await rig.ends(await rig.enqueue("strict", a="no number"), State.DEAD)
    assert job.reason == "undecodable"
    assert job.failures == 0


@pytest.mark.capability("H9")
@pytest.mark.parametrize("which", [0, 1], ids=["coroutine", "plain"])
@pytest.mark.parametrize(
    "error",
    [ValueError("no such page"), SystemExit(3), KeyboardInterrupt(), RecursionError(), GeneratorExit(),
     asyncio.CancelledError(), StopIteration(), BaseException("odd")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
async def test_whatever_a_handler_raises_is_a_failure_and_the_worker_lives(rig, which, error):
    rig.kind(raises(error)[which], kind="bad")

    async def good() -> None: ...

    rig.kind(good)
    async with rig.working():
        job = await rig.ends(await rig.enqueue("bad", {"terms": {}}), State.SCHEDULED)
        await rig.ends(await rig.enqueue("good"))
    assert (job.failures, job.crashes) == (1, 0)
    assert job.ends[-1].end == "failed"
    assert type(error).__name__ in job.ends[-1].error


async def test_a_failure_keeps_message_and_place(rig):
    def deep() -> None:
        raise LookupError("page 7 is missing")

    async def fails() -> None:
        deep()

    rig.kind(fails)
    async with rig.working():
        job = await rig.ends(await rig.enqueue("fails", {"terms": {}}), State.SCHEDULED)
    assert "LookupError: page 7 is missing" in job.ends[-1].error
    assert "in deep" in job.ends[-1].error
    assert "executor.py" not in job.ends[-1].error


async def test_an_error_with_text_that_no_encoding_takes_is_kept_all_the_same(rig):
    async def fails() -> None:
        raise ValueError("half \ud800")

    rig.kind(fails)
    async with rig.working():
        job = await rig.ends(await rig.enqueue("fails", {"terms": {}}), State.SCHEDULED)
    job.ends[-1].error.encode()


async def test_an_error_whose_own_text_raises_is_a_failure_too(rig):
    class Nasty(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def fails() -> None:
        raise Nasty

    rig.kind(fails)
    async with rig.working():
        job = await rig.ends(await rig.enqueue("fails", {"terms": {}}), State.SCHEDULED)
    assert "Nasty" in job.ends[-1].error


async def test_the_last_failure_makes_a_dead_letter(rig):
    async def fails() -> None:
        raise ValueError

    rig.kind(fails)
    async with rig.working():
        job = await rig.ends(await rig.enqueue("fails", {"max_attempts": 1}), State.DEAD)
    assert job.reason == "attempts_used"


@pytest.mark.parametrize(
    "error, state, end, reason",
    [
        (Snooze(60), State.SCHEDULED, "snoozed", ""),
        (RetryAfter(90), State.SCHEDULED, "failed", ""),
        (RateLimited("api", retry_after=60), State.SCHEDULED, "rate_limited", ""),
        (Abort("no such account"), State.DEAD, "aborted", "aborted: no such account"),
        (Cancel("obsolete"), State.CANCELLED, "cancelled", "obsolete"),
        (Control(), State.SCHEDULED, "failed", ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_control_by_exception(rig, error, state, end, reason):
    rig.kind(raises(error)[0], kind="control")
    async with rig.working():
        job = await rig.ends(await rig.enqueue("control", {"terms": {}}), state)
    assert (job.ends[-1].end, job.reason) == (end, reason)
    assert job.failures == (end == "failed")


async def test_retry_after_replaces_the_backoff(rig):
    rig.kind(raises(RetryAfter(3_000))[0], kind="later")
    async with rig.working():
        job = await rig.ends(await rig.enqueue("later", {"terms": {}}), State.SCHEDULED)
    assert 2_999_000 < job.due - job.created_at < 3_010_000


async def test_rate_limited_closes_the_named_counter(rig):
    rig.kind(raises(RateLimited("api", retry_after=60))[0], kind="limited")
    async with rig.working():
        await rig.ends(await rig.enqueue("limited", {"needs": (Need("api"),)}), State.SCHEDULED)
        with rig.world.lock:
            assert rig.world.counters["api"].closed_until > 0


async def test_discard_removes_the_row(rig):
    rig.kind(raises(Discard())[0], kind="needless")
    async with rig.working():
        job = await rig.enqueue("needless")
        await rig.until(lambda: rig.gone(job))


@pytest.mark.capability("H20")
async def test_release_gives_the_job_up_uncharged(rig):
    async def busy(ctx: Context) -> None:
        ctx.release(60, "come back later")

    rig.kind(busy)
    async with rig.working():
        job = await rig.ends(await rig.enqueue("busy"), State.SCHEDULED)
    assert (job.failures, job.crashes, job.snoozes) == (0, 0, 0)
    assert job.ends[-1].end == "released"


@pytest.mark.parametrize(
    "value",
    [object(), float, "x" * 300_000, {1: object()}, [float("nan")], {"a": b"x"}],
    ids=["object", "type", "too long", "nested", "NaN", "bytes"],
)
async def test_a_result_that_cannot_be_stored_aborts_the_job(rig, value):
    async def returns():  # no annotation: any JSON
        return value

    rig.kind(returns)
    async with rig.working():
        job = await rig.ends(await rig.enqueue("returns"), State.DEAD)
    assert job.reason.startswith("aborted: ")
    assert job.failures == 0


async def test_a_plain_function_that_returns_a_coroutine_is_told_so(rig):
    async def inner() -> None: ...

    def outer():
        return inner()

    rig.kind(outer)
    async with rig.working():
        job = await rig.ends(await rig.enqueue("outer"), State.DEAD)
    assert "async def" in job.reason


async def test_a_kind_nobody_here_knows_any_more_is_let_go(rig):
    async def known() -> None: ...

    rig.kind(known)
    async with rig.working() as worker:
        worker._handlers.pop("known")
        job = await rig.ends(await rig.enqueue("known"), State.SCHEDULED)
    assert (job.failures, job.crashes) == (0, 0)
    assert "no handler" in job.ends[-1].error


async def test_an_old_payload_is_brought_up_to_date(rig):
    async def mail(to: str) -> str:
        return to

    rig.kind(mail, schema_version=2, upcasts={1: lambda old: {"to": old["address"]}})
    async with rig.working():
        job = await rig.enqueue("mail", address="ada@example.org")
        await rig.ends(job)
    assert rig.result(job) == "ada@example.org"


async def test_a_payload_newer_than_the_handler_is_undecodable(rig):
    async def mail(to: str) -> None: ...

    rig.kind(mail)
    async with rig.working():
        job = await rig.ends(await rig.enqueue("mail", {"terms": {"schema_version": 3}}, to="x"), State.DEAD)
    assert job.reason == "undecodable"


async def test_each_attempt_has_context_variables_of_its_own(rig):
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

    async def coroutine() -> int:
        variable.set(variable.get() + 1)
        return variable.get()

    def plain() -> int:
        variable.set(variable.get() + 1)
        return variable.get()

    rig.kind(coroutine)
    rig.kind(plain)
    async with rig.working(concurrency=1):
        jobs = [*await rig.enqueue_many(3, "coroutine"), *await rig.enqueue_many(3, "plain")]
        for job in jobs:
            await rig.ends(job)
    assert [rig.result(job) for job in jobs] == [1] * 6


class Wordless(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    "error, state, reason",
    [
        (Abort(5), State.DEAD, "aborted: 5"),  # type: ignore[arg-type]
        (Abort(None), State.DEAD, "aborted"),  # type: ignore[arg-type]
        (Abort(ValueError("why")), State.DEAD, "aborted: why"),  # type: ignore[arg-type]
        (Abort(Wordless()), State.DEAD, "aborted: Wordless"),  # type: ignore[arg-type]
        (Abort("a\0b"), State.DEAD, "aborted: a\ufffdb"),
        (Abort("a\ud800b"), State.DEAD, "aborted: a?b"),
        (Cancel(b"x"), State.CANCELLED, "b'x'"),  # type: ignore[arg-type]
        (Cancel(Wordless()), State.CANCELLED, "Wordless"),  # type: ignore[arg-type]
    ],
)
async def test_whatever_is_given_as_a_reason_ends_the_job(rig, error, state, reason):
    """A reason that was no text once sent the job round for ever, uncharged."""
    coroutine, plain = raises(error)
    rig.kind(coroutine)
    rig.kind(plain)
    async with rig.working():
        for name in ("coroutine", "plain"):
            job = await rig.ends(await rig.enqueue(name), state)
            assert (job.reason, job.attempt) == (reason, 1)


async def test_a_long_reason_is_cut(rig):
    coroutine, _ = raises(Abort("x" * 10_000_000))
    rig.kind(coroutine)
    async with rig.working():
        assert len((await rig.ends(await rig.enqueue("coroutine"), State.DEAD)).reason) < 5_000


async def test_an_exception_without_words_is_a_failure_of_its_type(rig):
    """And no SystemExit from its text ends the worker."""
    coroutine, plain = raises(Wordless())
    rig.kind(coroutine)
    rig.kind(plain)
    async with rig.working():
        for name in ("coroutine", "plain"):
            job = await rig.ends(await rig.enqueue(name, {"max_attempts": 1}), State.DEAD)
            assert "Wordless" in job.ends[-1].error


@pytest.mark.parametrize("counter", [5, "\ud800", "a\0b", "kind:x", "a/" + "x" * 500, object(), Wordless])
async def test_a_limit_of_a_counter_that_cannot_be_is_a_failure(rig, counter):
    # A value whose text ends the process is made here, where no test runner tries to print it.
    named = Wordless() if counter is Wordless else counter
    coroutine, _ = raises(RateLimited(named, retry_after=1))  # type: ignore[arg-type]  # what users may write
    rig.kind(coroutine)
    async with rig.working():
        job = await rig.ends(await rig.enqueue("coroutine", {"max_attempts": 1}), State.DEAD)
    assert (job.reason, job.failures) == ("attempts_used", 1)
