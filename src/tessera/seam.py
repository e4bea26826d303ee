"""The one door to time, randomness, ids, sleep and spawn.

Nothing else in Tessera calls ``time``, ``random``, ``uuid`` or ``asyncio.sleep`` (a test looks). So a
simulator can put a whole fleet of workers, each with a clock of its own, into one process and one seed: it
gives each a ``Seam`` of its own with ``use``. Timers of asyncio (``timeout``, ``call_later``) run by the
clock of their event loop, which a simulator brings along; a thread waits for a signal, and its time limit
only bounds that.
"""

from __future__ import annotations

import contextvars
import os
import random as _random
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tessera.model.ids import JobId

if TYPE_CHECKING:
    import asyncio  # loaded by whoever runs an event loop: it is half of what `import tessera` would cost

_T = TypeVar("_T")


class Seam(Protocol):
    """What Tessera asks of the world."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch. For display and for stores that have no clock of their own."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow. For local timers."""
        ...

    def random(self) -> float:
        """Uniform in [0, 1). For jitter."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """Unpredictable bytes. For ids and secrets."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let others run for so long."""
        ...

    def pause(self, seconds: float) -> None:
        """Stop this thread for so long. Only where another process must get on first."""
        ...

    def spawn(self, work: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        """Run a coroutine beside this one. The caller keeps the task."""
        ...

    def start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Start a daemon thread that keeps this context."""
        ...

    async def start_process(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        inherit: bool = False,
    ) -> asyncio.subprocess.Process:
        """Start a child with pipes for all three streams, in a process group of its own.

        With ``inherit`` it prints where this process prints; its stdin is a pipe still, which ends when this
        process does.
        """
        ...


class RealSeam:
    """The world as it is."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def random(self) -> float:
        return _random.random()

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    async def sleep(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def spawn(self, work: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        import asyncio

        return asyncio.get_running_loop().create_task(work, name=name)

    def start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(target,), name=name, daemon=True)
        thread.start()
        return thread

    async def start_process(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        inherit: bool = False,
    ) -> asyncio.subprocess.Process:
        import asyncio

        pipe = asyncio.subprocess.PIPE
        out = None if inherit else pipe
        return await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=out, stderr=out, env=env, cwd=cwd, start_new_session=True
        )


_real = RealSeam()
_current: contextvars.ContextVar[Seam] = contextvars.ContextVar("tessera_seam", default=_real)
_ids: contextvars.ContextVar[_IdMaker | None] = contextvars.ContextVar("tessera_ids", default=None)
"""Ids of a world of its own: else its clock would mark the ids of the real one, and a seed would not repeat
them.
"""


@contextmanager
def use(seam: Seam) -> Iterator[Seam]:
    """Let everything called inside, in this context, see another world."""
    is_new = _current.get() is not seam
    token = _current.set(seam)
    ids = _ids.set(_IdMaker() if is_new else _ids.get())
    try:
        yield seam
    finally:
        _ids.reset(ids)
        _current.reset(token)


def now_ms() -> int:
    """See ``Seam.now_ms``."""
    return _current.get().now_ms()


def monotonic() -> float:
    """See ``Seam.monotonic``."""
    return _current.get().monotonic()


def random() -> float:
    """See ``Seam.random``."""
    return _current.get().random()


def random_bytes(count: int) -> bytes:
    """See ``Seam.random_bytes``."""
    return _current.get().random_bytes(count)


async def sleep(seconds: float) -> None:
    """See ``Seam.sleep``."""
    await _current.get().sleep(seconds)


def pause(seconds: float) -> None:
    """See ``Seam.pause``."""
    _current.get().pause(seconds)


def spawn(work: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
    """See ``Seam.spawn``."""
    return _current.get().spawn(work, name)


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """See ``Seam.start_thread``."""
    return _current.get().start_thread(target, name)


async def start_process(
    argv: Sequence[str], *, env: dict[str, str] | None = None, cwd: str | None = None, inherit: bool = False
) -> asyncio.subprocess.Process:
    """See ``Seam.start_process``."""
    return await _current.get().start_process(argv, env=env, cwd=cwd, inherit=inherit)


class _IdMaker:
    """UUIDv7 (RFC 9562, 5.7, method 1): 48 bits of milliseconds, then a counter that starts at a random
    place.

    Keys made by one process ascend, so that jobs enqueued together keep their order and indexes grow at one
    end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ms = 0
        self._tail = 0

    def make(self) -> JobId:
        with self._lock:
            now = now_ms()
            if now > self._ms:
                self._ms = now
                # 73 random bits, the top one of 74 left clear as room to count upwards within a millisecond.
                self._tail = int.from_bytes(random_bytes(10), "big") >> 7
            else:
                self._tail += 1 + random_bytes(1)[0]
            ms, tail = self._ms, self._tail
        value = (ms << 80) | (7 << 76) | ((tail >> 62) & 0xFFF) << 64 | (2 << 62) | (tail & (1 << 62) - 1)
        return JobId(value.to_bytes(16, "big"))

    def forget(self) -> None:
        """A forked child must not count on from its parent's place."""
        self._lock = threading.Lock()
        self._ms = 0


_real_ids = _IdMaker()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_real_ids.forget)


def new_id() -> JobId:
    """A fresh key: 16 bytes, UUIDv7, ascending within this process."""
    return (_ids.get() or _real_ids).make()


def new_incarnation() -> str:
    """The name of one life of one process: random, so that a restarted worker is never taken for its former
    self.
    """
    return random_bytes(9).hex()
