"""How long an application holds its store: past a close while a worker runs, and no longer than it lives."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tessera import Context, Tessera
from tessera.model.errors import InvalidArgument

PATIENCE = 15.0
QUICK: dict[str, Any] = {"lease_seconds": 3, "sweep_seconds": 0.05, "grace_seconds": 5}


class Work:
    """A kind whose job waits for a gate, and one that enqueues the other."""

    def __init__(self, app: Tessera) -> None:
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

        @app.job
        async def gated(n: int = 0) -> int:
            self.begun.set()
            await self.gate.wait()
            return n

        @app.job
        async def parent(*, ctx: Context) -> str:
            self.begun.set()
            await self.gate.wait()
            child: Any = await ctx.aenqueue(gated, 7)
            return str(child.id)

        self.gated, self.parent = gated, parent


async def _aclose(app: Tessera) -> None:
    await app.aclose()


async def _close(app: Tessera) -> None:
    app.close()


async def _close_in_a_thread(app: Tessera) -> None:
    await asyncio.to_thread(app.close)


CLOSES = [_aclose, _close, _close_in_a_thread]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert ours() == []


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tessera-sqlite")]


@pytest.mark.parametrize("close", CLOSES)
@pytest.mark.parametrize("how", ["running", "to come"])
def test_a_worker_goes_on_over_a_close_until_it_is_left(url: str, how: str, close: Callable[..., Any]):
    async def main() -> Any:
        app = Tessera(url)
        work = Work(app)
        async with asyncio.timeout(PATIENCE), app.worker(**QUICK):
            if how == "running":
                handle = await work.gated.aenqueue(5)
                await work.begun.wait()
                await close(app)
            else:
                await close(app)
                handle = await work.gated.aenqueue(5)
            work.gate.set()
            value = await handle.aresult()
        await app.aclose()
        return value

    assert asyncio.run(main()) == 5


@pytest.mark.parametrize("close", CLOSES)
def test_a_job_may_use_the_application_after_a_close(url: str, close: Callable[..., Any]):
    async def main() -> Any:
        app = Tessera(url)
        work = Work(app)
        async with asyncio.timeout(PATIENCE), app.worker(**QUICK):
            handle = await work.parent.aenqueue()
            await work.begun.wait()
            await close(app)
            work.gate.set()
            child = await app.jobs.ahandle(await handle.aresult())
            value = await child.aresult()
        await app.aclose()
        return value

    assert asyncio.run(main()) == 7


def test_what_was_closed_meanwhile_is_given_up_with_the_last_worker(tmp_path: Path):
    app = Tessera(f"sqlite:///{tmp_path}/work.db?synchronous=normal")
    Work(app)

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), app.worker(**QUICK):
            async with app.worker(**QUICK):
                await app.aclose()
            assert app._backend is not None
        assert app._backend is None

    asyncio.run(main())
    assert ours() == []


def test_a_worker_that_cannot_begin_holds_nothing(tmp_path: Path):
    app = Tessera(f"sqlite:///{tmp_path}/work.db?synchronous=normal")
    app.job(kind="one", ceilings=_ceiling(1))(lambda: None)
    app.job(kind="two", ceilings=_ceiling(2))(lambda: None)

    async def main() -> None:
        with pytest.raises(InvalidArgument, match="otherwise than another kind"):
            async with app.worker(**QUICK):
                pass
        await app.aclose()

    asyncio.run(main())
    assert (app._backend, ours()) == (None, [])


def test_a_worker_whose_loop_ended_under_it_does_not_keep_the_store(tmp_path: Path):
    app = Tessera(f"sqlite:///{tmp_path}/work.db?synchronous=normal")

    async def holds() -> None:
        app._hold(object())
        await app._astore()

    asyncio.run(holds())
    app.close()
    assert app._backend is None


def _ceiling(limit: int) -> Any:
    from tessera import Ceiling

    return [Ceiling("c", limit)]


# Dropped without a close ------------------------------------------------------------------------------------


def open_files(folder: Path) -> list[str]:
    """Files below the folder that this process holds open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return sorted(name for name in found if name.startswith(str(folder)))


def use_blocking(app: Tessera) -> None:
    Work(app).gated.enqueue()
    app.jobs.list()


def use_async(app: Tessera) -> None:
    async def main() -> None:
        await Work(app).gated.aenqueue()
        await app.jobs.alist()

    asyncio.run(main())


def use_both_and_wait(app: Tessera) -> None:
    use_async(app)
    with pytest.raises(TimeoutError):
        app.jobs.handle(app.jobs.list().jobs[0].id).result(timeout=0.01)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="not offered: /proc, to see open files")
@pytest.mark.parametrize("use", [use_blocking, use_async, use_both_and_wait])
def test_an_application_that_is_dropped_leaves_no_thread_and_no_file(tmp_path: Path, use: Callable[..., Any]):
    app = Tessera(f"sqlite:///{tmp_path}/work.db?synchronous=normal")
    use(app)
    assert open_files(tmp_path)
    del app
    gc.collect()
    for thread in ours():
        thread.join(PATIENCE)
    assert ours() == []
    assert open_files(tmp_path) == []
    with Tessera(f"sqlite:///{tmp_path}/work.db?synchronous=normal") as again:
        assert len(again.jobs.list().jobs) == 1


def test_an_application_may_be_collected_in_a_thread_of_its_own_store(tmp_path: Path):
    """The collector runs in whatever thread it likes, the one that leads the line among them."""
    app = Tessera(f"sqlite:///{tmp_path}/work.db?synchronous=normal")
    use_async(app)
    life = app._backend._file.life()  # type: ignore[union-attr]  # the SQLite backend
    collected, go = threading.Event(), threading.Event()

    def collect() -> None:
        go.wait(PATIENCE)
        gc.collect()
        collected.set()

    life._writing.put(collect)
    del life, app
    go.set()
    assert collected.wait(PATIENCE)
    for thread in ours():
        thread.join(PATIENCE)
    assert ours() == []
