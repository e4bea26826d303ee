"""Waiting for a job's end, and what comes of it."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tessera import State, Tessera
from tessera.handle import Handle
from tessera.model.errors import InvalidArgument, JobNotCompleted, NotFound, ResultTimeout, WrongState
from tessera.model.outcomes import Aborted, Completed, Crashed, Discarded, Failed
from tests.client.colours import Colour, complete, end, run, take


@dataclass
class Order:
    number: int
    lines: list[str]
    at: datetime


VALUES: list[tuple[Any, Any]] = [
    (int, 7),
    (str, "Ünï\0code"),
    (float, 0.5),
    (bytes, b"\x00\xff"),
    (Decimal, Decimal("1.10")),
    (UUID, UUID(int=5)),
    (datetime, datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)),
    (date, date(2030, 1, 2)),
    (timedelta, timedelta(seconds=90)),
    (list[tuple[int, str]], [(1, "a"), (2, "b")]),
    (dict[str, set[int]], {"a": {1, 2}}),
    (Order, Order(1, ["x"], datetime(2030, 1, 1, tzinfo=UTC))),
    (Order | None, None),
]


def echo(app: Tessera, annotation: Any) -> Any:
    def echo(value: Any) -> Any:
        return value

    echo.__annotations__ = {"value": annotation, "return": annotation}
    return app.job(echo)


@pytest.mark.capability("H13")
@pytest.mark.parametrize("annotation, value", VALUES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_value_comes_back_as_the_type_it_went_in_as(annotation: Any, value: Any):
    app = Tessera("memory://")
    handle = echo(app, annotation).enqueue(value)
    run(app)
    assert handle.result(timeout=5) == value
    assert type(handle.result()) is type(value)


def work(app: Tessera) -> Any:
    def work(n: int = 1) -> int:
        return n

    return app.job(work)


def test_the_result_of_a_completed_job_is_there_at_once(colour: Colour):
    handle = colour.call(work(colour.app), "enqueue", 5)
    run(colour.app)
    assert colour.call(handle, "result") == 5
    assert colour.call(handle, "result", timeout=0) == 5
    assert colour.call(handle, "get").result == 5


@pytest.mark.capability("P24")
def test_a_wait_ends_when_the_job_does(app: Tessera):
    handle = work(app).enqueue(5)
    thread = threading.Thread(target=run, args=(app,))
    thread.start()
    assert handle.result(timeout=30) == 5
    thread.join(30)


@pytest.mark.capability("P24")
def test_an_awaited_end_lets_the_loop_go_on(app: Tessera):
    kind = work(app)

    async def main() -> int:
        async with app:
            handle = await kind.aenqueue(5)
            waiting = asyncio.create_task(handle.aresult(timeout=30))
            await asyncio.sleep(0)
            await asyncio.to_thread(run, app)
            return await waiting

    assert asyncio.run(main()) == 5


@pytest.mark.capability("P24")
@pytest.mark.parametrize(
    "outcome, state, reason",
    [(Aborted("bad input"), "dead", "aborted: bad input"), (Discarded(), "gone", "its row was removed")],
)
def test_a_job_that_ended_otherwise_has_no_result(colour: Colour, outcome: Any, state: str, reason: str):
    handle = colour.call(work(colour.app), "enqueue")
    job = take(colour.app)
    waiting = threading.Timer(0.02, end, (colour.app, job, outcome))
    waiting.start()
    with pytest.raises(JobNotCompleted) as refused:
        colour.call(handle, "result", timeout=30)
    waiting.join(30)
    assert (refused.value.state, refused.value.reason) == (state, reason)
    assert handle.id in str(refused.value)


def test_a_cancelled_job_has_no_result(colour: Colour):
    handle = colour.call(work(colour.app), "enqueue")
    assert colour.call(handle, "cancel", reason="no need") is State.CANCELLED
    with pytest.raises(JobNotCompleted, match="it is cancelled \\(no need\\)"):
        colour.call(handle, "result")


@pytest.mark.capability("P24")
def test_a_wait_that_is_over_leaves_the_job_alone(colour: Colour):
    handle = colour.call(work(colour.app), "enqueue", 5)
    began = time.monotonic()
    with pytest.raises(ResultTimeout, match="is still available; it goes on"):
        colour.call(handle, "result", timeout=0.05)
    assert 0.04 < time.monotonic() - began < 10
    with pytest.raises(TimeoutError):
        colour.call(handle, "result", timeout=timedelta(0))
    run(colour.app)
    assert colour.call(handle, "result") == 5


@pytest.mark.capability("P24")
def test_a_failure_that_will_be_retried_is_no_end(app: Tessera):
    handle = work(app).enqueue()
    end(app, take(app), Failed("x"))
    with pytest.raises(ResultTimeout, match="is still scheduled"):
        handle.result(timeout=0.01)


@pytest.mark.parametrize("timeout", [None, 0, 30])
def test_a_quarantined_job_is_not_waited_for(colour: Colour, timeout: float | None):
    """Only a person lets it run again, so a wait without a time limit would be one without an end."""
    handle = colour.call(work(colour.app).with_options(max_crashes=1, id="order-1"), "enqueue", 5)
    end(colour.app, take(colour.app), Crashed("the process died"))
    assert colour.call(handle, "get").state is State.QUARANTINED
    with pytest.raises(
        JobNotCompleted, match=r"it is quarantined .*: tessera jobs retry order-1\)"
    ) as refused:
        colour.call(handle, "result", timeout=timeout)
    assert refused.value.state == "quarantined"
    colour.call(colour.app.jobs, "retry", handle)
    run(colour.app)
    assert colour.call(handle, "result", timeout=30) == 5


def test_a_wait_ends_when_the_job_is_quarantined(app: Tessera):
    handle = work(app).with_options(max_crashes=1).enqueue()
    job = take(app)
    crash = threading.Timer(0.02, end, (app, job, Crashed("the process died")))
    crash.start()
    with pytest.raises(JobNotCompleted, match="it is quarantined"):
        handle.result(timeout=30)
    crash.join(30)


def test_a_wait_that_is_over_tells_what_holds_the_job(colour: Colour):
    kind = work(colour.app)
    handle = colour.call(kind, "enqueue")
    with pytest.raises(ResultTimeout, match=r"goes on \(no live worker serves the queue 'default'\)"):
        colour.call(handle, "result", timeout=0)
    colour.call(colour.app.queues, "pause", "default")
    with pytest.raises(ResultTimeout, match=r"goes on \(the queue 'default' is paused\)"):
        colour.call(handle, "result", timeout=0)
    later = colour.call(kind.with_options(delay=3_600), "enqueue")
    with pytest.raises(ResultTimeout, match=r"still scheduled; it goes on \(it is due in "):
        colour.call(later, "result", timeout=0)
    colour.call(colour.app.queues, "resume", "default")
    take(colour.app)
    with pytest.raises(ResultTimeout, match=r"still running; it goes on$"):
        colour.call(handle, "result", timeout=0)


@pytest.mark.parametrize("timeout", [-1, "5", float("nan")])
def test_a_time_limit_that_is_none_is_refused(app: Tessera, timeout: Any):
    handle = work(app).enqueue()
    with pytest.raises(InvalidArgument, match="timeout"):
        handle.result(timeout=timeout)


def test_a_job_that_never_was_is_not_found(colour: Colour):
    handle: Handle[Any] = Handle(colour.app, b"\0" * 16)  # type: ignore[arg-type]
    for verb in ("result", "get", "cancel"):
        with pytest.raises(NotFound):
            colour.call(handle, verb)


def test_a_cancel_of_a_finished_job_is_refused(colour: Colour):
    handle = colour.call(work(colour.app), "enqueue")
    run(colour.app)
    with pytest.raises(WrongState, match="it is completed"):
        colour.call(handle, "cancel")


def test_a_soft_cancel_of_a_running_job_asks_and_a_hard_one_takes(colour: Colour):
    handle = colour.call(work(colour.app), "enqueue")
    take(colour.app)
    assert colour.call(handle, "cancel") is State.RUNNING
    assert colour.call(handle, "get").cancel_requested
    assert colour.call(handle, "cancel", hard=True) is State.CANCELLED


def test_the_result_of_a_kind_without_code_here_is_plain_json(app: Tessera, url: str):
    handle = work(app).enqueue(5)
    complete(app, take(app), {"n": [1, 2]})
    del app.kinds["work"]
    assert app.jobs.handle(handle.id).result() == {"n": [1, 2]}


def test_a_result_that_was_stored_as_nothing_is_none(app: Tessera):
    @app.job
    def nothing() -> None: ...

    handle = nothing.enqueue()
    end(app, take(app), Completed(None))
    assert handle.result() is None


def test_handles_are_values(app: Tessera):
    kind = work(app)
    first, second = kind.enqueue(), kind.with_options(id="order-1").enqueue()
    again = app.jobs.handle("order-1")
    assert (again, len({first, second, again})) == (second, 2)
    assert first != second
    assert first != "order-1"
    assert repr(second) == "Handle('order-1')"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_handle_that_is_pickled_says_what_to_keep_instead(app: Tessera, protocol: int):
    handle = work(app).enqueue()
    with pytest.raises(
        TypeError, match=r"cannot be pickled; keep handle\.id, and ask app\.jobs\.handle\(id\)"
    ):
        pickle.dumps({"job": [handle]}, protocol)


def test_a_copy_of_a_handle_is_that_handle(app: Tessera):
    handle = work(app).enqueue()
    assert copy.copy(handle) is handle
    assert copy.deepcopy({"job": handle})["job"] is handle


@pytest.mark.asyncio
async def test_waiting_for_a_result_in_an_event_loop_says_what_to_await(app: Tessera):
    handle = await work(app).aenqueue()
    with pytest.warns(RuntimeWarning, match="await aresult"), pytest.raises(ResultTimeout):
        handle.result(timeout=0.001)
