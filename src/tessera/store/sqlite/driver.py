"""Threads and event loops: who holds the writer, who waits for it, and how an answer gets back.

One connection writes. Callers put their verbs in a line, and whoever finds the writer free leads: takes all
that wait, runs them in one transaction, answers them and hands the lead to the next one who waits
meanwhile. There is no timer: alone, a verb runs at once; under load a batch is what came while the former
one was on its way to the disk. A blocking caller leads in its own thread, so that the blocking colour needs
none of ours; for an event loop a thread of ours leads, one hop for a whole batch.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

from tessera import seam
from tessera.model.errors import StoreClosed

T = TypeVar("T")

BATCH_LIMIT: Final = 256
"""Most verbs in one transaction: it bounds how long the writer is held."""
_JOIN_SECONDS: Final = 5.0


class Ticket(Generic[T]):
    """One verb in the line, and its answer."""

    __slots__ = (
        "adds", "alone", "answered", "error", "holds", "leads", "loop", "sleeper", "value", "verb",
        "withdrawn",
    )  # fmt: skip

    def __init__(
        self, verb: Callable[[Any], T], *, adds: bool = False, alone: bool = False, holds: bool = False
    ) -> None:
        self.verb = verb
        self.adds = adds
        """Whether it may store new jobs or bytes: refused first when the disk is full."""
        self.alone = alone
        """Whether it runs outside a transaction and in no company."""
        self.holds = holds
        """Whether it only wants the lead, which nobody else can have for it."""
        self.value: T | None = None
        self.error: BaseException | None = None
        self.answered = False
        self.leads = False
        self.withdrawn = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.sleeper: Any = None
        """What its caller sleeps on: a lock in a thread, a future in an event loop."""

    def answer(self, value: T) -> None:
        self.value = value
        self.answered = True

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.answered = True

    def outcome(self) -> T:
        """The answer, or what stands in its place as an exception."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # answered, so it is what the verb returned


Batch: TypeAlias = Sequence[Ticket[Any]]


class Line:
    """The line in front of the writer. ``run`` gets a batch and answers every ticket in it; it raises only
    what interrupts a thread.
    """

    def __init__(self, run: Callable[[Batch], None], crew: Crew) -> None:
        self._run = run
        self._crew = crew
        self._mutex = threading.Lock()
        self._waiting: deque[Ticket[Any]] = deque()
        self._is_led = False
        self._is_shut = False

    def run(self, ticket: Ticket[T], *, is_last: bool = False) -> T:
        """Have a verb run, in this thread or by whoever leads. Blocks. After the last one the line takes no
        more (StoreClosed).
        """
        ticket.sleeper = threading.Lock()
        ticket.sleeper.acquire()
        if not self._join(ticket, is_last=is_last):
            try:
                ticket.sleeper.acquire()
            except BaseException:
                self._withdraw(ticket)
                raise
        if ticket.leads:
            self._lead()
        return ticket.outcome()

    async def arun(self, ticket: Ticket[T]) -> T:
        """Have a verb run by a thread of ours, or by a blocking caller who leads just then."""
        ticket.loop = asyncio.get_running_loop()
        ticket.sleeper = ticket.loop.create_future()
        if self._join(ticket):
            self._crew.put(self._lead)
        await ticket.sleeper
        return ticket.outcome()

    def hold(self, seconds: float) -> bool:
        """Take the lead and keep it, so that nothing runs until ``resume``. False = it stayed busy for so
        long.
        """
        ticket: Ticket[None] = Ticket(lambda _: None, holds=True)
        ticket.sleeper = threading.Lock()
        ticket.sleeper.acquire()
        if not self._join(ticket) and not ticket.sleeper.acquire(timeout=seconds):
            self._withdraw(ticket)
            return False
        with self._mutex:
            self._waiting.remove(ticket)
        return True

    def resume(self) -> None:
        """Give the lead to whoever waits."""
        self._hand_over()

    def _join(self, ticket: Ticket[Any], *, is_last: bool = False) -> bool:
        """Stand in the line. True = nobody leads, so this one does."""
        with self._mutex:
            if self._is_shut:
                raise StoreClosed
            self._is_shut = is_last
            self._waiting.append(ticket)
            ticket.leads = not self._is_led
            self._is_led = True
            return ticket.leads

    def _lead(self) -> None:
        batch = self._next_batch()
        try:
            if batch:
                self._run(batch)
        except Exception as error:  # noqa: BLE001 - no caller may be left waiting
            for ticket in batch:
                if not ticket.answered:
                    ticket.fail(error)
        except BaseException:
            self._take_back(batch)
            raise
        finally:
            _deliver([ticket for ticket in batch if ticket.answered])
            self._hand_over()

    def _next_batch(self) -> list[Ticket[Any]]:
        """The verbs at the head that may share a transaction, or one that stands alone."""
        batch: list[Ticket[Any]] = []
        with self._mutex:
            waiting = self._waiting
            while waiting and len(batch) < BATCH_LIMIT:
                ticket = waiting[0]
                if ticket.holds or (batch and (ticket.alone or batch[0].alone)):
                    break
                waiting.popleft()
                if not (ticket.withdrawn or (ticket.loop is not None and ticket.sleeper.cancelled())):
                    batch.append(ticket)
        return batch

    def _take_back(self, batch: Batch) -> None:
        """The leader was interrupted (Ctrl-C): what it had not done for others is still to be done."""
        with self._mutex:
            for ticket in reversed(batch):
                is_mine = ticket.leads and ticket.loop is None
                if not ticket.answered and not is_mine:
                    self._waiting.appendleft(ticket)

    def _hand_over(self) -> None:
        with self._mutex:
            while self._waiting and self._waiting[0].withdrawn:
                self._waiting.popleft()
            if not self._waiting:
                self._is_led = False
                return
            heir = self._waiting[0]
            if heir.loop is None:
                heir.leads = True
                heir.sleeper.release()
                return
        self._crew.put(self._lead)

    def _withdraw(self, ticket: Ticket[Any]) -> None:
        """Its caller was interrupted while waiting. If the lead had just come to it, the lead goes on."""
        with self._mutex:
            ticket.withdrawn = True
            leads = ticket.leads
        if leads:
            self._hand_over()


