"""Psycopg's errors as ours: what failed, whether anything can have been written, and what to do."""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import errors

from tessera.model.errors import (
    InvalidArgument,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TesseraError,
)


class Retry(StoreBusy):
    """The transaction lost against another; nothing was written. Begin it again."""


class Unprepared(Retry):
    """A prepared statement is gone, or another client's has its name; nothing was written."""


class Unasserted(Exception):
    """Something was not as a statement asserted; nothing was written. Look, and begin again."""


_LOST: Final = ("080", "57P")
_MISSING: Final = ("3F000", "42P01", "42883")
_BUSY: Final = ("55P03", "57014", "53300")
_FULL: Final = ("53100",)
_LOST_RACE: Final = ("40001", "40P01", "23514")
"""The last: a row on its way into ``done_other`` met the partition of its day, made that moment."""
_UNPREPARED: Final = ("26000", "42P05")
_DIVISION_BY_ZERO: Final = "22012"
_READ_ONLY: Final = "25006"
_FORBIDDEN: Final = "42501"


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone, or the server is about to be."""
    state = getattr(error, "sqlstate", None)
    if state:
        return str(state).startswith(_LOST) or _is_fatal(error)
    return isinstance(error, psycopg.OperationalError | OSError | psycopg.InterfaceError)


def _is_fatal(error: BaseException) -> bool:
    said = error.diag if isinstance(error, psycopg.Error) else None
    return said is not None and (said.severity_nonlocalized or said.severity) in ("FATAL", "PANIC")


def translated(error: BaseException, *, may_be_written: bool) -> BaseException:
    """Our error for one of the driver's; any other is handed back. ``may_be_written``: the flight that
    failed would have committed.
    """
    if not isinstance(error, psycopg.Error | OSError) and getattr(error, "sqlstate", None) is None:
        return error
    state = getattr(error, "sqlstate", None) or ""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if state in _LOST_RACE:
        return Retry(f"PostgreSQL gave way to others: {said}; nothing was written")
    if state in _UNPREPARED:
        return Unprepared(f"{said}; nothing was written")
    if state == _DIVISION_BY_ZERO:
        return Unasserted(said)
    return _typed(error, state, said, may_be_written=may_be_written)


def _typed(error: BaseException, state: str, said: str, *, may_be_written: bool) -> TesseraError:
    if is_lost(error):
        if may_be_written:
            return OutcomeUnknown(f"the connection to PostgreSQL was lost before the reply came: {said}")
        return StoreUnavailable(f"PostgreSQL does not answer: {said}")
    if state in _BUSY:
        return StoreBusy(f"PostgreSQL was held up for too long: {said}; nothing was written")
    if state in _FULL:
        return StoreFull(f"PostgreSQL has no room left: {said}; nothing was written")
    if state == _READ_ONLY:
        return StoreUnavailable(f"this PostgreSQL server only reads (a standby?): {said}")
    if state in _MISSING:
        return StoreError(f"Tessera's tables are not as they should be: {said}; run: tessera migrate")
    if state == _FORBIDDEN:
        return StoreError(f"the database user may not do this: {said}")
    if isinstance(error, errors.DataError) or state.startswith("22"):
        return InvalidArgument("value", f"PostgreSQL cannot store it: {said}")
    return StoreError(f"PostgreSQL refused: {said}")
