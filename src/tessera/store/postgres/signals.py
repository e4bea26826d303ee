"""Who wakes whom between processes: LISTEN and NOTIFY, at most one notification in a moment a process.

Every NOTIFY takes a lock that serialises commits (one an insert cost 62 % of the inserts of 32 connections).
So the first write of a moment notifies (the leading edge), those that follow owe one, and a thread sends it
at the end of the moment (the trailing edge): nothing that was written is left without a signal after it. The
same thread listens, for all handles of the process. Where LISTEN does not deliver, behind a pooler in
transaction mode, and while the connection is lost, the handles poll.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import select
import socket
import threading
import weakref
from contextlib import suppress
from typing import Any, Final

import psycopg

from tessera import seam
from tessera.store.driver import Doorbell

MOMENT_SECONDS: Final = 0.010
PROBE_SECONDS: Final = 2.0
AGAIN_SECONDS: Final = 0.5
"""Between attempts to connect anew, on average; until then the handles poll."""
END_SECONDS: Final = 2.0
"""How long an end waits for what is owed to be sent."""
POLL_SECONDS: Final = 0.1
"""An empty look costs the server some 0.1 ms: ten a second are a thousandth of a core a handle, and nobody
waits for longer than he would notice."""
_NOTIFY: Final = "SELECT pg_notify(%s, %s)"
_log = logging.getLogger("tessera.store")


class Signals:
    """See the module. One for all handles of a store in this process; made without connecting."""

    bell: Doorbell
    """Rings when something may have changed."""

    def __init__(self, conninfo: str, channel: str, *, listen: bool) -> None:
        self.channel = channel
        self._conninfo = conninfo
        self._listen = listen
        self._notified_at = -math.inf
        self._nonce = ""
        self._closed = False
        self._is_told = False
        self._has_said_that_it_polls = False
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._thread: threading.Thread | None = None
        self._owes = False
        self._delivers = False
        self._begin_anew()
        _all.add(self)

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
            was_owing, self._owes = self._owes, True
        self._start()
        if not was_owing:
            self._nudge()

    @property
    def delivers(self) -> bool:
        """Whether notifications arrive."""
        return self._delivers

    @property
    def poll_seconds(self) -> float:
        """How long a wait may last without a look: for ever while signals arrive."""
        return math.inf if self._delivers else POLL_SECONDS

    def begin(self) -> None:
        """Somebody is going to wait: listen from now on."""
        if self._listen:
            self._start()
        else:
            self._say_that_it_polls("listen=0")

    def close(self) -> None:
        """End the thread, after what it owes; of a server that does not answer nobody waits for long."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            atexit.unregister(self.close)
            self._nudge()
            if thread is not threading.current_thread():
                thread.join(END_SECONDS)
        self.bell.ring()

    def _begin_anew(self) -> None:
        """As it is before anything was sent: at first, and in a forked child, where the parent's thread is
        not, and may have held the locks for ever. What the parent owes, the parent pays.
        """
        self.bell = Doorbell()
        self._lock = threading.Lock()
        self._owes = False
        self._delivers = False
        self._thread = None
        for end in self._wake or ():
            end.close()
        self._wake = None

    def _start(self) -> None:
        with self._lock:
            if self._closed or (self._thread is not None and self._thread.is_alive()):
                return
            self._wake = ear, mouth = socket.socketpair()
            ear.setblocking(False)
            mouth.setblocking(False)
            self._thread = seam.start_thread(self._run, "tessera-postgres-signals")
            atexit.register(self.close)  # a script that writes and ends leaves nothing owed

    def _nudge(self) -> None:
        wake = self._wake
        if wake is not None:
            with suppress(OSError):  # it is full, and so not overlooked, or it is ending
                wake[1].send(b"!")

    # The thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._wake is not None
        with self._wake[0] as ear, self._wake[1]:
            try:
                self._keep_serving(ear)
            finally:
                self._stop_delivering()

    def _keep_serving(self, ear: socket.socket) -> None:
        while not self._closed or self._owes:
            try:
                with self._connected() as connection:
                    self._serve(connection, ear)
            except (psycopg.Error, OSError) as error:
                if self._closed:
                    return
                self._tell(error)
            self._stop_delivering()
            self._rest(ear)

    def _connected(self) -> psycopg.Connection[Any]:
        """Nothing is prepared: behind a pooler the name may be another client's."""
        return psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=None)

    def _serve(self, connection: psycopg.Connection[Any], ear: socket.socket) -> None:
        connection.add_notify_handler(lambda notice: self._heard(notice.payload))
        if self._listen and not self._closed:
            self._probe(connection)
        self._is_told = False
        while not self._closed:
            self._pay(connection)
            _sleep_until_something_comes(self._due_in(), connection, ear)
            self._take_in(connection)
        self._pay(connection)

    def _probe(self, connection: psycopg.Connection[Any]) -> None:
        """Whether a notification comes to who only listens. Another connection sends it, and this one sends
        nothing meanwhile: a pooler hands a client its own notification back, or anybody's to who asks the
        server something, and nobody's to who just waits.
        """
        self._nonce = seam.random_bytes(8).hex()
        connection.execute(f'LISTEN "{self.channel}"')
        with self._connected() as other:
            other.execute(_NOTIFY, (self.channel, self._nonce))
            end = seam.monotonic() + PROBE_SECONDS
            while not self._delivers and seam.monotonic() < end and not self._closed:
                self._pay(other)
                _sleep_until_something_comes(0.02, connection)
                self._take_in(connection)
        if not self._delivers and not self._closed:
            self._say_that_it_polls("a pooler in transaction mode?")
            # With some luck it reaches the server connection that still listens for us.
            connection.execute(f'UNLISTEN "{self.channel}"')

    def _take_in(self, connection: psycopg.Connection[Any]) -> None:
        """Read what came, without asking for anything. Raises psycopg.OperationalError if the server left."""
        connection.pgconn.consume_input()
        while (notice := connection.pgconn.notifies()) is not None:
            self._heard(notice.extra.decode())

    def _heard(self, payload: str) -> None:
        if payload and payload == self._nonce:
            self._delivers = True
        self.bell.ring()

    def _due_in(self) -> float | None:
        """Seconds until what is owed is to be sent."""
        with self._lock:
            if not self._owes:
                return None
            return max(0.0, self._notified_at + MOMENT_SECONDS - seam.monotonic())

    def _pay(self, connection: psycopg.Connection[Any]) -> None:
        """Send what is owed, if its time has come."""
        now = seam.monotonic()
        with self._lock:
            if not self._owes or (now < self._notified_at + MOMENT_SECONDS and not self._closed):
                return
            self._owes = False
            self._notified_at = now
        try:
            connection.execute(_NOTIFY, (self.channel, ""))
        except psycopg.Error:
            with self._lock:
                self._owes = True
            raise

    def _stop_delivering(self) -> None:
        """Whoever sleeps may have missed something, and polls from now on."""
        self._delivers = False
        self.bell.ring()

    def _say_that_it_polls(self, why: str) -> None:
        if not self._has_said_that_it_polls:
            self._has_said_that_it_polls = True
            milliseconds = POLL_SECONDS * 1_000
            _log.warning("LISTEN does not deliver here (%s): workers poll every %d ms", why, milliseconds)

    def _tell(self, error: BaseException) -> None:
        if not self._is_told:
            self._is_told = True
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            _log.warning("signals from PostgreSQL stopped, polling until they are back: %s", said)

    def _rest(self, ear: socket.socket) -> None:
        """Before connecting again. Writers that nudge meanwhile, and a fleet that lost its server at one
        moment, must not make it a storm.
        """
        end = seam.monotonic() + AGAIN_SECONDS * (0.5 + seam.random())
        while not self._closed and (left := end - seam.monotonic()) > 0:
            _sleep_until_something_comes(left, None, ear)


_all: weakref.WeakSet[Signals] = weakref.WeakSet()


def _begin_anew_in_a_child() -> None:
    for signals in list(_all):
        signals._begin_anew()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_begin_anew_in_a_child)


def _sleep_until_something_comes(
    seconds: float | None, connection: psycopg.Connection[Any] | None, ear: socket.socket | None = None
) -> None:
    """From the server, or as a nudge, which is taken in; or until the time is over. (With poll: select cannot
    wait for a file numbered above 1,023.)
    """
    poll = select.poll()
    for one in (connection, ear):
        if one is not None:
            poll.register(one.fileno(), select.POLLIN)
    poll.poll(None if seconds is None else math.ceil(seconds * 1_000))
    if ear is not None:
        with suppress(BlockingIOError):
            while ear.recv(4_096):
                continue
