"""Running one attempt: a pipeline of small steps that ends in an outcome. It writes nothing; ``completer``
does.

1  find the handler              none here: release
2  refuse what came too late     expired while it waited in the buffer
3  bring the payload up to date  upcasts from the schema version it was stored under
4  start the clocks              timeout of the attempt, deadline of the job
5  make the context              if the handler takes one
6  decode the arguments          a misfit is the end of the job, not of an attempt
7  run                           in the event loop, a thread, or a child process
8  encode the result             or read the exception as an outcome
9  stop the clocks
10 respect a request to stop     which may change the outcome, or forbid writing any
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import MutableMapping
from typing import Any, Final, cast

from msgspec.structs import replace

from tessera import seam
from tessera.model.errors import UndecodablePayload
from tessera.model.job import Job, terms_of
from tessera.model.outcomes import Expired, Outcome, Released
from tessera.rules.payload import upcast_payload
from tessera.worker import verdict
from tessera.worker.attempt import Attempt, Stop
from tessera.worker.calls import LocalCalls, Surroundings
from tessera.worker.context import Context
from tessera.worker.handlers import Handler, Handlers
from tessera.worker.isolation import Children
from tessera.worker.settings import WorkerSettings
from tessera.worker.threads import Threads
from tessera.worker.wheel import Timer, Wheel

_UNKNOWN_KIND_MS: Final = 15_000
"""How long a job of a kind that nobody here knows is let go for: other workers may know it."""


class Executor:
    """Runs attempts. One a worker."""

    def __init__(
        self,
        handlers: Handlers,
        settings: WorkerSettings,
        around: Surroundings,
        data: MutableMapping[object, object],
    ) -> None:
        self._handlers = handlers
        self._around = around
        self._data = data
        self._wheel = Wheel(around.loop)
        self.threads = Threads(around.loop)
        self.children = Children(settings, self._calls)

    async def execute(self, attempt: Attempt) -> Outcome | None:
        """The outcome of the attempt; None = nothing of it may be written."""
        job = attempt.job
        handler = self._handlers.get(job.kind)
        if handler is None:
            return Released(_UNKNOWN_KIND_MS, f"no handler for the kind {job.kind!r}")
        if job.expires_at and attempt.started_at >= attempt.hold.local(job.expires_at):
            return Expired()
        terms = terms_of(job)
        if terms.schema_version != handler.schema_version:
            try:
                job = _brought_up_to_date(job, terms.schema_version, handler)
            except UndecodablePayload as error:
                return verdict.of_payload(error)
        clocks = self._start_clocks(attempt, terms.timeout_ms) if terms.timeout_ms or job.deadline else ()
        if attempt.stop is None:
            if handler.runs == "loop":
                outcome = await self._run_in_loop(attempt, handler, job)
            elif handler.runs == "thread":
                outcome = await self.threads.run(lambda: self._run_in_thread(attempt, handler, job))
            else:
                outcome = await self.children.run(
                    attempt, handler, job, self._deadline_ms(attempt, terms.timeout_ms)
                )
        else:
            outcome = None
        for clock in clocks:
            self._wheel.cancel(clock)
        if attempt.stop is None:
            return outcome
        return verdict.when_stopped(attempt.stop, outcome, timeout_seconds=terms.timeout_ms / 1_000)

    async def close(self) -> None:
        """End threads that rest, and all child processes."""
        self._wheel.close()
        self.threads.close()
        await self.children.close()

    def _start_clocks(self, attempt: Attempt, timeout_ms: int) -> tuple[Timer, ...]:
        clocks: list[Timer] = []
        if timeout_ms:
            at = attempt.started_at + timeout_ms / 1_000
            clocks.append(self._wheel.at(at, lambda: attempt.ask_to_stop(Stop.TIMEOUT)))
        if attempt.job.deadline:
            at = attempt.hold.local(attempt.job.deadline)
            if at <= attempt.started_at:
                attempt.ask_to_stop(Stop.DEADLINE)
            else:
                clocks.append(self._wheel.at(at, lambda: attempt.ask_to_stop(Stop.DEADLINE)))
        return tuple(clocks)

    def _context(self, attempt: Attempt, job: Job) -> Context:
        deadline_ms = self._deadline_ms(attempt, terms_of(job).timeout_ms)
        return Context(
            job, attempt.report(), self._calls(attempt), deadline_ms=deadline_ms, worker_data=self._data
        )

    def _calls(self, attempt: Attempt) -> LocalCalls:
        return LocalCalls(self._around, attempt)

    def _deadline_ms(self, attempt: Attempt, timeout_ms: int) -> int:
        """When the attempt will be asked to stop, by this machine's clock; 0 = never."""
        ends = []
        if timeout_ms:
            ends.append(attempt.started_at + timeout_ms / 1_000)
        if attempt.job.deadline:
            ends.append(attempt.hold.local(attempt.job.deadline))
        return seam.now_ms() + round((min(ends) - seam.monotonic()) * 1_000) if ends else 0

    async def _run_in_loop(self, attempt: Attempt, handler: Handler, job: Job) -> Outcome | None:
        signature = handler.signature
        context = self._context(attempt, job) if signature.context_name is not None else None
        try:
            args, kwargs = signature.decode(job.payload, context)
        except UndecodablePayload as error:
            return verdict.of_payload(error)
        attempt.in_handler = True
        try:
            # Handler.runs has seen that the function is a coroutine function.
            value = await cast(Any, handler.function)(*args, **kwargs)
        except asyncio.CancelledError as error:
            return None if attempt.stop is not None else verdict.of_exception(error)
        except BaseException as error:  # noqa: BLE001  whatever a handler raises is an outcome
            return verdict.of_exception(error)
        finally:
            attempt.in_handler = False
        return verdict.of_result(signature, value)

    def _run_in_thread(self, attempt: Attempt, handler: Handler, job: Job) -> Outcome:
        signature = handler.signature
        attempt.thread = threading.get_ident()
        try:
            context = self._context(attempt, job) if signature.context_name is not None else None
            try:
                args, kwargs = signature.decode(job.payload, context)
            except UndecodablePayload as error:
                return verdict.of_payload(error)
            return verdict.of_result(signature, handler.function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  whatever a handler raises is an outcome
            return verdict.of_exception(error)
        finally:
            attempt.thread = 0


def _brought_up_to_date(job: Job, stored_version: int, handler: Handler) -> Job:
    payload = upcast_payload(job.payload, stored_version, handler.schema_version, handler.upcasts)
    return replace(job, payload=payload)
