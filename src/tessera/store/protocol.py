"""What every store must do. Whoever writes a store needs this page and ``model/changes`` only.

Verbs are ordinary ``async def``. A store comes in two colours: in the blocking one no verb ever suspends, so
that ``run_blocking`` can drive it without an event loop, in the caller's thread and in the caller's
transaction.

Duties of every verb: decide by the store's own clock; write wholly or not at all; be safe to repeat as said
there; raise the typed errors of ``model/errors`` and nothing of a driver's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from tessera.model.changes import Answer, Group, Record
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import Claimed, ClaimRequest, Due, Event, Filter, JobPage, Page
from tessera.model.states import State

if TYPE_CHECKING:
    from tessera.model.condition import Condition  # only who asks for it needs it

_T = TypeVar("_T")


class Store(Protocol):
    """A transactional store of jobs, slots, counters, edges, records, events and blobs."""

    name: ClassVar[str]
    """memory, sqlite, postgresql, mysql or redis."""

    @property
    def installation(self) -> bytes:
        """16 random bytes made when the store was created: what caller's ids are derived under, and what
        tells two stores apart.
        """
        ...

    async def open(self) -> None:
        """Connect and check the schema; create it in an empty store. Idempotent. Raises SchemaTooOld,
        SchemaTooNew, StoreError.
        """
        ...

    async def close(self) -> None:
        """Give up connections. What was not committed is not written."""
        ...

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Take ready jobs in order under their counters.

        Must in one atomic step, per job: set running, holder, lease, attempt + 1, fence = max(fence + 1,
        store microseconds); take all its units or none; set aside what may not run under the key it lacks,
        order kept. Jobs of a paused queue, of a quarantined fingerprint or past ``expires_at`` are not handed
        out. Nothing is claimed under another policy version than the store's. Not safe to repeat: after
        OutcomeUnknown look for jobs with ``holder`` first.
        """
        ...

    async def commit(self, groups: Sequence[Group], request_id: str = "") -> list[Answer]:
        """Apply each group wholly or not at all; one answer a group, in order. All applied groups are one
        transaction.

        A group is checked against what the groups before it did. With a ``request_id`` a repeat within 24 h
        returns the first answers and changes nothing. Without groups it writes nothing, and shows that a
        write gets through: it must wait or fail as one would.
        """
        ...

    async def due(self, limit: int, queues: Sequence[str] | None = None) -> Due:
        """What the clock has made ready, each list at most ``limit`` long. ``queues`` narrows it to jobs of
        these queues.
        """
        ...

    async def find_jobs(self, which: Filter, page: Page) -> JobPage:
        """Jobs of a filter, hot and archived, newest key first. Stops after EXAMINED_LIMIT rows and says how
        many it looked at.
        """
        ...

    async def count_jobs(self) -> dict[tuple[str, State], int]:
        """Exact number of jobs by queue and state, archived ones included. Zero counts may be absent."""
        ...

    async def get_jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        """Rows by key, hot or archived, one answer a key."""
        ...

    async def edges(self, job: JobId) -> list[tuple[JobId, str]]:
        """What an open job still waits for: (parent, condition)."""
        ...

    async def counters(self, keys: Sequence[str]) -> list[tuple[str, int, int]]:
        """(key, units used, jobs set aside) of those that exist, folded to this instant."""
        ...

    async def get(self, keys: Sequence[tuple[str, str]]) -> list[Record | None]:
        """Records by (space, key), one answer a key; a tombstone is a record without a value."""
        ...

    async def scan(self, space: str, prefix: str = "", after: str = "", limit: int = 200) -> list[Record]:
        """Records of a space whose key begins so, in key order, without tombstones and expired ones."""
        ...

    async def history(self, space: str, key: str, limit: int = 200) -> list[Record]:
        """Versions of a record, newest first. Empty for ``~`` spaces."""
        ...

    async def events(self, after: int = 0, limit: int = 200, job: JobId | None = None) -> list[Event]:
        """The log from a position on. Never skips an entry that commits late."""
        ...

    async def stage(self, upload: str, number: int, data: bytes) -> None:
        """Keep one chunk of an upload until it is published or swept. Safe to repeat."""
        ...

    def blob(self, sha256: bytes) -> AsyncIterator[bytes]:
        """The bytes of a published blob, chunk by chunk. Raises NotFound."""
        ...

    async def policy_version(self) -> int:
        """The version that a claim must carry."""
        ...

    async def schema(self) -> tuple[int, int]:
        """(version in the store, version this code writes)."""
        ...

    async def migrate(self, to: int | None = None, dry_run: bool = False) -> list[str]:
        """Bring the schema to a version (default: newest); the steps taken or, on a dry run, to take."""
        ...

    async def verify(self) -> list[str]:
        """Re-derive counts, counters, slots and edges from the rows; each difference in a sentence. Empty =
        sound.
        """
        ...


