"""A file of zeros beside the database, given up when the disk is full.

On a full disk not even a finish can be committed, since every commit first grows the log. So room is kept
for it: when a write meets a full disk the ballast goes, finishes and renewals go on, and nothing is
enqueued until the disk has room for the ballast again. Whether the ballast is there is what all processes
on the file agree by.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from tessera import seam
from tessera.store.sqlite.connection import lacks_room

RETRY_SECONDS: Final = 2.0
"""How often it is tried to put the ballast back."""
LOOK_SECONDS: Final = 1.0
TIGHT_SECONDS: Final = 60.0
TIGHT_BYTES: Final = 256 * 1024 * 1024
"""With less room than this the log is kept small."""
_ZEROS: Final = bytes(65_536)


class Ballast:
    """The spare file of one database. ``size_bytes`` 0 = there is none and nothing is refused."""

    def __init__(self, path: str, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._lock = threading.Lock()
        self._next_try = 0.0
        self._next_look = 0.0
        self._tight = False

    def allows_more(self) -> bool:
        """Whether jobs may be added: the ballast is there, or could be put back just now."""
        if self.size_bytes == 0 or os.path.exists(self.path):
            return True
        with self._lock:
            now = seam.monotonic()
            if now < self._next_try:
                return False
            self._next_try = now + RETRY_SECONDS
        return self.put_back()

    def put_back(self) -> bool:
        """Write the file. False = there is no room for it. A folder that takes no new file gets no ballast,
        and that is all.
        """
        if self.size_bytes == 0:
            return True
        try:
            self._write()
        except OSError as error:
            return not lacks_room(error)
        return True

    def free_bytes(self) -> int:
        """Room on the disk, as far as the system says."""
        if not hasattr(os, "statvfs"):  # Windows
            return self.size_bytes
        try:
            disk = os.statvfs(os.path.dirname(self.path))
        except OSError:
            return 0
        return disk.f_bavail * disk.f_frsize

    def is_tight(self) -> bool:
        """Whether the disk has little room left; looked up now and then."""
        if self.size_bytes == 0:
            return False
        now = seam.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._tight = self.free_bytes() < TIGHT_BYTES
        return self._tight

    def give_up(self) -> bool:
        """Make room for finishes. False = there was none; another process may have given it up."""
        with self._lock:
            now = seam.monotonic()
            self._next_try = now + RETRY_SECONDS
            # Under a quota the disk itself says nothing: what was met is remembered for a while.
            self._tight, self._next_look = True, now + TIGHT_SECONDS
        try:
            os.unlink(self.path)
        except OSError:
            return False
        return True

    def _write(self) -> None:
        if os.path.exists(self.path):
            return
        # Written whole under another name: two processes may do this at once, and half a ballast must not
        # be taken for one.
        partial = f"{self.path}.{os.getpid()}"
        try:
            with open(partial, "wb", buffering=0) as file:
                left = self.size_bytes
                while left > 0:
                    left -= file.write(_ZEROS[:left])
                os.fsync(file.fileno())
            os.replace(partial, self.path)
        except BaseException:
            if os.path.exists(partial):
                os.unlink(partial)
            raise
