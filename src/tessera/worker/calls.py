"""How a context whose handler runs in the worker's own process reaches store and application."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from tessera.model.changes import AddJob
from tessera.worker.attempt import Attempt
from tessera.worker.context import ChildResult, ContextServices
from tessera.worker.leases import Hold

T = TypeVar("T")


class Extends(Protocol):
    """What keeps leases; see ``renewer``."""

    async def extend(self, hold: Hold, seconds: float) -> None: ...


class Beside(Protocol):
    """The event loop beside the worker's; see ``side``."""

    def call(self, work: Coroutine[Any, Any, T]) -> Future[T]: ...


class Surroundings:
    """What all contexts of a worker share."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, services: ContextServices, renewer: Extends, side: Beside
    ) -> None:
        self.loop = loop
        self.loop_thread = threading.get_ident()
        self.services = services
        self.renewer = renewer
        self.side = side


class LocalCalls:
    """The calls of one attempt, from the event loop or from a thread."""

    __slots__ = ("_around", "_attempt")

    def __init__(self, around: Surroundings, attempt: Attempt) -> None:
        self._around = around
        self._attempt = attempt

    def is_stopped(self) -> bool:
        return self._attempt.stop is not None

    def enqueue(
        self,
        what: object,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        options: Mapping[str, object],
    ) -> object:
        self._must_be_a_thread("enqueue")
        return self._in_loop(self.aenqueue(what, args, kwargs, options))

    async def aenqueue(
        self,
        what: object,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        options: Mapping[str, object],
    ) -> object:
        return await self._around.services.enqueue_from(self._attempt.job, what, args, kwargs, options)

    def extend(self, seconds: float) -> None:
        # Also right in the event loop: the other loop answers while this one waits.
        self._around.side.call(self._around.renewer.extend(self._attempt.hold, seconds)).result()

    async def aextend(self, seconds: float) -> None:
        work = self._around.renewer.extend(self._attempt.hold, seconds)
        await asyncio.wrap_future(self._around.side.call(work))

    def children(self) -> list[ChildResult]:
        self._must_be_a_thread("children")
        return self._in_loop(self.achildren())

    async def achildren(self) -> list[ChildResult]:
        return await self._around.services.children(self._attempt.job)

    def draft_children(self, children: Sequence[object]) -> tuple[AddJob, ...]:
        return self._around.services.draft_children(self._attempt.job, children)

    def _must_be_a_thread(self, verb: str) -> None:
        if threading.get_ident() == self._around.loop_thread:
            raise RuntimeError(
                f"ctx.{verb} would block the event loop that must answer it; use await ctx.a{verb}"
            )

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._around.loop).result()
