"""A kind of job: a function that became enqueueable, with its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

import msgspec

from tessera.engine import enqueueing
from tessera.engine.lookup import candidate_keys
from tessera.handle import Handle
from tessera.model.changes import After
from tessera.model.errors import InvalidArgument, InvalidMember, TesseraError, Unsupported
from tessera.model.job import Job
from tessera.model.policy import KindPolicy
from tessera.model.showing import shown
from tessera.options import Dependency, JobOptions, Options
from tessera.rules import uniqueness
from tessera.rules.drafts import Draft, Wait
from tessera.rules.payload import check_payload_size
from tessera.rules.signature import Signature
from tessera.store.protocol import JoinsTransaction, Store

if TYPE_CHECKING:
    from tessera.app import Tessera

R = TypeVar("R")


class Request(Generic[R]):
    """A job that was built and not yet stored: its arguments are validated. Give a list of them to
    ``app.enqueue_many``.
    """

    def __init__(self, kind: JobKind[R], payload: bytes, options: JobOptions) -> None:
        self.kind = kind
        self.payload = payload
        self.options = options

    def draft(self, store: Store) -> Draft:
        """The stored form; ids in ``depends_on`` are resolved for this store."""
        options = self.options
        counted = bool(options.counters)
        arguments: Mapping[str, Any] = msgspec.json.decode(self.payload) if counted else {}
        unique = options.unique
        return Draft(
            kind=self.kind.name,
            payload=self.payload,
            queue=options.queue,
            priority=options.priority,
            due=options.due,
            given_id=options.given_id,
            tags=options.tags,
            tenant=options.tenant,
            cost=options.cost,
            unique_key=""
            if unique is None
            else uniqueness.slot_key(
                self.kind.name,
                self.payload,
                unique.by,
                across_kinds=unique.across_kinds,
                while_dead=unique.while_dead,
            ),
            needs=options.needs(arguments) if counted else (),
            waits=tuple(wait for dependency in options.depends_on for wait in _waits(store, dependency)),
            body=options.body,
            max_attempts=options.retry.max_attempts,
            max_crashes=options.max_crashes,
            keep=options.keep,
            expires_ms=options.expires_ms,
            deadline=options.deadline,
            pending=options.pending,
            events=options.events,
        )


class Bound(Generic[R]):
    """A kind with options laid over its own. ``job.with_options(...)`` makes one; it is used once or kept."""

    def __init__(self, kind: JobKind[R], options: JobOptions) -> None:
        self._kind = kind
        self._options = options

    def with_options(self, **options: Unpack[Options]) -> Bound[R]:
        """More options. Raises InvalidArgument, naming the option."""
        return Bound(self._kind, self._options.with_options(options))

    def job(self, *args: Any, **kwargs: Any) -> Request[R]:
        """Build a job without storing it. Raises InvalidArgument, naming the argument."""
        payload = self._kind.signature.bind(args, kwargs)
        check_payload_size(payload)
        return Request(self._kind, payload, self._options)

    def enqueue(self, *args: Any, **kwargs: Any) -> Handle[R]:
        """Store a job with these arguments. Raises InvalidArgument, IdConflict, StoreError."""
        request = self.job(*args, **kwargs)
        app = self._kind.app
        app._warn_if_in_a_loop("enqueue")
        return app._run(lambda store: store_request(app, store, request))

    async def aenqueue(self, *args: Any, **kwargs: Any) -> Handle[R]:
        """See ``enqueue``."""
        request = self.job(*args, **kwargs)
        return await store_request(self._kind.app, await self._kind.app._astore(), request)


class JobKind(Bound[R]):
    """A function that can be enqueued. Called directly it is the plain function.

    >>> from tessera import Tessera
    >>> app = Tessera("memory://")
    >>> @app.job(queue="mail")
    ... def greet(name: str) -> str:
    ...     return f"Hello {name}"
    >>> greet("Ada")
    'Hello Ada'
    >>> greet.name
    'greet'
    """

    def __init__(
        self,
        app: Tessera,
        function: Callable[..., Any],
        name: str,
        signature: Signature,
        options: JobOptions,
        isolation: str,
    ) -> None:
        super().__init__(self, options)
        self.app = app
        self.function = function
        self.name = name
        self.signature = signature
        self.options = options
        self.isolation = isolation
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  what the function returns
        """The function itself, run here and now, as if it were no job."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"JobKind({self.name!r})"

    @property
    def reference(self) -> str:
        """``module:qualified.name``: how a child process finds the function."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    def policy(self) -> KindPolicy:
        """What producers without this code take as defaults."""
        options = self.options
        keep, unique = options.keep, options.unique
        return KindPolicy(
            queue=options.queue,
            body=options.body,
            max_attempts=options.retry.max_attempts,
            max_crashes=options.max_crashes,
            priority=options.priority,
            keep=(keep.completed, keep.dead, keep.cancelled),
            needs=tuple((counter.name, counter.by, counter.units) for counter in options.counters),
            unique=None if unique is None else (tuple(unique.by), unique.across_kinds, unique.while_dead),
            delay_ms=options.due.ms if isinstance(options.due, After) else 0,
            deadline=options.deadline,
            expires_ms=options.expires_ms,
            tags=options.tags,
            tenant=options.tenant,
            cost=options.cost,
            pending=options.pending,
            events=options.events,
        )


async def store_request(
    app: Tessera, store: Store, request: Request[R], *, held: Job | None = None
) -> Handle[R]:
    """Store a request; with ``held`` only while the lease of that running job is live."""
    connection = request.options.connection
    draft = request.draft(store)
    if connection is None:
        await app._tell_queues(store)
    target = store if connection is None else joined(store, connection)
    stored = await enqueueing.enqueue(target, app._policies, draft, held=held)
    return Handle(app, stored.id, given_id=stored.given_id, created=stored.created, kind=request.kind)


def member_draft(store: Store, index: int, request: object, call: str) -> Draft:
    """The stored form of one member of a call that stores many. Raises InvalidMember, which names it."""
    problem: TesseraError
    if not isinstance(request, Request):
        kind = type(request).__name__
        problem = InvalidArgument("job", f"is of type {kind}; build it with some_kind.job(...)")
    elif request.options.connection is not None:
        where = f"cannot be that of one member: {call} is one transaction for all"
        problem = InvalidArgument("connection", where)
    else:
        try:
            return request.draft(store)
        except TesseraError as error:
            problem = error
    raise InvalidMember(index, problem)


def joined(store: Store, connection: object) -> Store:
    """The store inside the caller's transaction. Raises Unsupported, NotInTransaction, ForeignStore."""
    if not isinstance(store, JoinsTransaction):
        raise Unsupported(store.name, "enqueueing inside the application's own transaction")
    return store.joined(connection)


def _waits(store: Store, dependency: Dependency) -> list[Wait]:
    job = dependency.job
    if isinstance(job, Handle):
        return [Wait(job.key, dependency.on, dependency.otherwise)]
    if isinstance(job, str | bytes) and job:
        first, *others = candidate_keys(store, job)
        return [Wait(first, dependency.on, dependency.otherwise, *others)]
    raise InvalidArgument("depends_on", f"holds {shown(job)}; give handles, ids or Dependency(...) values")
