"""What a handler may raise to end its attempt by intent. Any other exception is a failure."""

from __future__ import annotations

from datetime import timedelta

from tessera.model.errors import InvalidArgument
from tessera.model.showing import shown

Seconds = float | int | timedelta
"""A span: seconds as a number, or a timedelta."""


def to_ms(span: Seconds, argument: str, *, least: int = 0) -> int:
    """Whole milliseconds of a span. Raises InvalidArgument if it is negative, or rounds to zero unasked."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgument(argument, f"is {shown(seconds)}; give seconds as a number, or a timedelta")
    if not 0 <= seconds < 10**10:
        raise InvalidArgument(argument, f"is {seconds} seconds; it must not be negative, and below 10^10")
    ms = round(seconds * 1_000)
    if ms == 0 and seconds > 0:
        raise InvalidArgument(argument, f"is {seconds} seconds, which rounds to no milliseconds at all")
    if ms < least:
        raise InvalidArgument(argument, f"is {seconds} seconds; the least is {least / 1_000}")
    return ms


class Control(Exception):
    """Ends an attempt by intent; never counted as a failure by itself."""


class Snooze(Control):
    """Not yet: run again after a while. Charges neither a failure nor a crash.

    >>> raise Snooze(30)
    Traceback (most recent call last):
    ...
    tessera.model.control.Snooze: 30
    """

    def __init__(self, seconds: Seconds) -> None:
        self.delay_ms = to_ms(seconds, "seconds")
        super().__init__(seconds)


class Abort(Control):
    """This job can never work: to the dead letter at once, kept and visible, without a retry."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)


class Discard(Control):
    """Nobody needs this job any more: its row is removed."""


class Cancel(Control):
    """End as cancelled, with a reason."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)


class RateLimited(Control):
    """Somebody else's limit was met: run again after a while, and let nothing start under the named counter
    until then.

    ``counter`` is a ceiling's or rate's name, or name/value; '' closes nothing.
    """

    def __init__(self, counter: str = "", *, retry_after: Seconds = 1) -> None:
        self.counter = counter
        self.delay_ms = to_ms(retry_after, "retry_after")
        super().__init__(counter)


class RetryAfter(Control):
    """A failure whose retry waits so long, instead of the backoff of the job."""

    def __init__(self, seconds: Seconds, reason: str = "") -> None:
        self.delay_ms = to_ms(seconds, "seconds")
        self.reason = reason
        super().__init__(reason or f"retry after {seconds}")
