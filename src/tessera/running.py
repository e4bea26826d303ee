"""Where an application becomes a worker: its kinds as handlers, its store handles, and what a running job may
ask of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tessera.engine import enqueueing, inspecting
from tessera.handle import Handle
from tessera.kinds import Bound, JobKind, member_draft, store_request
from tessera.model.changes import AddJob
from tessera.model.errors import ConfigError, InvalidArgument
from tessera.model.ids import show_id
from tessera.model.job import Extras, Job, encode_extras
from tessera.model.showing import shown
from tessera.model.states import State
from tessera.store.protocol import Store
from tessera.worker import ChildResult, Handler, Worker, WorkerSettings, run_until_signalled

if TYPE_CHECKING:
    from tessera.app import Tessera


def make_worker(app: Tessera, settings: Mapping[str, Any]) -> Worker:
    """A worker for the application's kinds; by default it serves the queues that these kinds name. Raises
    ConfigError, which names the nearest setting for one that there is not.
    """
    mark = object()
    return Worker(
        handlers={name: handler_of(kind) for name, kind in app.kinds.items()},
        settings=_settings(app, settings),
        open_store=lambda: _declared_store(app, mark),
        open_renewer_store=app._new_async_store,
        services=Services(app),
        on_ended=lambda: app._let_go(mark),
    )


def _settings(app: Tessera, given: Mapping[str, Any]) -> WorkerSettings:
    known = {name: value for name, value in given.items() if name in WorkerSettings.__dataclass_fields__}
    known.setdefault("queues", sorted({kind.options.queue for kind in app.kinds.values()}) or ["default"])
    problems = [_no_setting(name) for name in given if name not in known]
    try:
        settings = WorkerSettings(**known)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return settings


def _no_setting(name: str) -> str:
    there = WorkerSettings.__dataclass_fields__
    # The command line calls it ``lease`` where a worker says ``lease_seconds``.
    near = [one for one in there if one.startswith(f"{name}_")] or get_close_matches(name[:100], there, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(there)}"
    return f"{name}: is no setting of a worker; {hint}"


def handler_of(kind: JobKind[Any]) -> Handler:
    """A kind as the worker sees it."""
    return Handler(
        kind=kind.name,
        function=kind.function,
        signature=kind.signature,
        isolation="process" if kind.isolation == "process" else "auto",
        reference=kind.reference,
    )


async def _declared_store(app: Tessera, worker: object) -> Store:
    """A store handle, after the code's policies were written: limits hold before the first claim. The
    application keeps its store open for the worker from now on.
    """
    app._hold(worker)
    try:
        store = await app._new_async_store()
        try:
            await app._write_declarations(store)
        except BaseException:
            await store.close()
            raise
    except BaseException:
        await app._let_go(worker)
        raise
    return store


class Services:
    """What a running job may ask of its application: see ``worker.context.ContextServices``."""

    def __init__(self, app: Tessera) -> None:
        self._app = app

    async def enqueue_from(
        self,
        job: Job,
        kind_or_function: object,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        options: Mapping[str, object],
    ) -> Handle[Any]:
        """Store a job on behalf of a running one, while its lease is live. Raises StaleLease and what
        ``aenqueue`` raises.
        """
        bound = self._kind(kind_or_function).with_options(**options)  # type: ignore[arg-type]
        request = bound.job(*args, **kwargs)
        return await store_request(self._app, await self._app._astore(), request, held=job)

    def draft_children(self, job: Job, children: Sequence[object]) -> tuple[AddJob, ...]:
        """The changes that store the children of a split; InvalidMember names a bad one."""
        return self._app._run(lambda store: self._drafted(store, job, children))

    async def _drafted(self, store: Store, job: Job, children: Sequence[object]) -> tuple[AddJob, ...]:
        drafts = [
            replace(member_draft(store, index, child, "split"), parent=job.id)
            for index, child in enumerate(children)
        ]
        _, adds = await enqueueing.ready_to_add(store, self._app._policies, drafts)
        return tuple(
            replace(add, job=replace(add.job, ext=encode_extras(Extras(split=job.attempt, child_no=number))))
            for number, add in enumerate(adds)
        )

    async def children(self, job: Job) -> list[ChildResult]:
        """How the children of the last split ended, in the order given."""
        return [self._result(child) for child in await inspecting.children(await self._app._astore(), job)]

    def _kind(self, what: object) -> Bound[Any]:
        if isinstance(what, Bound):
            return what
        for kind in self._app.kinds.values():
            if what in (kind.name, kind.function):
                return kind
        raise InvalidArgument(
            "kind", f"{shown(what)} is no kind of this application; there are: {', '.join(self._app.kinds)}"
        )

    def _result(self, child: Job) -> ChildResult:
        value: object = None
        if child.state is State.COMPLETED and child.result is not None:
            kind = self._app.kinds.get(child.kind)
            value = kind.signature.decode_result(child.result) if kind is not None else None
        return ChildResult(
            id=child.given_id or show_id(child.id),
            kind=child.kind,
            state=child.state,
            value=value,
            reason=child.reason,
        )


def run_worker(app: Tessera, settings: Mapping[str, Any]) -> int:
    """Run a worker in this thread until a signal ends it; its exit status."""
    try:
        return run_until_signalled(make_worker(app, {"ends_process": True, **settings}))
    finally:
        app.close()
