"""Who watches the worker: a thread that says in the log, with a stack, what no longer moves.

Three things: an event loop that does not turn (some handler computes without an await), a claim loop that has
not succeeded for long, and a handler that goes on although it was asked to stop. It ends nothing by itself.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from io import StringIO

import asyncio  # isort: skip

from tessera import seam
from tessera.worker.attempt import Attempt
from tessera.worker.settings import WorkerSettings
from tessera.worker.slots import who

logger = logging.getLogger("tessera.worker")


class Watchdog:
    """See the module. Made in the event loop that it watches."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        claims_alive_at: Callable[[], float],
        attempts: Callable[[], list[Attempt]],
        on_health: Callable[[bool], None],
    ) -> None:
        self._settings = settings
        self._claims_alive_at = claims_alive_at
        self._attempts = attempts
        self._on_health = on_health
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._turned_at = seam.monotonic()
        self._asked = False
        self._lags_since: float | None = None
        self._says_lag_at = 0.0
        self._closed = threading.Event()
        self._every = min(
            0.5, settings.lag_seconds / 4, settings.claim_watchdog_seconds / 4, settings.hang_seconds / 4
        )
        self.healthy = True

    def start(self) -> None:
        """Begin to watch, in a thread."""
        seam.start_thread(self._run, "tessera-watchdog")

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def _run(self) -> None:
        last = seam.monotonic()
        while not self._closed.wait(self._every):
            now = seam.monotonic()
            if now - last > self._settings.lag_seconds:
                # This thread was stopped as well: the process was, and the loop is not to blame.
                self._turned_at = now
                self._asked = False
            last = now
            try:
                self._look_at_the_loop(now)
                self._look_at_the_claims(now)
                self._look_at_the_handlers(now)
            except Exception:
                logger.exception("the worker's watchdog stumbled")

    def _look_at_the_loop(self, now: float) -> None:
        if self._asked:
            lag = now - self._turned_at
            if lag > self._settings.lag_seconds and now >= self._says_lag_at:
                self._says_lag_at = now + max(lag, 1.0)  # each time at least twice as late as before
                self._lags_since = self._turned_at
                logger.error(
                    "the event loop has not turned for %.1f s; a handler blocks it here:\n%s",
                    lag,
                    stack_of(self._loop_thread),
                )
            return
        if self._lags_since is not None:
            logger.warning("the event loop turns again")
            self._lags_since = None
            self._says_lag_at = 0.0
        self._asked = True
        self._turned_at = now
        try:
            self._loop.call_soon_threadsafe(self._turned)
        except RuntimeError:  # closed
            self._closed.set()

    def _turned(self) -> None:
        self._asked = False

    def _look_at_the_claims(self, now: float) -> None:
        healthy = now - self._claims_alive_at() <= self._settings.claim_watchdog_seconds
        if healthy == self.healthy:
            return
        self.healthy = healthy
        if healthy:
            logger.info("the worker claims again")
        else:
            logger.error(
                "nothing could be claimed for %.0f s; this worker is of no use until it can",
                self._settings.claim_watchdog_seconds,
            )
        self._on_health(healthy)

    def _look_at_the_handlers(self, now: float) -> None:
        for attempt in self._attempts():
            ignored = now - attempt.stopped_at
            if attempt.stop is None or attempt.hung or ignored <= self._settings.hang_seconds:
                continue
            attempt.hung = True
            logger.error(
                "a handler goes on %.0f s after it was asked to stop (%s); it is here:\n%s",
                ignored,
                attempt.stop,
                _where(attempt),
                extra=who(attempt),
            )


def stack_of(thread: int) -> str:
    """Where a thread is now."""
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)) if frame is not None else "(the thread is gone)"


def _where(attempt: Attempt) -> str:
    if attempt.thread:
        return stack_of(attempt.thread)
    if attempt.runner is not None and attempt.in_handler:
        text = StringIO()
        attempt.runner.print_stack(file=text)
        return text.getvalue()
    return "(in a child process)"
