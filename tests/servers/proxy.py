"""A loopback TCP proxy that stands between a client and its server, and fails when it is told to."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit, urlunsplit

CHUNK_BYTES = 65_536
LOOKS_EVERY = 0.1


class Proxy:
    """What comes is passed on, until a method says otherwise. It has threads and a port of its own."""

    def __init__(self, upstream: str) -> None:
        """``upstream``: the URL of the server."""
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "127.0.0.1", int(parts.port or 0))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(LOOKS_EVERY)
        self.port: int = self._listener.getsockname()[1]
        user = f"{parts.username}@" if parts.username else ""
        self.url = urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self.port}"))
        """The server's URL, by way of this proxy."""
        self.has_dropped = threading.Event()
        """Set when the first bytes of a reply were dropped, since the last ``drop_replies``."""
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._delay_seconds = 0.0
        self._bytes_left: int | None = None
        self._is_refusing = False

    # Failing ------------------------------------------------------------------------------------------------

    def pass_everything(self) -> None:
        """Replies come again, at once; what was dropped stays lost."""
        with self._lock:
            self._bytes_left = None
            self._delay_seconds = 0.0
            self._is_refusing = False

    def drop_replies(self, after_bytes: int = 0) -> None:
        """Requests still arrive, but from now on only so many bytes of all the replies come through. Nobody
        is told: not even that the server has hung up.
        """
        self.has_dropped.clear()
        with self._lock:
            self._bytes_left = after_bytes

    def cut(self) -> int:
        """Hang up on both sides of every connection; new ones may come. How many there were."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            _hang_up(pair)
        return len(pairs)

    def refuse(self) -> None:
        """From now on hang up on whoever connects, as a server that starts or stops does."""
        with self._lock:
            self._is_refusing = True

    def delay(self, seconds: float) -> None:
        """Hold back whatever arrives from now on for so long, in both directions."""
        with self._lock:
            self._delay_seconds = seconds

    @property
    def connections(self) -> int:
        """How many there are."""
        with self._lock:
            return len(self._pairs)

    # Passing ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Proxy:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._closed.set()
        self._threads[0].join()  # from here on no connection comes
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _start(self, work, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name=f"proxy-{self.port}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            if self._is_refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(self._upstream, timeout=5)
            except OSError:
                client.close()  # the upstream refuses, and so does its proxy
                continue
            server.settimeout(None)
            client.settimeout(None)
            pair = (client, server)
            for one in pair:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.add(pair)
            self._start(self._serve, pair)

    def _serve(self, pair: tuple[socket.socket, socket.socket]) -> None:
        """One connection, from its first byte to its end."""
        client, server = pair
        replies = threading.Thread(
            target=self._pass_replies, args=pair, name=f"proxy-{self.port}", daemon=True
        )
        replies.start()
        with suppress(OSError):
            while chunk := client.recv(CHUNK_BYTES):
                self._hold_back()
                server.sendall(chunk)
        _hang_up(pair)
        replies.join()
        with self._lock:
            self._pairs.discard(pair)
        client.close()
        server.close()

    def _pass_replies(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while chunk := server.recv(CHUNK_BYTES):
                self._hold_back()
                client.sendall(self._what_comes_through(chunk))
        with self._lock:
            is_silent = self._bytes_left == 0
        if not is_silent:
            _hang_up((client, server))

    def _hold_back(self) -> None:
        if self._delay_seconds:
            self._closed.wait(self._delay_seconds)

    def _what_comes_through(self, chunk: bytes) -> bytes:
        with self._lock:
            if self._bytes_left is None:
                return chunk
            passed = chunk[: self._bytes_left]
            self._bytes_left -= len(passed)
        if len(passed) < len(chunk):
            self.has_dropped.set()
        return passed


def _hang_up(pair: tuple[socket.socket, socket.socket]) -> None:
    """Wakes whoever reads of them; they are closed by the thread that serves them."""
    for one in pair:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
