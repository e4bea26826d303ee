"""Threads for plain functions: as many as run at once, kept for the next one. They are daemons, since none
can be ended from outside."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

from tessera import seam

T = TypeVar("T")
_Work: TypeAlias = Callable[[], None]


class Threads:
    """A stack of idle threads. Used from one event loop; the last one that became idle works first, so that
    the others may rest."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._idle: list[SimpleQueue[_Work | None]] = []
        self._started = 0
        self._closed = False

    @property
    def started(self) -> int:
        """Threads started and not ended."""
        return self._started

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Call ``work`` in a thread, in a copy of this context. It must not raise."""
        done: asyncio.Future[T] = self._loop.create_future()
        inbox = self._idle.pop() if self._idle else self._start()
        context = contextvars.copy_context()

        def job() -> None:
            value = context.run(work)
            self._tell(self._finished, inbox, done, value)

        inbox.put(job)
        return done

    def close(self) -> None:
        """End idle threads now and the others after their work."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)
            self._started -= 1

    def _start(self) -> SimpleQueue[_Work | None]:
        inbox: SimpleQueue[_Work | None] = SimpleQueue()

        def work_until_closed() -> None:
            while (job := inbox.get()) is not None:
                job()
                # Else the last job's arguments would live on here until the next one comes.
                del job

        self._started += 1
        seam.start_thread(work_until_closed, f"tessera-handler-{self._started}")
        return inbox

    def _finished(self, inbox: SimpleQueue[_Work | None], done: asyncio.Future[T], value: T) -> None:
        if not done.cancelled():
            done.set_result(value)
        if self._closed:
            inbox.put(None)
            self._started -= 1
        else:
            self._idle.append(inbox)

    def _tell(self, action: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(action, *args)
        except RuntimeError:  # the loop is closed: the worker gave this thread up
            return