def _deliver(batch: Batch) -> None:
    """Wake the callers; all of one event loop by one call."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Ticket[Any]]] = {}
    for ticket in batch:
        if ticket.loop is not None:
            by_loop.setdefault(ticket.loop, []).append(ticket)
        elif not ticket.leads:
            ticket.sleeper.release()
    for loop, tickets in by_loop.items():
        _call_in(loop, _wake, tickets)


def _wake(tickets: Batch) -> None:
    for ticket in tickets:
        if not ticket.sleeper.done():
            ticket.sleeper.set_result(None)


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: object) -> None:
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        return  # that loop is closed, so nobody waits in it


class Crew:
    """A few threads that take calls from a queue; started when first needed. The calls handle their own
    errors.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._is_stopped = False

    def put(self, call: Callable[[], None]) -> None:
        """Have one of the threads do it. Raises StoreClosed after ``stop``."""
        with self._lock:
            if self._is_stopped:
                raise StoreClosed
            if self._idle == 0 and len(self._threads) < self._size:
                self._threads.append(seam.start_thread(self._work, f"{self._name}-{len(self._threads) + 1}"))
            else:
                self._idle = max(0, self._idle - 1)
            self._calls.put(call)

    def stop(self) -> None:
        """Let the threads finish what was put in, and end. Called from one of them it does not wait for
        that one.
        """
        with self._lock:
            self._is_stopped = True
            threads = list(self._threads)
        for _ in threads:
            self._calls.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_SECONDS)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            with self._lock:
                self._idle += 1


async def hop(crew: Crew, work: Callable[[], T]) -> T:
    """Run blocking work in one of the crew's threads and come back with its answer."""
    loop = asyncio.get_running_loop()
    sleeper: asyncio.Future[None] = loop.create_future()
    ticket: Ticket[T] = Ticket(lambda _: work())
    ticket.sleeper = sleeper

    def run() -> None:
        try:
            ticket.answer(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is awaited
            ticket.fail(error)
        _call_in(loop, _wake, [ticket])

    crew.put(run)
    await sleeper
    return ticket.outcome()


class Watch:
    """A thread that looks for what other processes did, as long as somebody waits for it."""

    FAST_SECONDS: Final = 0.005
    SLOW_SECONDS: Final = 0.025
    QUIET_SECONDS: Final = 2.0
    """After so long without a change it looks more rarely: 200 looks a second cost 1 % of a core, 40 next
    to nothing.
    """

    def __init__(self, look: Callable[[], bool]) -> None:
        self._look = look
        self._condition = threading.Condition()
        self._listeners = 0
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def __enter__(self) -> None:
        with self._condition:
            self._listeners += 1
            if self._thread is None and not self._is_stopped:
                self._thread = seam.start_thread(self._watch, "tessera-sqlite-watch")
            self._condition.notify_all()

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._listeners -= 1

    def stop(self) -> None:
        """End the thread, and wait for it."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    def _watch(self) -> None:
        changed_at = seam.monotonic()
        while self._pause(changed_at):
            if self._look():
                changed_at = seam.monotonic()

    def _pause(self, changed_at: float) -> bool:
        """Wait until it is time to look again. False = stopped."""
        is_quiet = seam.monotonic() - changed_at > self.QUIET_SECONDS
        with self._condition:
            self._condition.wait_for(
                lambda: self._is_stopped, self.SLOW_SECONDS if is_quiet else self.FAST_SECONDS
            )
            self._condition.wait_for(lambda: self._is_stopped or self._listeners > 0)
            return not self._is_stopped
