"""Every error a user of Tessera can meet.

    TesseraError
    ├── InvalidArgument          a value the caller gave is wrong; names the argument
    │   ├── InvalidMember        one member of a bulk call is wrong; names its index
    │   └── TooLarge             a payload, result or text is over its limit
    ├── UndecodablePayload       stored bytes do not fit the handler's parameters
    ├── NotFound                 no such job, queue, record
    ├── Conflict                 the call contradicts what is stored
    │   ├── IdConflict           the id is taken by a job with other content
    │   ├── WrongState           the verb does not apply to the job's state
    │   ├── VersionConflict      a record changed since it was read
    │   └── DuplicateKind        two handlers claim one kind
    ├── StaleLease               the lease lapsed or another holder has the job; nothing was written
    ├── QueueFull                the queue's depth limit would be passed
    ├── Unsupported              this store does not offer that capability
    ├── NotInTransaction         the caller's connection has no open transaction to join
    ├── ForeignStore             the caller's connection leads to another database
    ├── StoreError
    │   ├── StoreUnavailable     the store does not answer; nothing is known to be wrong with the call
    │   ├── StoreBusy            another writer held the store for too long; nothing was written
    │   ├── StoreFull            the store has no room; nothing was written
    │   ├── StoreClosed          the handle was closed
    │   ├── SchemaTooOld         run ``tessera migrate``
    │   ├── SchemaTooNew         this Tessera is older than the store
    │   └── UnsafeFilesystem     SQLite cannot be trusted on this file system
    ├── OutcomeUnknown           the reply was lost: the effect may or may not exist
    ├── ConfigError              settings are wrong; lists every problem with its source
    ├── JobNotCompleted          ``result()`` of a job that is dead, cancelled, quarantined or gone
    └── ResultTimeout            ``result()`` waited long enough; the job goes on

A code is stable and is the same through every door; the words may improve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tessera.model.showing import MOST_SHOWN, cut


class TesseraError(Exception):
    """Something was refused or went wrong in Tessera."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message if message is not None else (type(self).__doc__ or "").strip())


class InvalidArgument(TesseraError, ValueError):
    """A value is not acceptable."""

    code = "invalid_argument"

    def __init__(self, argument: str, problem: str) -> None:
        self.argument = cut(argument, MOST_SHOWN)
        self.problem = cut(problem)
        super().__init__(f"{self.argument}: {self.problem}")


class InvalidMember(InvalidArgument):
    """One member of a bulk call is not acceptable; nothing of the call was stored."""

    code = "invalid_member"

    def __init__(self, index: int, cause: TesseraError) -> None:
        self.index = index
        self.cause = cause
        super().__init__(f"jobs[{index}]", str(cause))


class TooLarge(InvalidArgument):
    """A value is over its size limit."""

    code = "too_large"

    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            what,
            f"{size_bytes} bytes are over the limit of {limit_bytes}; store a reference to the data instead",
        )


class UndecodablePayload(TesseraError):
    """The stored payload does not fit the handler's parameters."""

    code = "undecodable_payload"

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(problem)


class NotFound(TesseraError):
    """There is no such thing in the store."""

    code = "not_found"

    def __init__(self, what: str, name: str) -> None:
        self.what = what
        self.name = name
        super().__init__(f"no {what} {name!r} in this store")


class Conflict(TesseraError):
    """The call contradicts what is stored."""

    code = "conflict"


class IdConflict(Conflict):
    """The id is taken by a job with another kind, queue or payload."""

    code = "id_conflict"

    def __init__(self, given_id: str, why: str) -> None:
        self.given_id = given_id
        super().__init__(f"the id {given_id!r} is taken by a job with another {why}; use another id")


class WrongState(Conflict):
    """The verb does not apply to the job's state."""

    code = "wrong_state"

    def __init__(self, job: str, state: str, verb: str, hint: str = "") -> None:
        self.job = job
        self.state = state
        self.verb = verb
        super().__init__(f"cannot {verb} job {job}: it is {state}" + (f"; {hint}" if hint else ""))


class VersionConflict(Conflict):
    """The record changed since it was read."""

    code = "version_conflict"

    def __init__(self, space: str, key: str, expected: int, found: int) -> None:
        self.expected = expected
        self.found = found
        super().__init__(
            f"record {space}/{key} is at version {found}, not {expected}; read it again and retry"
        )


class DuplicateKind(Conflict):
    """Two handlers claim one kind."""

    code = "duplicate_kind"

    def __init__(self, kind: str, first: str, second: str) -> None:
        self.kind = kind
        super().__init__(f"the kind {kind!r} is declared by {first} and by {second}; give one of them kind=")


class StaleLease(TesseraError):
    """The lease lapsed or the job has another holder; nothing was written."""

    code = "stale_lease"

    def __init__(self, job: str, fence: int, found: str) -> None:
        self.job = job
        self.fence = fence
        self.found = found
        super().__init__(
            f"the lease on job {job} (fence {fence}) is not current: {found}; nothing was written"
        )


class QueueFull(TesseraError):
    """The queue's depth limit would be passed; nothing was stored."""

    code = "queue_full"

    def __init__(self, queue: str, limit: int, depth: int) -> None:
        self.queue = queue
        self.limit = limit
        self.depth = depth
        super().__init__(
            f"queue {queue!r} holds {depth} unfinished jobs and its limit is {limit}; nothing was stored, "
            "try again later"
        )


class Unsupported(TesseraError):
    """This store does not offer that capability."""

    code = "unsupported"

    def __init__(self, store: str, capability: str) -> None:
        self.store = store
        self.capability = capability
        super().__init__(f"the {store} store does not offer: {capability}")


class NotInTransaction(TesseraError):
    """The connection has no open transaction to join; begin one first."""

    code = "not_in_transaction"


class ForeignStore(TesseraError):
    """The connection leads to another database than this application's store."""

    code = "foreign_store"


class StoreError(TesseraError):
    """The store could not do its work."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store does not answer; try again."""

    code = "store_unavailable"


class StoreBusy(StoreError):
    """Another writer held the store for too long; nothing was written, try again."""

    code = "store_busy"


class StoreFull(StoreError):
    """The store has no room left; nothing was written."""

    code = "store_full"


class StoreClosed(StoreError):
    """This handle was closed; open another."""

    code = "store_closed"


class SchemaTooOld(StoreError):
    """The store's schema is older than this Tessera needs; run ``tessera migrate``."""

    code = "schema_too_old"


class SchemaTooNew(StoreError):
    """The store's schema is newer than this Tessera knows; upgrade Tessera."""

    code = "schema_too_new"


class UnsafeFilesystem(StoreError):
    """SQLite's locks cannot be trusted on this file system; use a local disk or another store."""

    code = "unsafe_filesystem"


class OutcomeUnknown(TesseraError):
    """The reply was lost: the effect may or may not exist. Ask again before repeating."""

    code = "outcome_unknown"


class ConfigError(TesseraError):
    """Settings are wrong."""

    code = "config_error"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(cut(problem) for problem in problems)
        super().__init__("settings are wrong:\n" + "\n".join(f"  - {problem}" for problem in self.problems))


class JobNotCompleted(TesseraError):
    """The job ended without a result."""

    code = "job_not_completed"

    def __init__(self, job: str, state: str, reason: str) -> None:
        self.job = job
        self.state = state
        self.reason = reason
        super().__init__(f"job {job} has no result: it is {state}" + (f" ({reason})" if reason else ""))


class ResultTimeout(TesseraError, TimeoutError):
    """The job has not ended yet; it goes on."""

    code = "result_timeout"
