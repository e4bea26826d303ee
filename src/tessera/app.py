"""The application: kinds with their options, and the client that is bound to one store. Making one does no
work.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from tessera.config import find_url
from tessera.connect import Backend, connect
from tessera.engine import enqueueing, policies
from tessera.engine.enqueueing import OnConflict
from tessera.faces import Jobs, Queues
from tessera.handle import Handle
from tessera.kinds import JobKind, Request, joined, member_draft
from tessera.model.errors import DuplicateKind, InvalidArgument
from tessera.model.policy import CounterPolicy, QueuePolicy
from tessera.model.showing import shown
from tessera.options import ONE_JOB_ONLY, JobOptions, Options, event_level, listed, number
from tessera.rules import names
from tessera.rules.signature import Signature
from tessera.store.protocol import Store, run_blocking

if TYPE_CHECKING:
    import asyncio  # imported where it is needed: half of what `import tessera` would cost

    from tessera.worker import Worker

R = TypeVar("R")
_T = TypeVar("_T")


class KindOptions(Options, total=False):
    """What ``@app.job`` takes beside ``Options``."""

    kind: str
    isolation: str


class Tessera:
    """A queue and the kinds of work an application gives it.

    ``url`` names the store: ``sqlite:///work.db`` or ``memory://``; without it ``$TESSERA_URL``, else ``url``
    in ``tessera.toml``, else ``sqlite:///tessera.db``. Nothing is opened before the first call that needs the
    store.

    >>> app = Tessera("memory://")
    >>> @app.job(queue="mail")
    ... def send_email(to: str, subject: str) -> str:
    ...     return f"sent {subject!r} to {to}"
    >>> handle = send_email.enqueue(to="ada@example.org", subject="hi")
    >>> handle.get().state
    <State.AVAILABLE: 'available'>
    """

    def __init__(self, url: str | None = None) -> None:
        self._url = url or None
        self.kinds: dict[str, JobKind[Any]] = {}
        """Kinds by name."""
        self.jobs = Jobs(self)
        self.queues = Queues(self)
        self._queue_policies: dict[str, QueuePolicy] = {}
        self._policies = policies.Policies()
        self._lock = threading.RLock()
        self._backend: Backend | None = None
        self._blocking_store: Store | None = None
        self._async_stores: dict[asyncio.AbstractEventLoop, Store] = {}
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        self._workers: dict[object, asyncio.AbstractEventLoop] = {}
        """Workers that run, each with its event loop."""
        self._closes_after_work = False
        self._queues_are_told = False
        self._warned = False

    @property
    def url(self) -> str:
        """The store's URL. It is looked up when first asked for; another may be set before the store is first
        used.
        """
        if self._url is None:
            self._url = find_url()
        return self._url

    @url.setter
    def url(self, url: str) -> None:
        self._url = url

    # Declaring ----------------------------------------------------------------------------------------------

    @overload
    def job(self, function: Callable[..., Coroutine[Any, Any, R]], /) -> JobKind[R]: ...
    @overload
    def job(self, function: Callable[..., R], /) -> JobKind[R]: ...
    @overload
    def job(self, **options: Unpack[KindOptions]) -> Callable[[Callable[..., Any]], JobKind[Any]]: ...

    def job(  # type: ignore[misc]  # mypy does not match Unpack in an overload with Unpack in its implementation
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[KindOptions]
    ) -> Any:
        """Make a function enqueueable.

        ``async def`` runs in the worker's event loop, ``def`` in a thread, both with ``isolation="process"``
        in a child process. The kind is the function's name unless ``kind=`` gives another. Raises
        InvalidArgument, DuplicateKind.
        """
        if function is not None:
            return self._declare(function, {})
        return lambda declared: self._declare(declared, dict(options))

    def _declare(self, function: Callable[..., Any], options: dict[str, Any]) -> JobKind[Any]:
        name = names.validate_kind(options.pop("kind", None) or getattr(function, "__name__", ""))
        isolation = options.pop("isolation", "auto")
        if not isinstance(isolation, str) or isolation not in ("auto", "process"):
            raise InvalidArgument("isolation", f"is {shown(isolation)}; it is 'auto' or 'process'")
        for option in sorted(ONE_JOB_ONLY & options.keys()):
            raise InvalidArgument(option, "names one job; give it to with_options, not to @app.job")
        kind: JobKind[Any] = JobKind(
            self,
            function,
            name,
            Signature.of(function, is_context=_is_context),
            JobOptions().with_options(options),
            isolation,
        )
        if name in self.kinds:
            raise DuplicateKind(name, self.kinds[name].reference, kind.reference)
        self.kinds[name] = kind
        return kind

    def queue(
        self, name: str, *, weights: Mapping[str, float] | None = None, events: str | None = None
    ) -> None:
        """Say how tenants share a queue (weight of each, 1 for those not named) and how much of it is logged.

        Holds for jobs enqueued from then on: it is stored with the next enqueue of this application, when a
        worker of it starts, or with ``declare``.
        """
        if weights is not None and not isinstance(weights, Mapping):
            raise InvalidArgument("weights", f"is of type {type(weights).__name__}; give a dict")
        for tenant, weight in (weights or {}).items():
            names.validate_tenant(tenant)
            number("weights", weight, 0.001, 1_000)
        level = None if events is None else event_level(events)
        self._queues_are_told = False
        self._queue_policies[names.validate_queue(name)] = QueuePolicy(
            weights=None if weights is None else dict(weights), events=level
        )

    def declare(self) -> None:
        """Store what the code says of queues, counters and kinds. Workers do it when they start; it changes
        nothing twice.
        """
        self._run(self._write_declarations)

    async def adeclare(self) -> None:
        """See ``declare``."""
        await self._write_declarations(await self._astore())

    async def _write_declarations(self, store: Store) -> None:
        counters: dict[str, CounterPolicy] = {}
        for kind in self.kinds.values():
            for name, policy in kind.options.counter_policies().items():
                if counters.setdefault(name, policy) != policy:
                    raise InvalidArgument(
                        name, f"the kind {kind.name!r} declares this counter otherwise than another kind does"
                    )
        await policies.declare(
            store,
            queues=self._queue_policies,
            counters=counters,
            kinds={name: kind.policy() for name, kind in self.kinds.items()},
        )

    async def _tell_queues(self, store: Store) -> None:
        """Store the weights and event levels of the code before the first job that they shall hold for."""
        if self._queue_policies and not self._queues_are_told:
            await policies.declare(store, queues=self._queue_policies)
            await self._policies.reread(store)
            self._queues_are_told = True

    # Enqueueing ---------------------------------------------------------------------------------------------

    def enqueue_many(
        self, jobs: Sequence[Request[R]], *, on_conflict: OnConflict = "error", connection: object = None
    ) -> list[Handle[R]]:
        """Store many jobs in one atomic call: all or none. Raises InvalidMember, which names the bad one.

        ``on_conflict="skip"`` leaves out members whose id or unique key is taken; their handles say
        ``created`` False.
        """
        self._warn_if_in_a_loop("enqueue_many")
        return self._run(lambda store: self._enqueue_many(store, jobs, on_conflict, connection))

    async def aenqueue_many(
        self, jobs: Sequence[Request[R]], *, on_conflict: OnConflict = "error", connection: object = None
    ) -> list[Handle[R]]:
        """See ``enqueue_many``."""
        return await self._enqueue_many(await self._astore(), jobs, on_conflict, connection)

    async def _enqueue_many(
        self, store: Store, jobs: Sequence[Request[R]], on_conflict: OnConflict, connection: object
    ) -> list[Handle[R]]:
        jobs = listed("jobs", jobs)
        drafts = [member_draft(store, index, request, "enqueue_many") for index, request in enumerate(jobs)]
        if connection is None:
            await self._tell_queues(store)
        target = store if connection is None else joined(store, connection)
        stored = await enqueueing.enqueue_many(target, self._policies, drafts, on_conflict)
        return [
            Handle(self, one.id, given_id=one.given_id, created=one.created, kind=request.kind)
            for one, request in zip(stored, jobs, strict=True)
        ]

    # Working ------------------------------------------------------------------------------------------------

    def worker(self, **settings: Any) -> Worker:
        """A worker for this application's kinds, to be used inside it: ``async with
        app.worker(concurrency=20): ...``.

        Settings are those of ``WorkerSettings``; queues not named are those of the application's kinds.
        """
        from tessera.running import make_worker

        return make_worker(self, settings)

    def run_worker(self, **settings: Any) -> int:
        """Run a worker in this thread until a signal ends it; its exit status. Takes over SIGTERM and SIGINT
        meanwhile.
        """
        from tessera.running import run_worker

        return run_worker(self, settings)

    # Stores -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give up the store's connections. The application may be used again: it opens anew.

        A worker of this application that still runs keeps the store until it has ended; then it is given up.
        """
        with self._lock:
            blocking, self._blocking_store = self._blocking_store, None
            self._async_stores = {}  # handles of other event loops: the backend ends their threads
            self._workers = {mark: loop for mark, loop in self._workers.items() if not loop.is_closed()}
            self._closes_after_work = bool(self._workers)
            backend = None
            if not self._workers:
                backend, self._backend = self._backend, None
            self._queues_are_told = False
            self._policies = policies.Policies()  # the store that is opened next may be another
        if blocking is not None:
            run_blocking(blocking.close())
        if backend is not None:
            backend.close()

    async def aclose(self) -> None:
        """See ``close``."""
        import asyncio

        with self._lock:
            mine = self._async_stores.pop(asyncio.get_running_loop(), None)
        if mine is not None:
            await mine.close()
        self.close()

    def __enter__(self) -> Tessera:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Tessera:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _hold(self, worker: object) -> None:
        """Keep the store open for a worker of the running event loop, whoever calls ``close``, until
        ``_let_go``.
        """
        import asyncio

        with self._lock:
            self._workers[worker] = asyncio.get_running_loop()

    async def _let_go(self, worker: object) -> None:
        with self._lock:
            self._workers.pop(worker, None)
            was_closed = self._closes_after_work and not self._workers
        if was_closed:
            await self.aclose()

    def _connected(self) -> Backend:
        with self._lock:
            if self._backend is None:
                self._backend = connect(self.url)
            return self._backend

    def _run(self, operation: Callable[[Store], Coroutine[Any, Any, _T]]) -> _T:
        """Run an operation of the engine in the blocking colour."""
        return run_blocking(operation(self._store()))

    def _store(self) -> Store:
        """The blocking store handle, open."""
        store = self._blocking_store
        if store is not None:
            return store
        with self._lock:
            if self._blocking_store is None:
                store = self._connected().handle(blocking=True)
                run_blocking(store.open())
                self._blocking_store = store
                self._closes_after_work = False
            return self._blocking_store

    async def _astore(self) -> Store:
        """This event loop's store handle, open."""
        import asyncio

        loop = asyncio.get_running_loop()
        store = self._async_stores.get(loop)
        if store is not None:
            return store
        async with self._opening.setdefault(loop, asyncio.Lock()):
            if loop not in self._async_stores:
                self._async_stores = {
                    of: kept for of, kept in self._async_stores.items() if not of.is_closed()
                }
                self._async_stores[loop] = await self._new_async_store()
                # What runs in a worker's loop may be a job of it: that is no use of the application again.
                if loop not in self._workers.values():
                    self._closes_after_work = False
            self._opening.pop(loop, None)
        return self._async_stores[loop]

    async def _new_async_store(self) -> Store:
        """A handle of its own, open: for a worker's claims, for its renewer."""
        store = self._connected().handle(blocking=False)
        await store.open()
        return store

    def _warn_if_in_a_loop(self, verb: str) -> None:
        loops = sys.modules.get("asyncio.events")
        if self._warned or loops is None or loops._get_running_loop() is None:
            return
        self._warned = True
        warnings.warn(
            f"{verb}() blocks the event loop it was called in; await a{verb}() there",
            RuntimeWarning,
            stacklevel=3,
        )


def _is_context(annotation: object) -> bool:
    """Whether a parameter takes the context. Told by name: a producer need not load the worker for it."""
    return isinstance(annotation, type) and (annotation.__module__, annotation.__qualname__) == (
        "tessera.worker.context",
        "Context",
    )
