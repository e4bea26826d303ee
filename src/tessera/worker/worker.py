"""A worker's life: open, claim and run until stopped, let what runs end, write everything, close.

A stop is graceful: nothing is claimed any more, what waits in the buffer is given back uncharged, and
handlers may end until the grace is over; leases are kept all the while and a cancel still arrives. Then those
that are left are asked to stop and released uncharged. Told again, it asks them at once. A thread cannot be
stopped from outside: one that goes on is named in the log, and its job's lease is left to lapse, unless the
process ends now (``WorkerSettings.ends_process``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from tessera import seam
from tessera._version import __version__
from tessera.engine.claiming import Claimer
from tessera.engine.duties import Sweeper
from tessera.engine.policies import Policies
from tessera.model.job import Job
from tessera.model.worker import WorkerInfo
from tessera.store.protocol import Store
from tessera.worker.attempt import Stop
from tessera.worker.calls import Surroundings
from tessera.worker.completer import Completer
from tessera.worker.context import ContextServices
from tessera.worker.executor import Executor
from tessera.worker.fetcher import Fetcher
from tessera.worker.handlers import Handler
from tessera.worker.leases import Hold, Leases
from tessera.worker.renewer import Renewer
from tessera.worker.settings import WorkerSettings
from tessera.worker.side import OpenStore, Side, for_ever
from tessera.worker.slots import Slots, who
from tessera.worker.stats import WorkerStats
from tessera.worker.upkeep import Upkeep
from tessera.worker.watchdog import Watchdog

logger = logging.getLogger("tessera.worker")

_LAST_CLAIM_SECONDS: Final = 5.0
"""How long a stop waits for a claim that is under way: its jobs can be given back only once they are known.
"""


class Worker:
    """Runs jobs of some queues in this process.

    Enter it to begin, leave it to stop; ``run`` waits until somebody calls ``stop``. Everything is to be
    called in the event loop that it was entered in, but ``stop`` and ``stop_now``, which any thread may call.
    """

    def __init__(
        self,
        *,
        handlers: Mapping[str, Handler],
        settings: WorkerSettings,
        open_store: OpenStore,
        open_renewer_store: OpenStore,
        services: ContextServices,
        data: Mapping[object, object] | None = None,
        on_ended: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``on_ended`` is awaited once the stores that it opened are closed."""
        self.settings = settings
        self.incarnation = seam.new_incarnation()
        """One life of one worker: what ``Job.holder`` says."""
        self.stats = WorkerStats()
        self.data: dict[object, object] = dict(data or {})
        """Objects that every attempt sees in ``ctx.data``."""
        self._handlers = dict(handlers)
        self._open_store = open_store
        self._open_renewer_store = open_renewer_store
        self._services = services
        self._on_ended = on_ended
        self._parts: _Parts | None = None
        self._stop_early: float | None = None
        """The grace of a stop that was asked for before there was anything to stop."""
        self._state = "new"

    @property
    def healthy(self) -> bool:
        """Whether claims succeed, as far as the watchdog can tell."""
        return self._parts is not None and self._parts.watchdog.healthy

    @property
    def state(self) -> str:
        """new, running, draining or stopped."""
        return self._state

    @property
    def in_flight(self) -> int:
        """Handlers that run."""
        return self._parts.slots.running if self._parts is not None else 0

    @property
    def buffered(self) -> int:
        """Jobs claimed and not begun."""
        return self._parts.slots.buffered if self._parts is not None else 0

    async def __aenter__(self) -> Worker:
        if self._state != "new":
            raise RuntimeError("a worker lives once; make another")
        # Known before the side loop begins: its first act is to write the record that tells of it.
        self._parts = parts = _Parts(self, await self._open_store())
        try:
            await parts.side.start()
        except BaseException:
            self._parts = None
            await parts.store.close()
            await self._tell_ended()
            raise
        self._state = "running"
        parts.begin()
        if self._stop_early is not None:
            parts.ask_to_stop(self._stop_early)
        logger.info(
            "worker %s takes jobs of %s",
            self.settings.name or self.incarnation,
            ", ".join(self.settings.weights),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        await self.run()

    async def run(self) -> None:
        """Wait until the worker was stopped and everything is written. Raises RuntimeError if it was not
        entered."""
        if self._parts is None:
            raise RuntimeError("enter the worker first: async with worker")
        await asyncio.shield(self._parts.life)

    def stop(self, grace: float | None = None) -> None:
        """Stop gracefully; ``grace`` in seconds replaces that of the settings. Returns at once: ``run`` waits
        for the end. A worker that is told before it has begun stops as soon as it has."""
        seconds = self.settings.grace_seconds if grace is None else grace
        if self._parts is None:
            self._stop_early = seconds if self._stop_early is None else min(self._stop_early, seconds)
        else:
            self._parts.tell(self._parts.ask_to_stop, seconds)

    def stop_now(self) -> None:
        """Stop without waiting for handlers to end by themselves."""
        self.stop(0.0)

    async def _live(self, parts: _Parts) -> None:
        await parts.stop_asked.wait()
        self._state = "draining"
        parts.side.soon(parts.tell_state)
        try:
            await self._drain(parts)
        finally:
            try:
                await parts.close()
            finally:
                self._state = "stopped"
                await self._tell_ended()
        logger.info("worker %s has ended", self.settings.name or self.incarnation)

    async def _tell_ended(self) -> None:
        if self._on_ended is not None:
            await self._on_ended()

    async def _drain(self, parts: _Parts) -> None:
        parts.slots.close()
        parts.fetcher.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_CLAIM_SECONDS):
                await asyncio.shield(parts.fetching)
        await parts.until_emptied_or_late()
        for attempt in parts.slots.attempts:
            attempt.ask_to_stop(Stop.SHUTDOWN)
        with suppress(TimeoutError):
            # A process that does not stop is killed when the grace of a cancel is over: leave it a moment to
            # go.
            async with asyncio.timeout(self.settings.cancel_grace_seconds + 0.5):
                await parts.slots.emptied()
        self._give_up_on_the_rest(parts)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.lease_seconds):
                await parts.completer.written()

    def _give_up_on_the_rest(self, parts: _Parts) -> None:
        for attempt in parts.slots.abandon(release=self.settings.ends_process):
            logger.error(
                "a handler did not stop; %s",
                "it ends with this process, and its job is released"
                if self.settings.ends_process
                else "its job's lease is left to lapse, which counts as a crash",
                extra=who(attempt),
            )

    def _info(self) -> WorkerInfo:
        parts = self._parts
        state = {"running": "running" if self.healthy else "unhealthy", "draining": "draining"}
        return WorkerInfo(
            incarnation=self.incarnation,
            name=self.settings.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=tuple(self.settings.weights),
            kinds=tuple(sorted(self._handlers)),
            concurrency=self.settings.concurrency,
            in_flight=self.in_flight,
            buffered=self.buffered,
            started_at=parts.started_at if parts is not None else 0,
            seen_at=seam.now_ms(),
            version=__version__,
            state=state.get(self._state, "running"),
        )


