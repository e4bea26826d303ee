"""Connections that only read. A question is one short transaction: no snapshot is held between two, so that
the log can be folded.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from tessera.model.errors import StoreClosed
from tessera.store.sqlite import connection as connections
from tessera.store.sqlite.connection import is_broken, translated
from tessera.store.sqlite.reads import Reads

T = TypeVar("T")

KEPT: Final = 4
"""Idle connections kept open."""


class Readers:
    """A small pool. Callers read in their own thread; any number may at once."""

    def __init__(self, path: str, busy_timeout_ms: int, now: Callable[[], int]) -> None:
        self._path = path
        self._busy_timeout_ms = busy_timeout_ms
        self._now = now
        self._condition = threading.Condition()
        self._identity = (0, 0)
        self._idle: list[sqlite3.Connection] = []
        self._lent = 0
        self._is_paused = False
        self._is_closed = False

    def read(self, question: Callable[[Reads], T]) -> T:
        """Ask within one snapshot."""
        connection = self._take()
        try:
            connection.execute("BEGIN")
            answer = question(Reads(connection.cursor(), self._now()))
            connection.execute("COMMIT")
        except BaseException as error:
            self._give_back(connection, is_sound=_taken_back(connection) and not is_broken(error))
            meant = translated(error)
            if meant is error:
                raise
            raise meant from error
        self._give_back(connection, is_sound=True)
        return answer

    def pause(self, seconds: float) -> bool:
        """Lend nothing more, close what is idle, and wait for what is lent. False = something stayed lent."""
        with self._condition:
            self._is_paused = True
            self._close_idle()
            return self._condition.wait_for(lambda: self._lent == 0, seconds)

    def resume(self) -> None:
        """Lend again."""
        with self._condition:
            self._is_paused = False
            self._condition.notify_all()

    def close(self) -> None:
        """Close what is idle now and the rest when it comes back."""
        with self._condition:
            self._is_closed = True
            self._close_idle()
            self._condition.notify_all()

    def disown(self) -> list[sqlite3.Connection]:
        """In a forked child: the parent's connections, which are not to be used and not to be closed."""
        idle, self._idle = self._idle, []
        return idle

    def _take(self) -> sqlite3.Connection:
        with self._condition:
            self._condition.wait_for(lambda: not self._is_paused)
            if self._is_closed:
                raise StoreClosed
            identity = connections.identity_of(self._path)
            if identity != self._identity:
                self._identity = identity
                self._close_idle()
            self._lent += 1
            if self._idle:
                return self._idle.pop()
        try:
            return connections.open_reader(self._path, busy_timeout_ms=self._busy_timeout_ms)
        except BaseException as error:
            with self._condition:
                self._lent -= 1
                self._condition.notify_all()
            meant = translated(error)
            if meant is error:
                raise
            raise meant from error

    def _give_back(self, connection: sqlite3.Connection, *, is_sound: bool) -> None:
        with self._condition:
            self._lent -= 1
            keep = is_sound and len(self._idle) < KEPT and not (self._is_paused or self._is_closed)
            if keep:
                self._idle.append(connection)
            else:
                connection.close()
            self._condition.notify_all()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()


def _taken_back(connection: sqlite3.Connection) -> bool:
    """End the transaction of a question that failed. False = not even that works."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        return False
    return True
