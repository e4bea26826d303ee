"""The operator's face of an application: ``app.jobs`` and ``app.queues``. Each pair is one operation in two
colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tessera.engine import inspecting, lookup, operating, policies, redriving
from tessera.engine.inspecting import Explanation, QueueInfo
from tessera.engine.redriving import Redriven
from tessera.handle import Handle
from tessera.model.changes import After, Time
from tessera.model.control import Seconds, to_ms
from tessera.model.errors import InvalidArgument
from tessera.model.queries import PAGE_LIMIT, Filter, Page
from tessera.model.states import State
from tessera.model.views import JobView, view
from tessera.options import instant, listed, whole
from tessera.rules import names
from tessera.store.protocol import Store

if TYPE_CHECKING:
    from tessera.app import Tessera

MOST_REDRIVEN: Final = 1 << 62

Reference = str | bytes | Handle[Any]
"""A handle, a key, its printed form, or a caller's own id."""


class JobList(msgspec.Struct, frozen=True):
    """One page of jobs, newest key first."""

    jobs: tuple[JobView, ...]
    cursor: str
    """Give it to get the next page; '' = there is none."""
    examined: int
    """Rows looked at to find these."""


class Jobs:
    """Jobs of a store. Every verb has a twin for async code, its name begun with ``a``."""

    def __init__(self, app: Tessera) -> None:
        self._app = app

    def handle(self, job: Reference) -> Handle[Any]:
        """A handle from a key, its printed form or a caller's own id. Raises NotFound."""
        return self._app._run(lambda store: self._handle(store, job))

    async def ahandle(self, job: Reference) -> Handle[Any]:
        """See ``handle``."""
        return await self._handle(await self._app._astore(), job)

    async def _handle(self, store: Store, job: Reference) -> Handle[Any]:
        row = await lookup.find_job(store, _reference(job))
        return Handle(self._app, row.id, given_id=row.given_id, kind=self._app.kinds.get(row.kind))

    def get(self, job: Reference, *, reveal: bool = False) -> JobView:
        """One job; ``reveal`` adds payload and result. Raises NotFound."""
        return view(self._app._run(lambda store: lookup.find_job(store, _reference(job))), reveal=reveal)

    async def aget(self, job: Reference, *, reveal: bool = False) -> JobView:
        """See ``get``."""
        return view(await lookup.find_job(await self._app._astore(), _reference(job)), reveal=reveal)

    def list(
        self,
        *,
        queue: str | Sequence[str] = (),
        state: str | Sequence[str] = (),
        kind: str | Sequence[str] = (),
        tags_all: Sequence[str] = (),
        tags_any: Sequence[str] = (),
        tenant: str | None = None,
        parent: Reference | None = None,
        reason: str = "",
        cursor: str = "",
        limit: int = 50,
    ) -> JobList:
        """A page of jobs, newest first, without payloads; at most 200. Raises InvalidArgument, NotFound (the
        parent).
        """
        page = _page(cursor, limit)
        which = _filter(queue, state, kind, tags_all, tags_any, tenant, reason)
        return self._app._run(lambda store: _list(store, which, parent, page))

    async def alist(
        self,
        *,
        queue: str | Sequence[str] = (),
        state: str | Sequence[str] = (),
        kind: str | Sequence[str] = (),
        tags_all: Sequence[str] = (),
        tags_any: Sequence[str] = (),
        tenant: str | None = None,
        parent: Reference | None = None,
        reason: str = "",
        cursor: str = "",
        limit: int = 50,
    ) -> JobList:
        """See ``list``."""
        page = _page(cursor, limit)
        which = _filter(queue, state, kind, tags_all, tags_any, tenant, reason)
        return await _list(await self._app._astore(), which, parent, page)

    def cancel(self, job: Reference, *, reason: str = "", hard: bool = False, by: str = "") -> State:
        """Cancel a job, and with it the children it was split into; the state it is in now.

        A running job is asked to stop, with ``hard`` its lease is taken at once. Raises WrongState, NotFound.
        """
        return self._app._run(
            lambda store: operating.cancel(store, _reference(job), reason=reason, hard=hard, by=by)
        )

    async def acancel(self, job: Reference, *, reason: str = "", hard: bool = False, by: str = "") -> State:
        """See ``cancel``."""
        return await operating.cancel(
            await self._app._astore(), _reference(job), reason=reason, hard=hard, by=by
        )

    def retry(self, job: Reference, *, by: str = "") -> Handle[Any]:
        """Run a job again: dead, cancelled and quarantined ones start afresh, a scheduled one is due now, of
        a completed one a new job is made. The handle of the job that will run. Raises WrongState, NotFound.
        """
        return self.handle(self._app._run(lambda store: operating.retry(store, _reference(job), by=by)))

    async def aretry(self, job: Reference, *, by: str = "") -> Handle[Any]:
        """See ``retry``."""
        return await self.ahandle(await operating.retry(await self._app._astore(), _reference(job), by=by))

    def promote(self, job: Reference, *, by: str = "") -> Handle[Any]:
        """Let a pending job go, or make a scheduled one due now. Raises WrongState, NotFound."""
        return self.handle(self._app._run(lambda store: operating.promote(store, _reference(job), by=by)))

    async def apromote(self, job: Reference, *, by: str = "") -> Handle[Any]:
        """See ``promote``."""
        return await self.ahandle(await operating.promote(await self._app._astore(), _reference(job), by=by))

    def edit(
        self,
        job: Reference,
        *,
        priority: int | None = None,
        tags: Sequence[str] | None = None,
        run_at: datetime | None = None,
        delay: Seconds | None = None,
        max_attempts: int | None = None,
        by: str = "",
    ) -> Handle[Any]:
        """Change a job that waits. Raises InvalidArgument, WrongState, NotFound."""
        changes = _edit(priority, tags, run_at, delay, max_attempts)
        return self.handle(
            self._app._run(lambda store: operating.edit(store, _reference(job), by=by, **changes))
        )

    async def aedit(
        self,
        job: Reference,
        *,
        priority: int | None = None,
        tags: Sequence[str] | None = None,
        run_at: datetime | None = None,
        delay: Seconds | None = None,
        max_attempts: int | None = None,
        by: str = "",
    ) -> Handle[Any]:
        """See ``edit``."""
        changes = _edit(priority, tags, run_at, delay, max_attempts)
        return await self.ahandle(
            await operating.edit(await self._app._astore(), _reference(job), by=by, **changes)
        )

    def delete(self, job: Reference, *, force: bool = False, by: str = "") -> None:
        """Remove a job's row; a running one only with ``force``. Raises WrongState, NotFound."""
        self._app._run(lambda store: operating.delete(store, _reference(job), force=force, by=by))

    async def adelete(self, job: Reference, *, force: bool = False, by: str = "") -> None:
        """See ``delete``."""
        await operating.delete(await self._app._astore(), _reference(job), force=force, by=by)

    def explain(self, job: Reference) -> Explanation:
        """Why the job is not running now: every cause in words and as data. Raises NotFound."""
        return self._app._run(
            lambda store: inspecting.explain_job(store, self._app._policies, _reference(job))
        )

    async def aexplain(self, job: Reference) -> Explanation:
        """See ``explain``."""
        return await inspecting.explain_job(await self._app._astore(), self._app._policies, _reference(job))

    def redrive(
        self,
        *,
        queue: str | Sequence[str] = (),
        kind: str | Sequence[str] = (),
        tags_any: Sequence[str] = (),
        reason: str = "",
        limit: int = 10_000,
        dry_run: bool = False,
        by: str = "",
    ) -> Redriven:
        """Start dead and quarantined jobs of the filter afresh, newest first; a dry run only counts them."""
        which = _filter(queue, (), kind, (), tags_any, None, reason)
        most = whole("limit", limit, 0, MOST_REDRIVEN)
        return self._app._run(
            lambda store: redriving.redrive(store, which, limit=most, dry_run=dry_run, by=by)
        )

    async def aredrive(
        self,
        *,
        queue: str | Sequence[str] = (),
        kind: str | Sequence[str] = (),
        tags_any: Sequence[str] = (),
        reason: str = "",
        limit: int = 10_000,
        dry_run: bool = False,
        by: str = "",
    ) -> Redriven:
        """See ``redrive``."""
        which = _filter(queue, (), kind, (), tags_any, None, reason)
        most = whole("limit", limit, 0, MOST_REDRIVEN)
        return await redriving.redrive(await self._app._astore(), which, limit=most, dry_run=dry_run, by=by)


