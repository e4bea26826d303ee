"""The one door to the world: ids that ascend, and worlds that do not disturb each other."""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from tessera import seam
from tessera.model.ids import show_id

T = TypeVar("T")


class World:
    """A world with a clock of its own and a seed."""

    def __init__(self, now: int = 1_000, seed: int = 1) -> None:
        self.now = now
        self.dice = random.Random(seed)
        self.slept: list[float] = []
        self.started: list[str] = []

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1_000

    def random(self) -> float:
        return self.dice.random()

    def random_bytes(self, count: int) -> bytes:
        return self.dice.randbytes(count)

    def pause(self, seconds: float) -> None:
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        self.started.append(name)
        return asyncio.get_running_loop().create_task(work, name=name)

    def start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        self.started.append(name)
        return threading.Thread(target=target)

    async def start_process(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        inherit: bool = False,
    ) -> asyncio.subprocess.Process:
        self.started.append(argv[0])
        raise OSError("none here")


# Ids --------------------------------------------------------------------------------------------------------


def test_an_id_is_a_uuid_of_version_7_that_tells_its_time():
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(show_id(seam.new_id()))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before <= made.int >> 80 <= time.time_ns() // 1_000_000


def test_ids_ascend():
    ids = [seam.new_id() for _ in range(20_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_ids_ascend_though_the_clock_stands_still_or_goes_back():
    world = World(now=5_000)
    with seam.use(world):
        first = [seam.new_id() for _ in range(100)]
        world.now = 4_000
        back = [seam.new_id() for _ in range(100)]
        world.now = 6_000
        ids = [*first, *back, seam.new_id()]
    assert ids == sorted(set(ids))


def test_ids_of_many_threads_are_unique_and_ascend_in_each():
    lists: list[list[bytes]] = [[] for _ in range(8)]
    start = threading.Barrier(8)

    def make(into: list[bytes]) -> None:
        start.wait(10)
        into += [seam.new_id() for _ in range(2_000)]

    threads = [threading.Thread(target=make, args=(into,)) for into in lists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(one == sorted(one) for one in lists)
    assert len({key for one in lists for key in one}) == 16_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_other_ids_than_its_parent(monkeypatch: pytest.MonkeyPatch):
    """Also in the same millisecond, where ids are counted upwards: not on from its parent's place."""
    now = time.time_ns()
    monkeypatch.setattr("tessera.seam.time.time_ns", lambda: now)
    last = seam.new_id()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest may run in here
        try:
            os.write(write, b"".join(seam.new_id() for _ in range(100)))
        finally:
            os._exit(0)
    mine = {bytes(seam.new_id()) for _ in range(100)}
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    theirs = {data[at : at + 16] for at in range(0, len(data), 16)}
    assert len(theirs) == 100
    assert not mine & theirs
    assert abs(int.from_bytes(data[8:16], "big") - int.from_bytes(last[8:], "big")) > 1 << 32


def test_incarnations_differ():
    names = {seam.new_incarnation() for _ in range(1_000)}
    assert len(names) == 1_000
    assert all(len(name) == 18 for name in names)


# Worlds -----------------------------------------------------------------------------------------------------


def test_everything_is_asked_of_the_world_in_use():
    world = World()
    with seam.use(world) as used:
        assert used is world
        assert (seam.now_ms(), seam.monotonic()) == (1_000, 1.0)
        dice = random.Random(1)
        assert (seam.random(), seam.random_bytes(4)) == (dice.random(), dice.randbytes(4))
        assert seam.start_thread(lambda: None, "thread").is_alive() is False

        async def wait() -> str:
            await seam.sleep(3)
            with pytest.raises(OSError, match="none here"):
                await seam.start_process(["true"])
            return await seam.spawn(asyncio.sleep(0, "spawned"), "task")

        assert asyncio.run(wait()) == "spawned"
    assert world.slept == [3]
    assert world.started == ["thread", "true", "task"]


def test_a_world_ends_with_its_block():
    with pytest.raises(KeyError), seam.use(World()):
        raise KeyError
    assert seam.now_ms() > 1_000_000_000_000


def test_worlds_nest():
    with seam.use(World(now=1)):
        with seam.use(World(now=2)):
            assert seam.now_ms() == 2
        assert seam.now_ms() == 1


def test_one_seed_makes_the_same_ids_whatever_was_made_before():
    def ids() -> list[bytes]:
        with seam.use(World(seed=7)):
            return [seam.new_id() for _ in range(10)]

    first = ids()
    seam.new_id()
    assert ids() == first


def test_a_world_of_the_future_leaves_no_mark_on_real_ids():
    with seam.use(World(now=4_000_000_000_000)):
        seam.new_id()
    assert uuid.UUID(show_id(seam.new_id())).int >> 80 <= time.time_ns() // 1_000_000


def test_using_a_world_again_inside_itself_goes_on_with_its_ids():
    world = World()
    with seam.use(world):
        first = seam.new_id()
        with seam.use(world):
            second = seam.new_id()
        third = seam.new_id()
    assert first < second < third


def test_tasks_beside_each_other_keep_their_worlds():
    async def look(world: World) -> list[int]:
        with seam.use(world):
            seen = []
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(seam.now_ms())
            return seen

    async def both() -> list[list[int]]:
        return list(await asyncio.gather(look(World(now=1)), look(World(now=2))))

    assert asyncio.run(both()) == [[1] * 3, [2] * 3]


# The real one -----------------------------------------------------------------------------------------------


def test_the_real_world_counts_on():
    first, second = seam.monotonic(), seam.monotonic()
    assert first <= second
    assert abs(seam.now_ms() - time.time() * 1_000) < 10_000
    assert all(0 <= seam.random() < 1 for _ in range(100))
    assert len(seam.random_bytes(5)) == 5


def test_a_thread_keeps_the_context_it_was_started_in():
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="none")
    seen: list[str] = []
    name.set("mine")
    thread = seam.start_thread(
        lambda: seen.append(f"{name.get()} {threading.current_thread().name}"), "worker-7"
    )
    thread.join(10)
    assert seen == ["mine worker-7"]
    assert thread.daemon


def test_the_real_world_sleeps_spawns_and_starts_processes():
    async def everything() -> tuple[str, bytes, bool]:
        await seam.sleep(0)
        task = seam.spawn(asyncio.sleep(0, "spawned"), "a name")
        assert task.get_name() == "a name"
        code = "import os, sys; print(sys.stdin.read(), os.environ['MARK'], os.getpgid(0) == os.getpid())"
        child = await seam.start_process([sys.executable, "-c", code], env={**os.environ, "MARK": "here"})
        out, _ = await child.communicate(b"said")
        return await task, out.strip(), child.returncode == 0

    assert asyncio.run(everything()) == ("spawned", b"said here True", True)


def test_a_pause_is_the_seams():
    paused: list[float] = []

    class Patient(seam.RealSeam):
        def pause(self, seconds: float) -> None:
            paused.append(seconds)

    with seam.use(Patient()):
        seam.pause(0.5)
    seam.pause(0.001)
    assert paused == [0.5]
