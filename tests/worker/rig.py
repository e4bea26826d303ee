"""A worker over a memory store, with short times, and what is needed to wait for things by name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from tessera import seam
from tessera.model.changes import AddJob, Answer, EditJob, Edits, Group, InState
from tessera.model.ids import JobId
from tessera.model.job import Job, Terms, encode_terms, extras_of
from tessera.model.queries import Claimed, ClaimRequest, Due
from tessera.model.states import State
from tessera.rules.payload import Upcasts
from tessera.store.memory import MemoryStore, World
from tessera.store.protocol import Store
from tessera.worker.context import ChildResult
from tessera.worker.handlers import Handler, signature_of
from tessera.worker.settings import WorkerSettings
from tessera.worker.worker import Worker

PATIENCE = 10.0
"""Seconds after which a signal that did not come is a failure."""

QUICK: dict[str, Any] = {
    "lease_seconds": 3,
    "sweep_seconds": 0.05,
    "cancel_grace_seconds": 0.5,
    "grace_seconds": 5,
}


class FaultyStore(MemoryStore):
    """A memory store whose verbs can be made to fail. Each hook wraps the real call; None = just make it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.on_claim: Callable[[Callable[[], Awaitable[Claimed]]], Awaitable[Claimed]] | None = None
        self.on_commit: (
            Callable[[Sequence[Group], Callable[[], Awaitable[list[Answer]]]], Awaitable[list[Answer]]] | None
        ) = None
        self.on_due: Callable[[], None] | None = None

    async def claim(self, request: ClaimRequest) -> Claimed:
        if self.on_claim is None:
            return await super().claim(request)
        return await self.on_claim(lambda: MemoryStore.claim(self, request))

    async def commit(self, groups: Sequence[Group], request_id: str = "") -> list[Answer]:
        if self.on_commit is None:
            return await super().commit(groups, request_id)
        return await self.on_commit(groups, lambda: MemoryStore.commit(self, groups, request_id))

    async def due(self, limit: int, queues: Sequence[str] | None = None) -> Due:
        if self.on_due is not None:
            self.on_due()
        return await super().due(limit, queues)