class _Parts:
    """What a worker consists of while it lives, put together in the order in which the pieces need each
    other."""

    def __init__(self, worker: Worker, store: Store) -> None:
        settings, holder = worker.settings, worker.incarnation
        queues = tuple(settings.weights)
        self.worker = worker
        self.store = store
        self.loop = asyncio.get_running_loop()
        self.started_at = seam.now_ms()
        self.stop_asked = asyncio.Event()
        self._late_at = float("inf")
        self._sooner = asyncio.Event()
        self.leases = Leases(settings.lease_seconds)
        self.renewer = Renewer(self.leases, holder=holder, on_lost=self._on_lost, on_asked=self._on_asked)
        self.upkeep = Upkeep(
            Sweeper(holder, queues, lease_seconds=settings.lease_seconds),
            worker._info,
            sweep_seconds=settings.sweep_seconds,
            lease_seconds=settings.lease_seconds,
            on_promoted=lambda: self.tell(self.fetcher.poke),
        )
        self.side = Side(
            worker._open_renewer_store,
            [("renewer", self.renewer.run), ("upkeep", self.upkeep.run), ("record", self.upkeep.tell)],
            self.upkeep.leave,
        )
        around = Surroundings(self.loop, worker._services, self.renewer, self.side)
        self.executor = Executor(worker._handlers, settings, around, worker.data)
        self.completer = Completer(store, self.leases, worker.stats, self._on_written)
        self.slots = Slots(
            worker._handlers,
            self.executor,
            self.completer,
            self.leases,
            worker.stats,
            concurrency=settings.concurrency,
            on_room=lambda: self.fetcher.room_made(),
        )
        claimer = Claimer(
            store,
            Policies(),
            holder=holder,
            lease_ms=round(settings.lease_seconds * 1_000),
            kinds=frozenset(worker._handlers),
        )
        self.fetcher = Fetcher(
            store,
            claimer,
            self.slots,
            self.completer,
            self.leases,
            worker.stats,
            settings,
            holder=holder,
            on_next_due=lambda seconds: self.side.soon(self.upkeep.due_in, seconds),
        )
        self.watchdog = Watchdog(
            settings,
            claims_alive_at=lambda: self.fetcher.alive_at,
            attempts=lambda: self.slots.attempts,
            on_health=lambda _: self.side.soon(self.tell_state),
        )

    def begin(self) -> None:
        """Start every task."""
        self.fetching = self._spawn("fetcher", self.fetcher.run)
        self._tasks = [
            self.fetching,
            self._spawn("listener", self.fetcher.listen),
            self._spawn("completer", self.completer.run),
            self._spawn("guard", self._guard),
        ]
        self.watchdog.start()
        self.life = seam.spawn(self.worker._live(self), "tessera-worker")

    def tell(self, action: Any, *args: object) -> None:  # noqa: ANN401  any call of the worker's loop
        """Call something in the worker's loop. From any thread; nothing happens once the loop is closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(action, *args)

    def ask_to_stop(self, grace_seconds: float) -> None:
        """Stop when the grace is over; told again, at the earlier of the two."""
        self._late_at = min(self._late_at, seam.monotonic() + grace_seconds)
        self.stop_asked.set()
        self._sooner.set()

    async def until_emptied_or_late(self) -> None:
        """Wait until no handler runs, or until the grace is over."""
        emptied = seam.spawn(self.slots.emptied(), "tessera-emptied")
        try:
            while not emptied.done() and (rest := self._late_at - seam.monotonic()) > 0:
                self._sooner.clear()
                sooner = seam.spawn(self._sooner.wait(), "tessera-sooner")
                await asyncio.wait((emptied, sooner), timeout=rest, return_when=asyncio.FIRST_COMPLETED)
                sooner.cancel()
        finally:
            emptied.cancel()

    def tell_state(self) -> None:
        """Write the worker's record now. Called in the side loop."""
        self._telling = seam.spawn(self._tell_state(), "tessera-record")

    async def close(self) -> None:
        """End everything, also after an error."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.watchdog.close()
        await self.executor.close()
        await self.side.close()
        await self.store.close()

    async def _tell_state(self) -> None:
        if self.renewer.store is not None:
            await self.upkeep.write_record(self.renewer.store)

    async def _guard(self) -> None:
        """Look after leases that end and buffers that stand still."""
        every = min(0.5, self.leases.margin / 3)
        while True:
            self.slots.check(seam.monotonic())
            await seam.sleep(every)

    def _spawn(self, name: str, work: Any) -> asyncio.Task[None]:  # noqa: ANN401  a coroutine function
        return seam.spawn(for_ever(name, work), f"tessera-{name}")

    def _on_written(self) -> None:
        self.slots.fill()
        self.fetcher.room_made()

    def _on_lost(self, holds: list[Hold]) -> None:
        self.tell(self.slots.lost, holds)

    def _on_asked(self, jobs: list[Job]) -> None:
        self.tell(self.slots.asked, jobs)
