"""What a handler is given: who it is, how it says what it does, and what it can ask for while it runs."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NoReturn, Protocol, TypeAlias, runtime_checkable

import msgspec

from tessera.model.changes import AddJob
from tessera.model.control import Control, Seconds, to_ms
from tessera.model.errors import InvalidArgument
from tessera.model.ids import show_id
from tessera.model.job import Job, extras_of
from tessera.model.showing import shown
from tessera.model.states import State
from tessera.rules import names
from tessera.rules.jsonform import Misfit, write_plain
from tessera.rules.payload import check_result_size
from tessera.worker.report import JobLog, Report

NOTE_LIMIT: Final = 65_536
"""Characters of the note that a job writes to itself with a split."""

MOST_PROGRESS: Final = 1 << 62

OnChildDead: TypeAlias = Literal["continue", "fail", "wait"]


class ChildResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one child of a split ended."""

    id: str
    kind: str
    state: State
    value: object = None
    """What its handler returned, if it completed."""
    reason: str = ""
    """Why it is dead or cancelled."""


@runtime_checkable
class ContextServices(Protocol):
    """What a context needs of the application. Its coroutines run in the worker's event loop."""

    async def enqueue_from(
        self,
        job: Job,
        kind_or_function: object,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        options: Mapping[str, object],
    ) -> object:
        """Store a job on behalf of a running one; a handle on it."""
        ...

    def draft_children(self, job: Job, children: Sequence[object]) -> tuple[AddJob, ...]:
        """The changes that store the children of a split. Raises InvalidArgument. Called in any thread."""
        ...

    async def children(self, job: Job) -> list[ChildResult]:
        """How the children of the job's last split ended, in the order in which they were given."""
        ...


class Calls(Protocol):
    """How a context reaches the worker from where its handler runs: the event loop, a thread, or a child
    process."""

    def enqueue(
        self,
        what: object,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        options: Mapping[str, object],
    ) -> object: ...

    async def aenqueue(
        self,
        what: object,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        options: Mapping[str, object],
    ) -> object: ...

    def extend(self, seconds: float) -> None: ...

    async def aextend(self, seconds: float) -> None: ...

    def children(self) -> list[ChildResult]: ...

    async def achildren(self) -> list[ChildResult]: ...

    def draft_children(self, children: Sequence[object]) -> tuple[AddJob, ...]: ...

    def is_stopped(self) -> bool: ...


class ReleaseRequest(Control):
    """Ends the attempt for ``ctx.release``."""

    def __init__(self, delay_ms: int, reason: str) -> None:
        self.delay_ms = delay_ms
        self.reason = reason
        super().__init__(reason)


class SplitRequest(Control):
    """Ends the attempt for ``ctx.split``."""

    def __init__(self, children: tuple[AddJob, ...], on_child_dead: str, note: str) -> None:
        self.children = children
        self.on_child_dead = on_child_dead
        self.note = note
        super().__init__(f"split into {len(children)}")


