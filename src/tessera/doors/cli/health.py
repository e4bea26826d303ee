"""What a container platform asks of a worker: a loopback port that answers, and a file that is there while
the worker is ready.

Both run in threads of their own: a handler that keeps the event loop busy makes the worker slow, not dead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from tessera import seam
from tessera.model.errors import ConfigError

LOOPBACK: Final = "127.0.0.1"
LOOK_SECONDS: Final = 0.25
"""How late the file may be."""


@dataclass(frozen=True)
class Vitals:
    """Alive: a restart would not help. Ready: it takes work."""

    alive: bool
    ready: bool


class HealthPort:
    """``/live`` and ``/ready`` over HTTP: 200 or 503, and both facts as JSON. Raises ConfigError for a port
    that is taken."""

    def __init__(self, port: int, vitals: Callable[[], Vitals]) -> None:
        try:
            self._server = HTTPServer((LOOPBACK, port), _handler(vitals))
        except OSError as error:
            raise ConfigError([f"health_port: {LOOPBACK}:{port} cannot be had: {error.strerror}"]) from error
        self.port: int = self._server.server_address[1]
        self._thread = seam.start_thread(lambda: self._server.serve_forever(LOOK_SECONDS), "tessera-health")

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(vitals: Callable[[], Vitals]) -> type[BaseHTTPRequestHandler]:
    class Probe(BaseHTTPRequestHandler):
        timeout: ClassVar[float | None] = (
            2.0  # one client that says nothing must not keep the others waiting for long
        )

        def do_GET(self) -> None:
            now = vitals()
            answers = {"/live": now.alive, "/ready": now.ready, "/": now.alive and now.ready}
            path = self.path.partition("?")[0]
            if path not in answers:
                self.send_error(404, "there are /live and /ready")
                return
            body = msgspec.json.encode({"alive": now.alive, "ready": now.ready})
            self.send_response(200 if answers[path] else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815  named by the protocol

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  named by the base class
            """A probe a second is no news."""

    return Probe


class ReadyFile:
    """A file that is there while the worker is ready."""

    def __init__(self, path: Path, vitals: Callable[[], Vitals]) -> None:
        self.path = path
        self._vitals = vitals
        self._ended = threading.Event()
        self._remove()
        if not path.parent.is_dir():
            raise ConfigError([f"ready_file: there is no folder {path.parent}"])
        self._thread = seam.start_thread(self._follow, "tessera-ready-file")

    def close(self) -> None:
        """Remove the file."""
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while True:
            if self._vitals().ready:
                with suppress(OSError):  # a full disk is told by what matters more
                    self.path.touch()
            else:
                self._remove()
            if self._ended.wait(LOOK_SECONDS):
                self._remove()
                return

    def _remove(self) -> None:
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