class Services:
    """The application, as far as a context knows it. Children are given as (kind, payload) pairs."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.enqueued: list[tuple[Job, object, tuple[object, ...], dict[str, object], dict[str, object]]] = []

    async def enqueue_from(
        self,
        job: Job,
        kind_or_function: object,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        options: Mapping[str, object],
    ) -> object:
        self.enqueued.append((job, kind_or_function, tuple(args), dict(kwargs), dict(options)))
        return Enqueued(f"child-{len(self.enqueued)}")

    def draft_children(self, job: Job, children: Sequence[object]) -> tuple[AddJob, ...]:
        pairs = cast("Sequence[tuple[str, dict[str, Any]]]", children)
        return tuple(self._rig.add(kind, {"parent": job.id}, **payload) for kind, payload in pairs)

    async def children(self, job: Job) -> list[ChildResult]:
        jobs = sorted((j for j in self._rig.jobs() if j.parent == job.id), key=lambda j: j.id)
        return [
            ChildResult(
                id=j.id.hex(),
                kind=j.kind,
                state=j.state,
                value=msgspec.json.decode(j.result) if j.result is not None else None,
                reason=j.reason,
            )
            for j in jobs
        ]


class Enqueued(msgspec.Struct, frozen=True):
    id: str


class Rig:
    """One world of rows, its handlers, and the workers over it."""

    def __init__(self) -> None:
        self.world = World(bytes(range(16)), seam.now_ms)
        self.store = FaultyStore(self.world)
        """The handle of the tests themselves."""
        self.worker_store = FaultyStore(self.world)
        self.renewer_store = FaultyStore(self.world)
        self.handlers: dict[str, Handler] = {}
        self.services = Services(self)

    def kind(
        self,
        function: Callable[..., object],
        *,
        kind: str = "",
        isolation: Any = "auto",
        schema_version: int = 1,
        upcasts: Upcasts | None = None,
    ) -> str:
        """Let workers made from now on serve this function; its kind."""
        name = kind or getattr(function, "__name__", "")
        reference = f"{function.__module__}:{getattr(function, '__qualname__', name)}"
        self.handlers[name] = Handler(
            kind=name,
            function=function,
            signature=signature_of(function),
            isolation=isolation,
            reference=reference,
            schema_version=schema_version,
            upcasts=upcasts or {},
        )
        return name

    def add(self, kind: str, options: Mapping[str, Any] | None = None, **payload: Any) -> AddJob:
        """The change that stores a job. ``terms``, ``due``, ``expires`` and ``deadline`` are options, others
        fields of the row."""
        fields = dict(options or {})
        change: dict[str, Any] = {
            name: fields.pop(name) for name in ("due", "expires", "deadline") if name in fields
        }
        terms = fields.pop("terms", None)
        if terms is not None:
            fields["body"] = encode_terms(Terms(**{"backoff_base_ms": 60_000, **terms}))
        data = fields.pop("payload", None)
        return AddJob(
            Job(
                **{
                    "id": seam.new_id(),
                    "kind": kind,
                    "queue": "default",
                    "watched": True,
                    "payload": msgspec.json.encode(payload) if data is None else data,
                    **fields,
                }
            ),
            **change,
        )

    async def enqueue(self, kind: str, options: Mapping[str, Any] | None = None, **payload: Any) -> JobId:
        """Store one job; its key."""
        return (await self.enqueue_many(1, kind, options, **payload))[0]

    async def enqueue_many(
        self, count: int, kind: str, options: Mapping[str, Any] | None = None, **payload: Any
    ) -> list[JobId]:
        """Store several in one commit."""
        adds = [self.add(kind, options, **payload) for _ in range(count)]
        await self.store.commit([Group(changes=tuple(adds))])
        return [add.job.id for add in adds]

    async def cancel(self, job: JobId) -> None:
        """Ask for a running job to be cancelled, as an operator's door does."""
        await self.store.commit(
            [Group((InState(job, (State.RUNNING,)),), (EditJob(job, Edits(cancel_requested=True)),))]
        )

    @asynccontextmanager
    async def working(self, **settings: Any) -> AsyncIterator[Worker]:
        """A worker at work; stopped at the end."""
        worker = self.worker(**settings)
        async with worker:
            try:
                yield worker
            except BaseException:
                worker.stop_now()  # else a failed check would wait for handlers that nobody lets go
                raise

    def worker(self, **settings: Any) -> Worker:
        """A worker, not yet entered."""

        async def opened(store: FaultyStore) -> Store:
            await store.open()
            return store

        return Worker(
            handlers=self.handlers,
            settings=WorkerSettings(**{**QUICK, **settings}),
            open_store=lambda: opened(self.worker_store),
            open_renewer_store=lambda: opened(self.renewer_store),
            services=self.services,
        )

    # What is there ------------------------------------------------------------------------------------------

    def job(self, job: JobId) -> Job:
        """The row."""
        with self.world.lock:
            return self.world.jobs.get(job) or self.world.archive[job]

    def jobs(self) -> list[Job]:
        """All rows."""
        with self.world.lock:
            return [*self.world.jobs.values(), *self.world.archive.values()]

    def log(self, job: JobId) -> tuple[str, ...]:
        """The lines that the job's row keeps."""
        return extras_of(self.job(job)).log

    def result(self, job: JobId) -> Any:
        """The decoded result."""
        result = self.job(job).result
        return None if result is None else msgspec.json.decode(result)

    # Waiting ------------------------------------------------------------------------------------------------

    async def until(self, holds: Callable[[], object], what: str = "it") -> None:
        """Wait until something holds; the store's bell says when to look again."""
        async with seconds(PATIENCE, what):
            while not holds():
                await self.world.bell.wait(0.01)

    async def ends(self, job: JobId, state: State = State.COMPLETED) -> Job:
        """Wait until the job is in a state that says it ran, and check that it is this one."""
        await self.until(
            lambda: (
                self.job(job).state not in (State.AVAILABLE, State.RUNNING, State.BLOCKED) or self.gone(job)
            ),
            f"the end of {job.hex()}",
        )
        row = self.job(job)
        assert row.state is state, f"{row.state}: {row.reason} {row.ends}"
        return row

    def gone(self, job: JobId) -> bool:
        """Whether the row was removed."""
        with self.world.lock:
            return job not in self.world.jobs and job not in self.world.archive


class seconds:  # noqa: N801  reads as what it is
    """``async with seconds(5, "the handler to start")``: a time limit that says what did not happen."""

    def __init__(self, limit: float, what: str) -> None:
        self._timeout = asyncio.timeout(limit)
        self._what = what

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        try:
            await self._timeout.__aexit__(*error)
        except TimeoutError:
            pytest.fail(f"waited in vain for {self._what}")


async def signalled(event: asyncio.Event, what: str = "the signal") -> None:
    """Wait for an event, within reason."""
    async with seconds(PATIENCE, what):
        await event.wait()


async def logged(caplog: pytest.LogCaptureFixture, text: str, rig: Rig) -> logging.LogRecord:
    """Wait for a line of the worker's log that holds this text."""
    found: list[logging.LogRecord] = []

    def look() -> bool:
        found.extend(record for record in list(caplog.records) if text in record.getMessage())
        return bool(found)

    await rig.until(look, f"a log line with {text!r}")
    return found[0]