@runtime_checkable
class Notifies(Protocol):
    """The store can say that something changed."""

    async def wait(self, seconds: float) -> bool:
        """Sleep until a commit, of this process or another, may have made a job claimable or ended a watched
        one; at most so long.

        True = something happened. May be wrong in that direction only.
        """
        ...


@runtime_checkable
class Describes(Protocol):
    """The store can say what it stands on."""

    async def describe(self) -> dict[str, str]:
        """Facts for an operator by name: where the data lies, its durability class, the server's or library's
        version. Names may grow.
        """
        ...


@runtime_checkable
class Evolves(Protocol):
    """The schema changes beside the work: ``migrate`` does what code of the release before does not mind, and
    both releases share the tables until ``contract``.
    """

    async def contract(self, dry_run: bool = False) -> list[str]:
        """Do what older code would mind, now that none runs; the steps taken or, on a dry run, to take."""
        ...

    async def adopt(self) -> list[str]:
        """Take tables that were made by hand from ``script`` for those of this release; the steps written
        down. Must look whether they are as they should be, and raises StoreError with what differs.
        """
        ...

    async def script(self, to: int | None = None, contract: bool = False) -> str:
        """The SQL of what ``migrate`` to this version, or ``contract``, would do."""
        ...


@runtime_checkable
class Maintains(Protocol):
    """The store needs upkeep of its own."""

    async def maintain(self) -> None:
        """Do what upkeep is due. To be called every so often by whoever holds the duty; harmless if two do at
        once, and never in the way of a claim or a finish.
        """
        ...

    async def condition(self) -> Condition:
        """How tables and indexes are, and what holds them back."""
        ...

    async def rebuild_indexes(self) -> list[str]:
        """Build bloated indexes anew beside the work, on an operator's word; their names. May take long."""
        ...


@runtime_checkable
class SetsClockBack(Protocol):
    """The store goes by the clocks of its processes, and remembers how far they were."""

    async def set_clock_back(self) -> int:
        """Take back a time that is more than a minute ahead of this machine's clock, and with it the spans
        that were reckoned from it. By how many milliseconds; 0 if there is nothing to take back.
        """
        ...


@runtime_checkable
class JoinsTransaction(Protocol):
    """The store can work inside the caller's own transaction."""

    def joined(self, connection: object) -> Store:
        """This store, with commits that become part of the transaction open on the connection. Never commits,
        never rolls back.

        Raises NotInTransaction (autocommit), ForeignStore (another database), Unsupported (not a connection
        it knows).
        """
        ...


def run_blocking(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine over a blocking store to its end, in this thread and without an event loop.

    Every await in it must answer at once; one that suspends is a mistake in the driver and raises
    RuntimeError.
    """
    try:
        work.send(None)
    except StopIteration as end:
        value: _T = end.value
        return value
    work.close()
    raise RuntimeError("a blocking store suspended: some driver of its own awaited a real event")
