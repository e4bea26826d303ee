"""A handle on a job: what an enqueue answers, and what its end can be waited for with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

from tessera import seam
from tessera.engine import inspecting, lookup, operating
from tessera.model.control import Seconds, to_ms
from tessera.model.errors import JobNotCompleted, NotFound, ResultTimeout, TesseraError
from tessera.model.ids import JobId, show_id
from tessera.model.job import Job
from tessera.model.states import State
from tessera.model.views import JobView, view
from tessera.store.protocol import Notifies, Store

if TYPE_CHECKING:
    from tessera.app import Tessera
    from tessera.kinds import JobKind

R = TypeVar("R")
_FIRST_LOOK_SECONDS = 0.1
_SLOWEST_LOOK_SECONDS = 1.0
_RELEASE = "only a person lets it run again: tessera jobs retry"


class Handle(Generic[R]):
    """One job of this application. Handles are values: they hold a key, no connection.

    >>> from tessera import Tessera
    >>> app = Tessera("memory://")
    >>> @app.job
    ... def double(n: int) -> int:
    ...     return 2 * n
    >>> handle = double.enqueue(n=21)
    >>> handle.created
    True
    """

    def __init__(
        self,
        app: Tessera,
        key: JobId,
        *,
        given_id: str = "",
        created: bool = True,
        kind: JobKind[R] | None = None,
    ) -> None:
        self._app = app
        self._kind = kind
        self.key = key
        """16 bytes."""
        self.id = given_id or show_id(key)
        """The caller's own id, or the printed key."""
        self.created = created
        """False if the enqueue met a job that was there already."""

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __copy__(self) -> Handle[R]:
        return self

    def __deepcopy__(self, memo: object) -> Handle[R]:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Handle belongs to its application and cannot be pickled; "
            "keep handle.id, and ask app.jobs.handle(id) for another"
        )

    def get(self) -> JobView:
        """The job as it is now. Raises NotFound."""
        return view(self._app._run(lambda store: lookup.find_job(store, self.key)), reveal=True)

    async def aget(self) -> JobView:
        """See ``get``."""
        return view(await lookup.find_job(await self._app._astore(), self.key), reveal=True)

    def cancel(self, *, reason: str = "", hard: bool = False) -> State:
        """Cancel the job: see ``app.jobs.cancel``."""
        return self._app._run(lambda store: operating.cancel(store, self.key, reason=reason, hard=hard))

    async def acancel(self, *, reason: str = "", hard: bool = False) -> State:
        """See ``cancel``."""
        return await operating.cancel(await self._app._astore(), self.key, reason=reason, hard=hard)

    def result(self, timeout: Seconds | None = None) -> R:
        """What the handler returned, once the job has completed.

        A failure that will be retried is not an end. Raises ResultTimeout (the job goes on; what holds it is
        told), JobNotCompleted (dead, cancelled, quarantined or removed), NotFound.
        """
        self._app._warn_if_in_a_loop("result")
        return self._decoded(self._app._run(lambda store: self._ended(store, timeout)))

    async def aresult(self, timeout: Seconds | None = None) -> R:
        """See ``result``."""
        return self._decoded(await self._ended(await self._app._astore(), timeout))

    async def _ended(self, store: Store, timeout: Seconds | None) -> Job:
        """The finished row. Written once for both colours: only ``store.wait`` knows how to sleep."""
        end = None if timeout is None else seam.monotonic() + to_ms(timeout, "timeout") / 1_000
        look = _FIRST_LOOK_SECONDS
        watched = seen = False
        while True:
            [job] = await store.get_jobs([self.key])
            if job is None:
                if not seen:
                    raise NotFound("job", self.id)
                raise JobNotCompleted(self.id, "gone", "its row was removed")
            if job.is_final:
                return job
            if job.state is State.QUARANTINED:
                raise JobNotCompleted(
                    self.id, job.state, f"its payload crashed workers; {_RELEASE} {self.id}"
                )
            seen = True
            if not watched:
                await operating.watch(store, self.key)
                watched = True
                continue
            left = look if end is None else min(look, end - seam.monotonic())
            if left <= 0:
                raise ResultTimeout(
                    f"job {self.id} is still {job.state}; it goes on{await self._held(store)}"
                )
            if isinstance(store, Notifies):
                await store.wait(left)
            look = min(look * 2, _SLOWEST_LOOK_SECONDS)

    async def _held(self, store: Store) -> str:
        """What holds the job at this instant, for an error text."""
        try:
            explanation = await inspecting.explain_job(store, self._app._policies, self.key)
        except TesseraError:
            return ""
        causes = "; ".join(cause.text for cause in explanation.causes)
        return f" ({causes})" if causes else ""

    def _decoded(self, job: Job) -> R:
        if job.state is not State.COMPLETED:
            raise JobNotCompleted(self.id, job.state, job.reason)
        # An enqueue that met the owner of a unique key across kinds leads to a job of another kind.
        mine = self._kind
        kind: Any = mine if mine is not None and mine.name == job.kind else self._app.kinds.get(job.kind)
        if kind is None:
            value: Any = view(job, reveal=True).result
            return cast(R, value)
        return cast(R, kind.signature.decode_result(job.result or b"null"))
