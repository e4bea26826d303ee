"""Connections and their settings, and what the driver's errors mean."""

from __future__ import annotations

import errno
import os
import sqlite3
from typing import Final
from urllib.parse import quote

import msgspec

from tessera import seam
from tessera.model.errors import (
    OutcomeUnknown,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TesseraError,
)

CHECKPOINT_PAGES: Final = 4_000
"""The log is folded into the file after so many pages (16 MiB): rarer than SQLite's own 1,000, since each
fold syncs twice.
"""
TIGHT_PAGES: Final = 100
"""The same where the disk has little room left."""
LOG_LIMIT_BYTES: Final = 64 * 1024 * 1024
CACHE_KIB: Final = 65_536
READER_CACHE_KIB: Final = 8_192
_BEGIN_WAL_TRIES: Final = 200

_NO_ROOM: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
"""``IOERR_WRITE`` is what a file size limit (RLIMIT_FSIZE) and some quotas look like."""
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_UNAVAILABLE: Final = frozenset(
    {
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)


def open_writer(path: str, *, synchronous: str, busy_timeout_ms: int, create: bool) -> sqlite3.Connection:
    """The connection that writes. It turns on the write-ahead log, which stays on in the file."""
    connection = _connect(path, busy_timeout_ms, create=create)
    try:
        _use_wal(connection)
        connection.execute(
            "PRAGMA synchronous = FULL" if synchronous == "full" else "PRAGMA synchronous = NORMAL"
        )
        fold_after(connection, CHECKPOINT_PAGES)
        _set(connection, "PRAGMA journal_size_limit = {}", LOG_LIMIT_BYTES)
        _set(connection, "PRAGMA cache_size = -{}", CACHE_KIB)
        connection.execute("PRAGMA foreign_keys = OFF")
    except BaseException:
        connection.close()
        raise
    return connection


def fold_after(connection: sqlite3.Connection, pages: int) -> None:
    """Fold the log into the file with the commit that takes it over so many pages."""
    _set(connection, "PRAGMA wal_autocheckpoint = {}", pages)


def open_reader(path: str, *, busy_timeout_ms: int) -> sqlite3.Connection:
    """A connection that can only read. The file must be there."""
    connection = _connect(path, busy_timeout_ms, create=False)
    try:
        connection.execute("PRAGMA query_only = ON")
        _set(connection, "PRAGMA cache_size = -{}", READER_CACHE_KIB)
    except BaseException:
        connection.close()
        raise
    return connection


def identity_of(path: str) -> tuple[int, int]:
    """Which file bears this name; (0, 0) = none.

    SQLite itself goes on with a file that was removed or replaced, and what is written there is lost. Asked
    by name: a descriptor of ours, once closed, would drop the locks of this process.
    """
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def size_of(path: str) -> int:
    """Bytes of the file, the log not counted; 0 = there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _connect(path: str, busy_timeout_ms: int, *, create: bool) -> sqlite3.Connection:
    # isolation_level None: the module begins nothing by itself. Threads take turns on a connection, by our
    # own locks.
    return sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=busy_timeout_ms / 1_000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )


def _set(connection: sqlite3.Connection, pragma: str, value: int) -> None:
    """A pragma takes no bound values; a whole number is all that is ever put in."""
    connection.execute(pragma.format(int(value)))


def _use_wal(connection: sqlite3.Connection) -> None:
    """Two processes that create one file at once can meet in the change of mode, where SQLite does not wait
    by itself.
    """
    for tries in range(_BEGIN_WAL_TRIES):
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if not is_busy(error) or tries + 1 == _BEGIN_WAL_TRIES:
                raise
            seam.pause(0.01)
    else:  # pragma: no cover - the last try raises
        raise StoreBusy
    if mode != "wal":
        raise StoreUnavailable(
            f"this file cannot use a write-ahead log (SQLite chose {mode!r}); put it on a local disk"
        )


# Errors -----------------------------------------------------------------------------------------------------


def _code(error: BaseException) -> int:
    return getattr(error, "sqlite_errorcode", 0) or 0


def is_busy(error: BaseException) -> bool:
    """Whether another connection held the lock for too long."""
    return _code(error) & 0xFF in _BUSY


def is_no_room(error: BaseException) -> bool:
    """Whether the disk, the quota or the file size limit is used up."""
    return _code(error) in _NO_ROOM or (isinstance(error, OSError) and lacks_room(error))


def lacks_room(error: OSError) -> bool:
    """The same, as the operating system says it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_broken(error: BaseException) -> bool:
    """Whether the connection had better be opened anew."""
    return _code(error) & 0xFF in _UNAVAILABLE


def translated(error: BaseException) -> BaseException:
    """Our error for one of the driver's, and for bytes in the file that nobody wrote so; any other comes back
    as it is.
    """
    if isinstance(error, UnicodeDecodeError | msgspec.DecodeError):
        return StoreError(f"what the file holds cannot be read ({type(error).__name__}); it is damaged")
    if isinstance(error, TesseraError) or not isinstance(error, sqlite3.Error):
        return error
    if is_busy(error):
        return StoreBusy(
            f"another writer held the file for too long ({error}); nothing was written, try again"
        )
    if is_no_room(error):
        return StoreFull(f"the disk has no room left ({error}); nothing was written")
    if _code(error) & 0xFF in _UNAVAILABLE:
        return StoreUnavailable(f"the database file cannot be used: {error}")
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return StoreClosed()
    return StoreError(f"SQLite refused a statement: {error}")


def translated_at_commit(error: BaseException) -> BaseException:
    """The same for an error of COMMIT itself.

    Without a lock or without room the mark that ends the transaction was never written. After any other
    failure (a sync that reports an error) it may be in the log, and count once the log is read again.
    """
    if isinstance(error, sqlite3.Error) and not is_busy(error) and not is_no_room(error):
        return OutcomeUnknown(
            f"the commit failed ({error}): its effect may or may not exist, ask before repeating"
        )
    return translated(error)
