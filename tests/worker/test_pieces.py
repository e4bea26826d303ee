"""The small parts by themselves: settings, timers, threads, frames, the loop beside."""

from __future__ import annotations

import asyncio
import functools
import threading

import msgspec
import pytest

from tessera import seam
from tessera.model.errors import ConfigError
from tessera.model.outcomes import Completed, Failed, LimitMet, Released
from tessera.worker import wire
from tessera.worker.handlers import Handler, signature_of
from tessera.worker.settings import WorkerSettings
from tessera.worker.side import Side, for_ever
from tessera.worker.threads import Threads
from tessera.worker.wheel import Wheel
from tests.worker.rig import seconds, signalled


def test_all_problems_of_the_settings_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        WorkerSettings(
            queues={"Bad": 0}, mode="strict", concurrency=True, lease_seconds=float("nan"), prefetch=-1
        )
    problems = caught.value.problems
    assert [problem.split(":")[0] for problem in problems] == [
        "queues", "queues", "queues", "concurrency", "prefetch", "lease_seconds",
    ]  # fmt: skip


@pytest.mark.parametrize("queues", ["default", [], {}, 5, ["a", "a"], ["A"], {"a": -1}, {"a": "much"}])
def test_queues_that_make_no_sense_are_refused(queues):
    with pytest.raises(ConfigError, match="queues"):
        WorkerSettings(queues=queues)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match="mode"):
        WorkerSettings(mode="fair")  # type: ignore[arg-type]


def test_queues_without_weights_weigh_the_same():
    assert WorkerSettings(queues=["a", "b"]).weights == {"a": 1.0, "b": 1.0}


def handler(function, isolation="auto") -> Handler:
    return Handler(kind="k", function=function, signature=signature_of(function), isolation=isolation)


def test_a_handler_runs_where_its_form_says():
    async def coroutine() -> None: ...

    def plain() -> None: ...

    class Callable:
        __name__ = "callable"

        async def __call__(self) -> None: ...

    assert handler(coroutine).runs == "loop"
    assert handler(plain).runs == "thread"
    assert handler(plain, "process").runs == handler(coroutine, "process").runs == "process"
    signature = signature_of(coroutine)
    for function in (functools.partial(coroutine), Callable()):
        assert Handler(kind="k", function=function, signature=signature).runs == "loop"


# Timers -----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_timers_go_off_in_order():
    wheel = Wheel(asyncio.get_running_loop())
    rung: list[int] = []
    done = asyncio.Event()
    now = seam.monotonic()
    for delay in (3, 1, 2):
        wheel.at(now + delay / 50, functools.partial(rung.append, delay))
    wheel.at(now + 0.08, done.set)
    await signalled(done)
    assert rung == [1, 2, 3]
    assert len(wheel) == 0


@pytest.mark.asyncio
async def test_a_cancelled_timer_does_not_go_off():
    wheel = Wheel(asyncio.get_running_loop())
    rung: list[int] = []
    done = asyncio.Event()
    timer = wheel.at(seam.monotonic() + 0.01, functools.partial(rung.append, 1))
    wheel.cancel(timer)
    wheel.cancel(timer)
    wheel.at(seam.monotonic() + 0.03, done.set)
    await signalled(done)
    assert rung == []


@pytest.mark.asyncio
async def test_timers_that_are_cancelled_take_no_room():
    wheel = Wheel(asyncio.get_running_loop())
    kept = wheel.at(seam.monotonic() + 3_600, lambda: None)
    for _ in range(10_000):
        wheel.cancel(wheel.at(seam.monotonic() + 60, lambda: None))
    assert len(wheel._heap) < 200
    assert len(wheel) == 1
    assert kept in wheel._heap
    wheel.close()
    assert len(wheel) == 0


@pytest.mark.asyncio
async def test_a_timer_in_the_past_goes_off_at_once():
    wheel = Wheel(asyncio.get_running_loop())
    done = asyncio.Event()
    wheel.at(seam.monotonic() - 5, done.set)
    await signalled(done)


# Threads ----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_an_idle_thread_is_used_again():
    threads = Threads(asyncio.get_running_loop())
    idents = {await threads.run(threading.get_ident) for _ in range(5)}
    assert len(idents) == threads.started == 1
    assert threading.get_ident() not in idents
    threads.close()


@pytest.mark.asyncio
async def test_threads_work_side_by_side_and_end_when_closed():
    threads = Threads(asyncio.get_running_loop())
    before = threading.active_count()
    gate = threading.Barrier(3)
    works = [threads.run(functools.partial(gate.wait, 10)) for _ in range(3)]
    assert sorted(await asyncio.gather(*works)) == [0, 1, 2]
    threads.close()
    async with seconds(5, "the threads to end"):
        while threading.active_count() > before:  # noqa: ASYNC110  a thread that ended rings no bell
            await asyncio.sleep(0.001)
    assert threads.started == 0


@pytest.mark.asyncio
async def test_a_thread_that_is_busy_at_the_close_ends_after_its_work():
    threads = Threads(asyncio.get_running_loop())
    gate = threading.Event()
    work = threads.run(functools.partial(gate.wait, 10))
    threads.close()
    assert threads.started == 1
    gate.set()
    assert await work is True
    assert threads.started == 0


# Frames -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "outcome", [Completed(b'{"n":1}'), Failed("no", 5), Released(3, "x"), LimitMet("api", 9), None]
)
def test_an_outcome_survives_the_pipe(outcome):
    data = wire.frame(wire.ended(outcome))
    size = wire.length(data[: wire.HEADER_BYTES])
    message = wire.read_in_worker(data[wire.HEADER_BYTES :])
    assert size == len(data) - wire.HEADER_BYTES
    assert isinstance(message, wire.Ended)
    assert wire.outcome_of(message) == outcome


def test_a_frame_over_the_limit_is_refused():
    with pytest.raises(ValueError, match="limit"):
        wire.length(b"\xff\xff\xff\xff")


def test_an_outcome_that_a_child_may_not_name_is_refused():
    with pytest.raises(KeyError):
        wire.outcome_of(wire.Ended("GivenBack", msgspec.Raw(b"{}")))


# The loop beside --------------------------------------------------------------------------------------------


class Store:
    """As much of a store as the side loop needs."""

    def __init__(self) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True


@pytest.mark.asyncio
async def test_the_side_loop_runs_its_tasks_then_what_is_last_then_closes_the_store():
    store = Store()
    seen: list[str] = []
    begun = threading.Event()

    async def opened():
        return store

    async def task(_: object) -> None:
        seen.append(threading.current_thread().name)
        begun.set()
        await asyncio.Event().wait()

    async def last(_: object) -> None:
        seen.append("last")
        assert not store.closed

    side = Side(opened, [("task", task)], last)
    await side.start()
    begun.wait(5)

    async def answer() -> int:
        return 42

    assert side.call(answer()).result(5) == 42
    await side.close()
    assert seen == ["tessera-side", "last"]
    assert store.closed
    with pytest.raises(RuntimeError, match="ended"):
        side.call(answer())
    side.soon(seen.append, "too late")
    assert "too late" not in seen


@pytest.mark.asyncio
async def test_a_task_that_fails_begins_anew(monkeypatch, caplog):
    tries: list[int] = []

    class Impatient(seam.RealSeam):
        async def sleep(self, duration: float) -> None:
            await asyncio.sleep(0)

    async def work() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ZeroDivisionError

    with seam.use(Impatient()):
        await for_ever("task", work)
    assert len(tries) == 3
    assert sum("begins anew" in record.getMessage() for record in caplog.records) == 2
