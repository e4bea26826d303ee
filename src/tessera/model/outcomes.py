"""How an attempt can end, as values. The executor returns one and writes nothing; the engine turns it into
changes.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from tessera.model.changes import AddJob


class Completed(msgspec.Struct, frozen=True, gc=False):
    """The handler returned."""

    result: bytes | None = None


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The handler raised, timed out, or its process died while the worker lived."""

    error: str
    """Type and message, with the end of the traceback."""
    retry_after_ms: int | None = None
    timed_out: bool = False


class Crashed(msgspec.Struct, frozen=True, gc=False):
    """The handler took its process down (a signal, no memory left): charged as a lapse is, but at once."""

    error: str


class Snoozed(msgspec.Struct, frozen=True, gc=False):
    """Not yet."""

    delay_ms: int


class Released(msgspec.Struct, frozen=True, gc=False):
    """Given up by choice or at shutdown, after it began; charges nothing."""

    delay_ms: int = 0
    reason: str = ""


class GivenBack(msgspec.Struct, frozen=True, gc=False):
    """Claimed and never begun: attempt, units and rate cost are undone."""


class Aborted(msgspec.Struct, frozen=True, gc=False):
    """Can never work."""

    reason: str = ""


class Discarded(msgspec.Struct, frozen=True, gc=False):
    """Nobody needs it."""


class Cancelled(msgspec.Struct, frozen=True, gc=False):
    """Asked to stop, and stopped."""

    reason: str = ""


class LimitMet(msgspec.Struct, frozen=True, gc=False):
    """A limit outside of Tessera was met."""

    counter: str
    delay_ms: int


class Undecodable(msgspec.Struct, frozen=True, gc=False):
    """The payload does not fit the handler."""

    problem: str


class Expired(msgspec.Struct, frozen=True, gc=False):
    """The deadline over all attempts has passed."""


class Split(msgspec.Struct, frozen=True, gc=False):
    """Work for children; the job waits for them and is then run again with their results."""

    children: tuple[AddJob, ...]
    on_child_dead: str = "continue"
    """``continue``, ``fail`` or ``wait``."""
    note: str = ""


Outcome: TypeAlias = (
    Completed
    | Failed
    | Crashed
    | Snoozed
    | Released
    | GivenBack
    | Aborted
    | Discarded
    | Cancelled
    | LimitMet
    | Undecodable
    | Expired
    | Split
)
