"""What the handlers of this process are at. For display only: the store knows who runs, not which file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Board:
    """Names of what is being worked on, and how many bytes were read. Handlers write from their threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self._bytes = 0

    @contextmanager
    def at(self, job: str, name: str) -> Iterator[None]:
        """Show a name while the block runs."""
        with self._lock:
            self._names[job] = name
        try:
            yield
        finally:
            with self._lock:
                self._names.pop(job, None)

    def read(self, count: int) -> None:
        """So many bytes more were read."""
        with self._lock:
            self._bytes += count

    def names(self) -> list[str]:
        """What is being worked on, the longest first."""
        with self._lock:
            return list(self._names.values())

    @property
    def bytes_read(self) -> int:
        """Bytes read by all handlers together."""
        return self._bytes
