"""SIGTERM and SIGINT for a process that is a worker and nothing else. Embedded workers leave signals to their
application."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Final, Protocol, Self

logger = logging.getLogger("tessera.worker")

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stoppable(Protocol):
    """What can be stopped in two ways."""

    def stop(self, grace: float | None = None) -> None: ...

    def stop_now(self) -> None: ...


@contextmanager
def stops_on_signals(worker: Stoppable) -> Iterator[None]:
    """While inside: the first signal stops the worker gracefully, the second at once. Only in the main
    thread."""
    loop = asyncio.get_running_loop()
    seen = 0

    def on_signal(number: int) -> None:
        nonlocal seen
        seen += 1
        name = signal.Signals(number).name
        if seen == 1:
            logger.info(
                "%s: no more jobs are claimed, and those that run may end; once more to stop at once", name
            )
            worker.stop()
        else:
            logger.warning("%s again: what runs is stopped now", name)
            worker.stop_now()

    def from_outside(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(on_signal, number)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        try:
            loop.add_signal_handler(number, on_signal, number)
        except NotImplementedError:  # Windows
            signal.signal(number, from_outside)
    try:
        yield
    finally:
        for number in SIGNALS:
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, before[number])


class Runnable(Stoppable, Protocol):
    """A worker."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def run(self) -> None: ...


def run_until_signalled(worker: Runnable) -> int:
    """Run a worker in this thread, which must be the main one, until a signal ends it; its exit status. On
    uvloop where that is installed."""
    with asyncio.Runner(loop_factory=_uvloop()) as runner:
        runner.run(_until_signalled(worker))
    return 0


async def _until_signalled(worker: Runnable) -> None:
    with stops_on_signals(worker):
        async with worker:
            await worker.run()


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
