"""Producing jobs, in both colours of the client."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from tessera import JobView, Retention, Retry, State, Tessera, Unique
from tessera.model.errors import (
    IdConflict,
    InvalidArgument,
    InvalidMember,
    JobNotCompleted,
    NotFound,
    ResultTimeout,
    WrongState,
)
from tests.scenarios.rig import Client, filled, reaches, signalled, until, working

import asyncio  # isort: skip

pytestmark = pytest.mark.asyncio


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Address(msgspec.Struct):
    town: str


@dataclass
class Parcel:
    to: Address
    weight: Decimal
    size: Size = Size.SMALL


@pytest.fixture
def ship(app: Tessera) -> Any:
    @app.job
    def ship(parcel: Parcel, at: datetime, insured: float = 0.5) -> None: ...

    return ship


# P1 ---------------------------------------------------------------------------------------------------------


@pytest.mark.capability("P1")
async def test_arguments_are_cast_and_completed_when_the_job_is_built(
    app: Tessera, client: Client, ship: Any
):
    given = {"to": {"town": "Bern"}, "weight": "1.20", "size": "l"}
    handle = await client(ship, "enqueue", given, at="2026-11-30T12:00:00Z", insured=1)
    payload = (await client(app.jobs, "get", handle, reveal=True)).payload
    assert payload == {
        "parcel": {"to": {"town": "Bern"}, "weight": "1.20", "size": "l"},
        "at": "2026-11-30T12:00:00Z",
        "insured": 1.0,
    }
    plain = await client(
        ship, "enqueue", Parcel(Address("Bern"), Decimal(2)), datetime(2026, 11, 30, tzinfo=UTC)
    )
    payload = (await client(app.jobs, "get", plain, reveal=True)).payload
    assert (payload["parcel"]["size"], payload["insured"]) == ("s", 0.5)


@pytest.mark.capability("P1")
@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"parcel": {"to": {"town": 3}, "weight": "1"}, "at": "2026-11-30T12:00:00Z"}, "parcel: .*town"),
        (
            {"parcel": {"to": {"town": "Bern"}, "weight": "1", "size": "m"}, "at": "2026-11-30T12:00:00Z"},
            "parcel: .*size",
        ),
        (
            {"parcel": {"to": {"town": "Bern"}, "weight": "heavy"}, "at": "2026-11-30T12:00:00Z"},
            "parcel: .*weight",
        ),
        ({"parcel": {"to": {"town": "Bern"}, "weight": "1"}}, "at: is missing"),
        ({"parcel": {"to": {"town": "Bern"}, "weight": "1"}, "at": "soon"}, "at: "),
    ],
    ids=["nested", "enum", "decimal", "required", "datetime"],
)
async def test_a_wrong_argument_is_named_before_the_store_is_called(
    app: Tessera, client: Client, ship: Any, arguments: dict[str, Any], words: str
):
    with pytest.raises(InvalidArgument, match=words):
        await client(ship, "enqueue", **arguments)
    assert app._backend is None  # never so much as opened


# P2 ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def note(app: Tessera) -> Any:
    @app.job
    async def note(n: int = 0) -> int:
        return n

    return note


@pytest.mark.capability("P2")
async def test_one_conflicting_member_of_a_bulk_call_stores_none_and_is_named(
    app: Tessera, client: Client, note: Any
):
    await client(note.with_options(id="taken"), "enqueue", 1)
    jobs = [note.job(2), note.with_options(id="taken").job(3), note.job(4)]
    with pytest.raises(InvalidMember, match=r"jobs\[1\].*'taken'"):
        await client(app, "enqueue_many", jobs)
    assert len((await client(app.jobs, "list")).jobs) == 1
    handles = await client(app, "enqueue_many", [note.job(2), note.job(4)])  # the others were no trouble
    assert [handle.created for handle in handles] == [True, True]


@pytest.mark.capability("P2")
async def test_an_id_repeated_within_a_bulk_call_is_a_conflict(app: Tessera, client: Client, note: Any):
    jobs = [note.with_options(id="same").job(1), note.with_options(id="same").job(1)]
    with pytest.raises(InvalidMember, match=r"jobs\[1\]"):
        await client(app, "enqueue_many", jobs)
    assert (await client(app.jobs, "list")).jobs == ()


@pytest.mark.capability("P2")
async def test_a_bulk_call_may_skip_what_is_there(app: Tessera, client: Client, note: Any):
    await client(note.with_options(id="taken"), "enqueue", 1)
    jobs = [note.job(2), note.with_options(id="taken").job(3)]
    handles = await client(app, "enqueue_many", jobs, on_conflict="skip")
    assert [handle.created for handle in handles] == [True, False]


# P5 ---------------------------------------------------------------------------------------------------------


@pytest.mark.capability("P5")
async def test_the_same_id_and_content_is_the_job_that_is_there_in_every_state(
    app: Tessera, client: Client, note: Any
):
    order = note.with_options(id="order-17")
    first = await client(order, "enqueue", 1)
    again = await client(order.with_options(priority=9), "enqueue", 1)
    assert (first.created, again.created, again.key, again.id) == (True, False, first.key, "order-17")
    assert (await client(app.jobs, "get", "order-17")).priority == 0
    async with working(app):
        await first.aresult(10)
    assert not (await client(order, "enqueue", 1)).created
    with pytest.raises(IdConflict, match=r"order-17.*payload"):
        await client(order, "enqueue", 2)


@pytest.mark.capability("P5")
async def test_an_id_is_free_once_the_row_is_gone(app: Tessera, client: Client, note: Any):
    async with working(app):
        for retention in (0, 0.02):
            order = note.with_options(id=f"kept-{retention}", retention=retention)
            handle = await client(order, "enqueue", 1)

            async def is_gone(order: Any = order) -> bool:
                try:
                    return bool((await order.aenqueue(2)).created)
                except IdConflict:
                    return False

            await until(app, is_gone, f"the id of {handle} to be free")


@pytest.mark.capability("P5")
@pytest.mark.parametrize("bad", ["", "-x", "a b", "ä", "x" * 129])
async def test_an_id_that_is_not_safe_everywhere_is_refused(note: Any, bad: str):
    with pytest.raises(InvalidArgument, match="id: must be 1 to 128"):
        note.with_options(id=bad)


# P7, P8, P9 -------------------------------------------------------------------------------------------------


@pytest.mark.capability("P7")
async def test_jobs_are_found_by_all_of_some_tags_and_by_any(app: Tessera, client: Client, note: Any):
    for number, tags in enumerate((["eu", "vip"], ["eu"], ["us", "vip"], [])):
        await client(note.with_options(id=f"j{number}", tags=tags), "enqueue")

    async def found(**which: Any) -> list[str]:
        return sorted(job.id for job in (await client(app.jobs, "list", **which)).jobs)

    assert await found(tags_all=["eu", "vip"]) == ["j0"]
    assert await found(tags_any=["eu", "us"]) == ["j0", "j1", "j2"]
    assert await found(tags_all=["vip"], tags_any=["us"]) == ["j2"]


@pytest.mark.capability("P7")
async def test_tags_are_at_most_32_short_ascii_words(app: Tessera, client: Client, note: Any):
    many = [f"t{number}" for number in range(32)]
    handle = await client(note.with_options(tags=[*many, "t0"]), "enqueue")
    assert (await client(app.jobs, "get", handle)).tags == tuple(many)
    for bad in ([*many, "one-more"], [""], ["a b"], ["ä"], ["x" * 65]):
        with pytest.raises(InvalidArgument, match=r"^tags: "):
            note.with_options(tags=bad)


async def test_a_higher_priority_number_runs_first(app: Tessera, client: Client):
    ran: list[int] = []

    @app.job
    async def mark(n: int) -> None:
        ran.append(n)

    for n in (0, -5, 7, 3):
        await client(mark.with_options(priority=n), "enqueue", n)

    async with working(app, concurrency=1, prefetch=0):
        await filled(app, ran, 4)
    assert ran == [7, 3, 0, -5]


@pytest.mark.capability("P9")
async def test_a_delay_is_kept_to_the_millisecond_and_the_job_runs_then(
    app: Tessera, client: Client, note: Any
):
    handle = await client(note.with_options(delay=timedelta(milliseconds=123)), "enqueue")
    seen: JobView = await client(app.jobs, "get", handle)
    assert seen.due_at is not None
    assert seen.created_at is not None
    assert seen.due_at - seen.created_at == timedelta(milliseconds=123)
    async with working(app):
        await handle.aresult(10)
    ran = (await client(app.jobs, "get", handle)).ends[0]
    assert ran.started_at is not None
    assert ran.started_at >= seen.due_at


@pytest.mark.capability("P9")
async def test_a_time_to_run_at_needs_a_zone_and_a_delay_must_not_vanish(
    app: Tessera, client: Client, note: Any
):
    at = datetime(2030, 1, 1, 12, tzinfo=UTC)
    handle = await client(note.with_options(run_at=at), "enqueue")
    seen = await client(app.jobs, "get", handle)
    assert (seen.state, seen.due_at) == (State.SCHEDULED, at)
    with pytest.raises(InvalidArgument, match="run_at: is a naive datetime"):
        note.with_options(run_at=datetime(2030, 1, 1, 12))
    with pytest.raises(InvalidArgument, match=r"delay: .*rounds to no milliseconds"):
        note.with_options(delay=0.0004)


# P10, P11 ---------------------------------------------------------------------------------------------------


@pytest.mark.capability("P10")
async def test_a_pending_job_waits_for_a_promote_and_holds_its_unique_key(
    app: Tessera, client: Client, note: Any
):
    once = note.with_options(unique=True)
    pending = await client(once.with_options(pending=True), "enqueue", 1)
    assert not (await client(once, "enqueue", 1)).created
    async with working(app):
        assert await (await client(note, "enqueue", 2)).aresult(10) == 2  # the worker takes what may be taken
        assert (await client(pending, "get")).state is State.PENDING
        [queue] = await client(app.queues, "list")
        assert queue.unfinished == 1
        await client(app.jobs, "promote", pending)
        assert await pending.aresult(10) == 1


@pytest.mark.capability("P10")
async def test_a_pending_job_can_be_cancelled(app: Tessera, client: Client, note: Any):
    pending = await client(note.with_options(pending=True), "enqueue", 1)
    assert await client(pending, "cancel") is State.CANCELLED


@pytest.mark.capability("P11")
@pytest.mark.parametrize("retention", [0, Retention(completed=0)], ids=["zero", "by state"])
async def test_without_retention_a_completed_job_leaves_no_row(
    app: Tessera, client: Client, note: Any, retention: Any
):
    kept = await client(note, "enqueue", 1)
    ephemeral = await client(note.with_options(retention=retention), "enqueue", 2)
    async with working(app):
        await kept.aresult(10)

        async def is_gone() -> bool:
            try:
                await ephemeral.aget()
            except NotFound:
                return True
            return False

        await until(app, is_gone, "the row to go")
    assert [job.id for job in (await client(app.jobs, "list")).jobs] == [kept.id]


# P12, P16 ---------------------------------------------------------------------------------------------------


async def test_a_duplicate_of_a_live_job_is_answered_with_it_until_it_has_ended(app: Tessera, client: Client):
    """Also while it runs. (What P12 decides beyond this, a slot for each state, is not built.)"""
    started, gate = asyncio.Event(), asyncio.Event()

    @app.job(unique=Unique(by=["args.account"]))
    async def bill(account: int, month: str) -> None:
        started.set()
        await gate.wait()

    first = await client(bill, "enqueue", 7, "May")
    assert (await client(bill, "enqueue", 8, "May")).created
    async with working(app):
        await signalled(started)
        again = await client(bill, "enqueue", 7, "June")
        assert (again.created, again) == (False, first)
        gate.set()
        await first.aresult(10)
    assert (await client(bill, "enqueue", 7, "June")).created


@pytest.mark.capability("P16")
async def test_a_unique_key_is_of_one_kind_unless_it_is_said_to_span_them(app: Tessera, client: Client):
    @app.job
    def export(account: int) -> None: ...

    @app.job
    def close(account: int) -> None: ...

    for across, second in ((False, True), (True, False)):
        unique = Unique(by=["account"], across_kinds=across)
        first = await client(export.with_options(unique=unique), "enqueue", 7)
        other = await client(close.with_options(unique=unique), "enqueue", 7)
        assert (first.created, other.created, other == first) == (True, second, not second)


# P24 --------------------------------------------------------------------------------------------------------


@pytest.mark.capability("P24")
async def test_a_result_is_waited_for_through_retries_and_is_there_at_once_later(
    app: Tessera, client: Client
):
    @app.job(retry=Retry(max_attempts=3, base=0.02))
    async def fetch() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return 7

    tries: list[int] = []
    handle = await client(fetch, "enqueue")
    async with working(app):
        assert await client(handle, "result", 10) == 7
    assert await client(handle, "result", 0) == 7


@pytest.mark.capability("P24")
async def test_a_wait_that_runs_out_or_is_given_up_leaves_the_job_alone(
    app: Tessera, client: Client, note: Any
):
    handle = await client(note, "enqueue", 5)
    with pytest.raises(ResultTimeout):
        await client(handle, "result", 0.05)
    waiter = asyncio.create_task(handle.aresult())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert (await client(handle, "get")).state is State.AVAILABLE
    async with working(app):
        assert await client(handle, "result", 10) == 5


@pytest.mark.capability("P24")
async def test_an_end_without_result_says_state_and_reason(app: Tessera, client: Client):
    @app.job(retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise ValueError("page 7")

    handle = await client(fails, "enqueue")
    async with working(app):
        with pytest.raises(JobNotCompleted, match=r"dead \(attempts_used\)"):
            await client(handle, "result", 10)
    assert "ValueError: page 7" in (await client(handle, "get")).ends[-1].error


async def test_a_cancel_of_a_waiting_job_is_told_to_whoever_waits(app: Tessera, client: Client, note: Any):
    handle = await client(note, "enqueue")
    assert await client(handle, "cancel", reason="changed my mind") is State.CANCELLED
    with pytest.raises(JobNotCompleted, match="changed my mind"):
        await client(handle, "result", 10)
    with pytest.raises(WrongState):
        await client(app.jobs, "promote", handle)
    assert (await reaches(app, handle, State.CANCELLED)).reason == "changed my mind"
