"""What a worker and its child processes say to each other: JSON in frames, each after its length in four
bytes."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from tessera.model import outcomes
from tessera.model.job import Job
from tessera.model.outcomes import Outcome

HEADER_BYTES: Final = 4
FRAME_LIMIT: Final = 8 * 1024 * 1024
"""Bytes of one frame: a payload of 1 MiB fits in several times over. A longer one means that somebody else
writes into the pipe."""


# To the child -----------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag=True):
    """How to find modules as the worker does."""

    path: list[str]
    main: str = ""
    """The worker's main script, for handlers that are defined in it."""


class Run(msgspec.Struct, frozen=True, tag=True):
    """Run this job's handler."""

    reference: str
    job: Job
    marker: str
    """Written to the child's stderr after the handler's last output, so that none of it is missed or taken
    for the next job's."""
    deadline_ms: int = 0


class AskToStop(msgspec.Struct, frozen=True, tag=True):
    """Let ``ctx.cancelled`` be true. SIGTERM follows."""


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The answer to an ``Ask``."""

    number: int
    value: object = None
    error: str = ""
    is_stale: bool = False


ToChild: TypeAlias = Hello | Run | AskToStop | Reply


# To the worker ----------------------------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Started, and waiting for work."""


class Said(msgspec.Struct, frozen=True, tag=True):
    """Progress, a log line or output, whichever is set."""

    progress: tuple[float, float, str] | None = None
    line: str | None = None
    output: bytes | None = None


class Ask(msgspec.Struct, frozen=True, tag=True):
    """A call that only the worker can make: ``enqueue``, ``extend`` or ``children``."""

    number: int
    verb: str
    what: str = ""
    args: list[object] = []
    kwargs: dict[str, object] = {}
    options: dict[str, object] = {}
    seconds: float = 0


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The handler is through. Without an outcome it was asked to stop, and did."""

    outcome: str = ""
    fields: msgspec.Raw = msgspec.Raw(b"null")


ToWorker: TypeAlias = Ready | Said | Ask | Ended

_OUTCOMES: Final[dict[str, type[Outcome]]] = {
    each.__name__: each
    for each in (
        outcomes.Completed,
        outcomes.Failed,
        outcomes.Snoozed,
        outcomes.Released,
        outcomes.Aborted,
        outcomes.Discarded,
        outcomes.Cancelled,
        outcomes.LimitMet,
        outcomes.Undecodable,
    )
}

_to_child: Final = msgspec.json.Decoder(ToChild)
_to_worker: Final = msgspec.json.Decoder(ToWorker)
_encoder: Final = msgspec.json.Encoder()


def frame(message: ToChild | ToWorker) -> bytes:
    """A message as it goes through the pipe."""
    body = _encoder.encode(message)
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def length(header: bytes) -> int:
    """The length of the frame that follows. Raises ValueError over the limit."""
    size = int.from_bytes(header, "big")
    if size > FRAME_LIMIT:
        raise ValueError(f"a frame of {size} bytes is over the limit of {FRAME_LIMIT}")
    return size


def read_in_child(body: bytes) -> ToChild:
    """What the worker said."""
    return _to_child.decode(body)


def read_in_worker(body: bytes) -> ToWorker:
    """What the child said. Raises msgspec.DecodeError."""
    return _to_worker.decode(body)


def ended(outcome: Outcome | None) -> Ended:
    """The last word on an attempt."""
    if outcome is None:
        return Ended()
    return Ended(type(outcome).__name__, msgspec.Raw(_encoder.encode(outcome)))


def outcome_of(message: Ended) -> Outcome | None:
    """The outcome that the child named. Raises msgspec.DecodeError, KeyError."""
    if not message.outcome:
        return None
    kind: type[Outcome] = _OUTCOMES[message.outcome]
    return msgspec.json.decode(message.fields, type=kind)
