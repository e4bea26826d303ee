"""Who wakes whom between processes: LISTEN and NOTIFY, at most one notification in a moment a process.

Every NOTIFY takes a lock that serialises commits (one an insert cost 62 % of the inserts of 32 connections).
So the first write of a moment notifies (the leading edge), those that follow owe one, and a thread sends it
at the end of the moment (the trailing edge): nothing that was written is left without a signal after it. The
same thread listens, for all handles of the process. Where LISTEN does not deliver, behind a pooler in
transaction mode, the handles poll.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from contextlib import suppress
from typing import Any, Final

import psycopg

from tessera import seam
from tessera.store.driver import Doorbell

MOMENT_SECONDS: Final = 0.010
PROBE_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 0.5
"""Between attempts to connect anew; until then the handles poll."""
POLL_SECONDS: Final = 0.1
_log = logging.getLogger("tessera.store")


class Signals:
    """See the module. One for all handles of a store in this process; made without connecting."""

    def __init__(self, conninfo: str, channel: str, *, listen: bool) -> None:
        self.channel = channel
        self.bell = Doorbell()
        self._conninfo = conninfo
        self._listen = listen
        self._lock = threading.Lock()
        self._notified_at = -1.0
        self._owes = False
        self._delivers = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._closed = False
        self._probed = threading.Event()

    def may_notify(self) -> bool:
        """Whether a write is to bring a notification with it. If not, one is owed once it is committed."""
        now = seam.monotonic()
        with self._lock:
            if now - self._notified_at < MOMENT_SECONDS:
                return False
            self._notified_at = now
            return True

    def owe(self) -> None:
        """Something was committed without a notification: send one at the end of the moment."""
        with self._lock:
            self._owes = True
        self._start()
        self._nudge()

    @property
    def poll_seconds(self) -> float:
        """How long a wait may last without a look: for ever while signals arrive."""
        return float("inf") if self._delivers else POLL_SECONDS

    def begin(self) -> None:
        """Somebody is going to wait: listen from now on."""
        self._start()

    def close(self) -> None:
        """End the thread, after what it owes."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            self._nudge()
            if thread is not threading.current_thread():
                thread.join()
        self.bell.ring()

    def _start(self) -> None:
        with self._lock:
            if self._pid != os.getpid():
                self._thread, self._pid, self._delivers = None, os.getpid(), False
            if self._thread is None and not self._closed:
                self._wake = socket.socketpair()
                self._thread = seam.start_thread(self._run, "tessera-postgres-signals")

    def _nudge(self) -> None:
        if self._wake is not None:
            with suppress(OSError):  # it is ending
                self._wake[1].send(b"!")

    # The thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._wake is not None
        told = False
        with self._wake[0] as ear, self._wake[1]:
            while not self._closed:
                try:
                    with psycopg.connect(self._conninfo, autocommit=True) as connection:
                        self._serve(connection, ear)
                        told = False
                except (psycopg.Error, OSError) as error:
                    if not told and not self._closed:
                        _log.warning(
                            "signals from PostgreSQL stopped, polling until they are back: %s",
                            _first_line(error),
                        )
                        told = True
                self._delivers = False
                self.bell.ring()  # whoever sleeps may have missed something, and polls from now on
                if not self._closed:
                    _hear(ear, AGAIN_SECONDS)

    def _serve(self, connection: psycopg.Connection[Any], ear: socket.socket) -> None:
        connection.add_notify_handler(lambda notice: self._heard(notice.payload))
        if self._listen:
            self._probe(connection)
        while not self._closed:
            self._pay(connection)
            ready = select.select([connection.fileno(), ear.fileno()], [], [], None)[0]
            if ear.fileno() in ready:
                ear.recv(4096)
                self._wait_for_the_end_of_the_moment()
            else:
                connection.execute("SELECT 1")  # takes in the notices, and notices an end
        self._pay(connection)

    def _probe(self, connection: psycopg.Connection[Any]) -> None:
        """Whether a notification comes back to who listens."""
        nonce = seam.random_bytes(8).hex()
        self._nonce = nonce
        self._probed.clear()
        connection.execute(f'LISTEN "{self.channel}"')
        connection.execute("SELECT pg_notify(%s, %s)", (self.channel, nonce))
        end = seam.monotonic() + PROBE_SECONDS
        while not self._probed.is_set() and seam.monotonic() < end and not self._closed:
            select.select([connection.fileno()], [], [], 0.05)
            connection.execute("SELECT 1")
        self._delivers = self._probed.is_set()
        if self._delivers:
            self.bell.ring()
        else:
            _log.warning(
                "LISTEN does not deliver here (a pooler in transaction mode?): workers poll every %d ms",
                POLL_SECONDS * 1_000,
            )

    def _heard(self, payload: str) -> None:
        if payload and payload == getattr(self, "_nonce", ""):
            self._probed.set()
        self.bell.ring()

    def _pay(self, connection: psycopg.Connection[Any]) -> None:
        with self._lock:
            owes, self._owes = self._owes, False
            if owes:
                self._notified_at = seam.monotonic()
        if owes:
            try:
                connection.execute("SELECT pg_notify(%s, '')", (self.channel,))
            except psycopg.Error:
                with self._lock:
                    self._owes = True
                raise

    def _wait_for_the_end_of_the_moment(self) -> None:
        left = self._notified_at + MOMENT_SECONDS - seam.monotonic()
        if left > 0 and not self._closed:
            seam.pause(left)


def _hear(ear: socket.socket, seconds: float) -> None:
    if select.select([ear], [], [], seconds)[0]:
        ear.recv(4096)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
