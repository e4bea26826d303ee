"""What the end of a handler means: the one place where returned values, exceptions and requests to stop
become outcomes."""

from __future__ import annotations

import asyncio
import inspect
import os
import traceback
from itertools import takewhile
from typing import Final, assert_never

from tessera.model import control
from tessera.model.errors import InvalidArgument, UndecodablePayload
from tessera.model.outcomes import (
    Aborted,
    Cancelled,
    Completed,
    Crashed,
    Discarded,
    Expired,
    Failed,
    GivenBack,
    LimitMet,
    Outcome,
    Released,
    Snoozed,
    Split,
    Undecodable,
)
from tessera.rules import names
from tessera.rules.endings import shorten
from tessera.rules.payload import check_result_size
from tessera.rules.signature import Signature
from tessera.worker.attempt import Stop
from tessera.worker.context import ReleaseRequest, SplitRequest
from tessera.worker.report import clean

_FRAMES: Final = 12
"""Frames of a traceback that are kept: the last ones, which say where it happened."""


_OWN_CODE: Final = (os.path.dirname(__file__), os.path.dirname(asyncio.__file__))


def of_result(signature: Signature, value: object) -> Outcome:
    """The outcome of a handler that returned. A value that cannot be stored aborts the job: 25 more runs
    would not change it."""
    if inspect.iscoroutine(value):
        value.close()
        return Aborted("the handler is a plain function that returned a coroutine; declare it with async def")
    try:
        return Completed(check_result_size(signature.encode_result(value)))
    except InvalidArgument as error:
        return Aborted(clean(str(error)))
    except Exception as error:  # noqa: BLE001  the value's own code may be called here
        return Aborted(f"the result has no JSON form: {error_text(error)}")


def of_exception(error: BaseException) -> Outcome:
    """The outcome of a handler that raised. SystemExit and KeyboardInterrupt are failures like any other."""
    if not isinstance(error, control.Control):
        return Failed(error_text(error))
    match error:
        case control.Snooze(delay_ms=delay_ms):
            return Snoozed(delay_ms)
        case control.RetryAfter(delay_ms=delay_ms):
            return Failed(error_text(error), retry_after_ms=delay_ms)
        case control.RateLimited(counter=counter, delay_ms=delay_ms):
            return _limit_met(error, counter, delay_ms)
        case control.Abort(reason=reason):
            return Aborted(words(reason))
        case control.Cancel(reason=reason):
            return Cancelled(words(reason))
        case control.Discard():
            return Discarded()
        case ReleaseRequest(delay_ms=delay_ms, reason=reason):
            return Released(delay_ms, clean(reason))
        case SplitRequest(children=children, on_child_dead=on_child_dead, note=note):
            return Split(children, on_child_dead, note)
        case _:  # a control of the application's own making
            return Failed(error_text(error))


def of_payload(error: UndecodablePayload) -> Outcome:
    """The outcome of a job whose payload does not fit its handler."""
    return Undecodable(clean(error.problem))


def when_stopped(stop: Stop, outcome: Outcome | None, *, timeout_seconds: float) -> Outcome | None:
    """The outcome of a handler that was asked to stop. ``outcome`` is what it did of itself, None if it just
    stopped.

    Work that was finished all the same stands. What would run the job again gives way to the reason of the
    stop, so that a job that somebody cancelled does not come back as a retry. None = nothing may be written.
    """
    if stop is Stop.LEASE:
        return None
    if outcome is not None and _is_settled(outcome):
        return outcome
    match stop:
        case Stop.CANCEL:
            return Cancelled("cancelled while it ran")
        case Stop.DEADLINE:
            return Expired()
        case Stop.TIMEOUT:
            if isinstance(outcome, Failed):
                return Failed(outcome.error, outcome.retry_after_ms, timed_out=True)
            return outcome or Failed(f"timed out after {timeout_seconds:g} s", timed_out=True)
        case Stop.SHUTDOWN:
            # An error that being stopped brought about is not the job's.
            return Released(reason="shutdown") if isinstance(outcome, Failed | Crashed | None) else outcome
    assert_never(stop)


def _is_settled(outcome: Outcome) -> bool:
    """Whether nothing of the job is left to run."""
    match outcome:
        case Completed() | Aborted() | Discarded() | Cancelled() | Undecodable() | Expired():
            return True
        case Failed() | Crashed() | Snoozed() | Released() | GivenBack() | LimitMet() | Split():
            return False
    assert_never(outcome)


def error_text(error: BaseException) -> str:
    """Type and message, and before them the last frames of the traceback, from where the application's code
    begins."""
    try:
        told = traceback.TracebackException.from_exception(error, limit=-_FRAMES)
        ours = takewhile(lambda frame: frame.filename.startswith(_OWN_CODE), told.stack)
        del told.stack[: len(list(ours))]
        return clean("".join(told.format()).rstrip("\n"))
    except BaseException:  # noqa: BLE001  an exception whose own text raises, or a stack with no room left
        return type(error).__name__


def words(reason: object) -> str:
    """What a handler gave as its reason, as a text that can be stored, whatever it gave: often an exception.
    None is none."""
    try:
        return shorten(clean("" if reason is None else str.__str__(str(reason))))
    except BaseException:  # noqa: BLE001  the text of an object is the application's code
        return type(reason).__name__


def _limit_met(error: BaseException, counter: object, delay_ms: int) -> Outcome:
    """A limit that somebody else has. A name that no counter can have is a mistake in the handler."""
    if counter is None or counter == "":
        return LimitMet("", delay_ms)
    try:
        key = names.validate_words("counter", counter, 2 * names.MAX_COUNTER_VALUE)
        names.validate_counter_name(key.partition("/")[0])
    except InvalidArgument as wrong:
        return Failed(f"{error_text(error)}\n{error_text(wrong)}", retry_after_ms=delay_ms)
    return LimitMet(key, delay_ms)