class Queues:
    """Queues of a store."""

    def __init__(self, app: Tessera) -> None:
        self._app = app

    def list(self) -> Sequence[QueueInfo]:
        """All queues with exact counts."""
        return self._app._run(lambda store: inspecting.queues(store, self._app._policies))

    async def alist(self) -> Sequence[QueueInfo]:
        """See ``list``."""
        return await inspecting.queues(await self._app._astore(), self._app._policies)

    def pause(self, queue: str) -> None:
        """Let nothing of the queue be claimed, fleet-wide, until it is resumed. What runs goes on."""
        self._app._run(lambda store: policies.override_queue(store, names.validate_queue(queue), paused=True))

    async def apause(self, queue: str) -> None:
        """See ``pause``."""
        await policies.override_queue(await self._app._astore(), names.validate_queue(queue), paused=True)

    def resume(self, queue: str) -> None:
        """Undo ``pause``."""
        self._app._run(
            lambda store: policies.override_queue(store, names.validate_queue(queue), paused=False)
        )

    async def aresume(self, queue: str) -> None:
        """See ``resume``."""
        await policies.override_queue(await self._app._astore(), names.validate_queue(queue), paused=False)

    def purge(
        self, queue: str, *, state: str | Sequence[str] = (), dry_run: bool = False, by: str = ""
    ) -> int:
        """Remove the queue's waiting jobs, or those of the given states; how many. Running jobs are never
        purged.
        """
        states = _states(state) or redriving.PURGED
        return self._app._run(
            lambda store: redriving.purge(store, names.validate_queue(queue), states, dry_run=dry_run, by=by)
        )

    async def apurge(
        self, queue: str, *, state: str | Sequence[str] = (), dry_run: bool = False, by: str = ""
    ) -> int:
        """See ``purge``."""
        states = _states(state) or redriving.PURGED
        return await redriving.purge(
            await self._app._astore(), names.validate_queue(queue), states, dry_run=dry_run, by=by
        )


