"""Where stores meet threads and event loops: the doorbell. Nothing else in ``store/`` knows of either,
other ``driver.py`` apart.
"""

from __future__ import annotations

import asyncio
import threading


class Doorbell:
    """Wakes everybody who waits in this process, whatever thread or loop he waits in. A ring before a wait
    is not kept: whoever waits looks once more after he began to, or accepts a poll interval of delay.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rings = 0
        self._sleepers: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}

    @property
    def rings(self) -> int:
        """How often it rang; to be read before looking, and given to ``wait``."""
        return self._rings

    def ring(self) -> None:
        """Wake all sleepers. Callable from any thread."""
        with self._condition:
            self._rings += 1
            self._condition.notify_all()
            sleepers, self._sleepers = self._sleepers, {}
        for sleeper, loop in sleepers.items():
            try:
                loop.call_soon_threadsafe(_wake, sleeper)
            except RuntimeError:  # that loop is closed, so nobody sleeps in it
                continue

    def wait_blocking(self, seconds: float, since: int | None = None) -> bool:
        """Sleep in this thread until a ring, at most so long; at once if it rang after ``since``."""
        with self._condition:
            seen = self._rings if since is None else since
            return self._condition.wait_for(lambda: self._rings != seen, timeout=seconds)

    async def wait(self, seconds: float, since: int | None = None) -> bool:
        """Sleep in this event loop until a ring, at most so long; at once if it rang after ``since``."""
        loop = asyncio.get_running_loop()
        sleeper: asyncio.Future[None] = loop.create_future()
        with self._condition:
            if since is not None and since != self._rings:
                return True
            self._sleepers[sleeper] = loop
        try:
            async with asyncio.timeout(seconds):
                await sleeper
        except TimeoutError:
            return False
        finally:
            with self._condition:
                self._sleepers.pop(sleeper, None)
        return True


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
