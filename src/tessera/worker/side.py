"""An event loop beside the worker's, in a thread and with a store handle of its own.

What must go on whatever the handlers do lives here: a handler that computes for a minute without an await
stops the worker's loop, and neither its own lease nor anybody else's may depend on that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias, TypeVar

from tessera import seam
from tessera.store.protocol import Store

T = TypeVar("T")
OpenStore: TypeAlias = Callable[[], Awaitable[Store]]
Task: TypeAlias = Callable[[Store], Coroutine[Any, Any, None]]

logger = logging.getLogger("tessera.worker")


async def for_ever(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine that is not meant to fail, and begin anew after a second if it does all the same."""
    while True:
        try:
            await work()
            return
        except Exception:
            logger.exception("the worker's %s failed and begins anew", name)
            await seam.sleep(1.0)


class Side:
    """The thread, its loop and its store. The same coroutines can run as tasks of any other loop."""

    def __init__(self, open_store: OpenStore, tasks: Sequence[tuple[str, Task]], last: Task) -> None:
        self._open_store = open_store
        self._tasks = tasks
        self._last = last
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started: Future[None] = Future()
        self._ended: Future[None] = Future()

    async def start(self) -> None:
        """Open the store and begin. Raises what opening raises."""
        seam.start_thread(self._thread, "tessera-side")
        await asyncio.wrap_future(self._started)

    async def close(self) -> None:
        """End the tasks, do what is to be done last, close the store."""
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            await asyncio.wrap_future(self._ended)

    def call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the side loop. Callable from any thread."""
        if self._loop is None or self._ended.done():
            work.close()
            raise RuntimeError("the worker has ended")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def soon(self, action: Callable[..., object], *args: object) -> None:
        """Call a function in the side loop; nothing happens once it is closed. Callable from any thread."""
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(action, *args)
            except RuntimeError:  # closed
                return

    def _thread(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception as error:
            if not self._started.done():
                self._started.set_exception(error)
            else:
                logger.exception("the worker's side thread failed")
        finally:
            if not self._ended.done():
                self._ended.set_result(None)

    async def _run(self) -> None:
        store = await self._open_store()
        try:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            works = [seam.spawn(for_ever(name, partial(task, store)), name) for name, task in self._tasks]
            self._started.set_result(None)
            await self._stop.wait()
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            await self._last(store)
        finally:
            await store.close()