def _reference(job: Reference) -> str | bytes:
    return job.key if isinstance(job, Handle) else job


def _many(option: str, value: str | Sequence[str]) -> tuple[str, ...]:
    values = (value,) if isinstance(value, str) else listed(option, value)
    return tuple(names.validate_words(option, each) for each in values)


def _states(value: str | Sequence[str]) -> tuple[State, ...]:
    try:
        return tuple(State(state) for state in _many("state", value))
    except ValueError as error:
        raise InvalidArgument("state", f"{error}; there are: {', '.join(State)}") from None


def _filter(
    queue: str | Sequence[str],
    state: str | Sequence[str],
    kind: str | Sequence[str],
    tags_all: Sequence[str],
    tags_any: Sequence[str],
    tenant: str | None,
    reason: str,
) -> Filter:
    return Filter(
        queues=_many("queue", queue),
        states=_states(state),
        kinds=_many("kind", kind),
        tags_all=_many("tags_all", listed("tags_all", tags_all)),
        tags_any=_many("tags_any", listed("tags_any", tags_any)),
        tenant=None if tenant is None else names.validate_words("tenant", tenant),
        reason=names.validate_words("reason", reason),
    )


def _page(cursor: str, limit: int) -> Page:
    try:
        after = bytes.fromhex(cursor)
    except (TypeError, ValueError):
        raise InvalidArgument("cursor", "is none of ours") from None
    return Page(after, whole("limit", limit, 1, PAGE_LIMIT))


async def _list(store: Store, which: Filter, parent: Reference | None, page: Page) -> JobList:
    if parent is not None:
        row = await lookup.find_job(store, _reference(parent))
        which = msgspec.structs.replace(which, parent=row.id)
    found = await store.find_jobs(which, page)
    return JobList(tuple(map(view, found.jobs)), found.after.hex(), found.examined)


def _edit(
    priority: int | None,
    tags: Sequence[str] | None,
    run_at: datetime | None,
    delay: Seconds | None,
    max_attempts: int | None,
) -> dict[str, Any]:
    if run_at is not None and delay is not None:
        raise InvalidArgument("run_at", "cannot be given together with delay")
    due: Time | None = None
    if delay is not None:
        due = After(to_ms(delay, "delay"))
    elif run_at is not None:
        due = instant("run_at", run_at)
    for name, value, least, most in (
        ("priority", priority, -32_768, 32_767),
        ("max_attempts", max_attempts, 1, 1_000_000),
    ):
        if value is not None:
            whole(name, value, least, most)
    return {
        "priority": priority,
        "tags": None if tags is None else names.validate_tags(listed("tags", tags)),
        "due": due,
        "max_attempts": max_attempts,
    }
