"""How fast this worker gets through its jobs, and so how many are worth holding ahead."""

from __future__ import annotations

from typing import Final

from tessera import seam

_WINDOW: Final = 0.05
_MOST: Final = 500
_SLOW_SECONDS: Final = 1.0


class Rate:
    """Ends a second over short windows, and how long a run takes; both weigh the last half of what they saw
    most."""

    def __init__(self) -> None:
        self._since = seam.monotonic()
        self._count = 0
        self._per_second = 0.0
        self._seconds = 0.0

    def ended(self, seconds: float) -> None:
        """A run is through that took so long."""
        self._count += 1
        self._seconds += (seconds - self._seconds) * 0.1

    def forget(self) -> None:
        """Buffered jobs had to be given back: hold none ahead until the rate shows again."""
        self._per_second = 0.0
        self._count = 0
        self._since = seam.monotonic()

    def ahead(self) -> int:
        """Jobs worth holding beyond the free slots: a second of work at most, none where one takes over a
        second."""
        now = seam.monotonic()
        passed = now - self._since
        if passed >= _WINDOW:
            self._per_second = (self._per_second + self._count / passed) / 2
            self._since = now
            self._count = 0
        return 0 if self._seconds > _SLOW_SECONDS else min(_MOST, int(self._per_second))