class Context:
    """The running job as its handler sees it: a parameter named ``ctx``, or annotated ``Context``.

    ``log``, ``progress`` and ``output`` never wait: what they say goes out with the next renewal of the lease
    or with the end of the attempt. Calls that reach the store have two forms, ``x`` for plain functions and
    ``ax`` for ``async def``.

    Example::

        @app.job
        async def digest(path: str, *, ctx: Context) -> int:
            for number, chunk in enumerate(chunks := read(path)):
                ctx.progress(number, len(chunks))
                ctx.log.info("chunk %d", number)
            return len(chunks)
    """

    __slots__ = ("_calls", "_data", "_deadline_ms", "_report", "_worker_data", "job")

    def __init__(
        self,
        job: Job,
        report: Report,
        calls: Calls,
        *,
        deadline_ms: int = 0,
        worker_data: MutableMapping[object, object] | None = None,
    ) -> None:
        self.job = job
        """The job as it was claimed."""
        self._report = report
        self._calls = calls
        self._deadline_ms = deadline_ms
        self._worker_data = worker_data if worker_data is not None else {}
        self._data: ChainMap[object, object] | None = None

    @property
    def id(self) -> str:
        """The caller's own id of the job if there is one, else its key in print."""
        return self.job.given_id or show_id(self.job.id)

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        return self.job.attempt

    @property
    def note(self) -> str:
        """What this job wrote to itself with its last ``split``; '' before."""
        return extras_of(self.job).join_note

    @property
    def deadline(self) -> datetime | None:
        """When this attempt will be asked to stop, by its timeout or by the job's deadline; None = never. By
        this machine's clock."""
        return datetime.fromtimestamp(self._deadline_ms / 1_000, UTC) if self._deadline_ms else None

    @property
    def cancelled(self) -> bool:
        """Whether this attempt was asked to stop: cancelled, timed out, at shutdown, or because its lease is
        lost.

        A plain function in a thread sees this and nothing else: it should look from time to time, and raise
        or return.
        """
        return self._calls.is_stopped()

    @property
    def data(self) -> MutableMapping[object, object]:
        """Objects of this attempt, over those of the worker: what is written here no other job sees, and no
        store keeps."""
        if self._data is None:
            self._data = ChainMap({}, self._worker_data)
        return self._data

    @property
    def log(self) -> JobLog:
        """Lines kept with the job, the last 200: ``ctx.log.info("read %d pages", n)``."""
        return JobLog(self._report)

    def progress(self, current: float, total: float = 0, message: str = "") -> None:
        """Say how far the work is; replaces what was said before. Raises InvalidArgument."""
        for name, number in (("current", current), ("total", total)):
            # Not to be stored is not to be read again either: one odd number would hide the whole row.
            if not _is_progress(number):
                raise InvalidArgument(name, f"is no number from -{MOST_PROGRESS} to {MOST_PROGRESS}")
        if not isinstance(message, str):
            raise InvalidArgument("message", f"is of type {type(message).__name__}; give a text")
        self._report.progress(current, total, str.__str__(message))

    def output(self, value: object) -> None:
        """Show an intermediate result; replaces the one before. Raises InvalidArgument (no JSON form),
        TooLarge (over 256 KiB)."""
        try:
            data = write_plain(value)
        except Misfit as misfit:
            raise InvalidArgument("output", misfit.told) from misfit
        self._report.output(check_result_size(data))

    def extend(self, seconds: Seconds) -> None:
        """Let the lease end so many seconds from now, if that is later than it would. Raises StaleLease,
        StoreError.

        Leases are renewed by themselves; this is for calls that stop the whole process from running, the
        renewer's thread included.
        """
        self._calls.extend(to_ms(seconds, "seconds", least=1) / 1_000)

    async def aextend(self, seconds: Seconds) -> None:
        """See ``extend``."""
        await self._calls.aextend(to_ms(seconds, "seconds", least=1) / 1_000)

    def release(self, delay: Seconds = 0, reason: str = "") -> NoReturn:
        """Give the job up for now, without charging an attempt: it is available again after the delay. Does
        not return."""
        raise ReleaseRequest(to_ms(delay, "delay"), names.validate_words("reason", reason))

    def enqueue(
        self, what: object, /, *args: object, options: Mapping[str, object] | None = None, **kwargs: object
    ) -> object:
        """Store another job, by kind or function with its arguments, with this application's rights; a handle
        on it.

        Raises InvalidArgument, StoreError; RuntimeError in an ``async def``, which must await ``aenqueue``.
        """
        return self._calls.enqueue(what, args, kwargs, options or {})

    async def aenqueue(
        self, what: object, /, *args: object, options: Mapping[str, object] | None = None, **kwargs: object
    ) -> object:
        """See ``enqueue``."""
        return await self._calls.aenqueue(what, args, kwargs, options or {})

    def split(
        self, children: Sequence[object], *, on_child_dead: OnChildDead = "continue", note: str = ""
    ) -> NoReturn:
        """End this attempt and wait for these jobs; then the handler runs again and finds their results in
        ``children()``.

        A child that dies lets the others go on (``continue``), ends this job too (``fail``), or holds it
        until somebody redrives the child (``wait``). Stored wholly or not at all, with the end of the
        attempt. Does not return. Raises InvalidArgument.
        """
        if on_child_dead not in ("continue", "fail", "wait"):
            raise InvalidArgument(
                "on_child_dead", f"is {shown(on_child_dead)}; it is 'continue', 'fail' or 'wait'"
            )
        if isinstance(children, str | bytes) or not isinstance(children, Sequence):
            raise InvalidArgument("children", f"is of type {type(children).__name__}; give a list")
        if not children:
            raise InvalidArgument("children", "is empty; a job cannot wait for nothing")
        note = names.validate_words("note", note, NOTE_LIMIT)
        raise SplitRequest(self._calls.draft_children(children), on_child_dead, note)

    def children(self) -> list[ChildResult]:
        """How the children of the last split ended, in the order given; empty before a split. Raises
        StoreError."""
        return self._calls.children()

    async def achildren(self) -> list[ChildResult]:
        """See ``children``."""
        return await self._calls.achildren()


def _is_progress(number: object) -> bool:
    return isinstance(number, int | float) and abs(number) <= MOST_PROGRESS
