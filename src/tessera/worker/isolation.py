"""Isolated handlers: each attempt in a child process of its own, so that a crash is the job's and an end can
be forced.

A child is kept warm for the next job after an attempt that ended by itself. One that was asked to stop, or
died, is not used again. When a child ends, its whole process group is killed: what a handler started does not
outlive its attempt's child. A death by a signal that we did not send (segmentation fault, abort, the kernel
out of memory) is a crash of the job.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, assert_never

import msgspec

from tessera import seam
from tessera.model.errors import StaleLease
from tessera.model.job import Job
from tessera.model.outcomes import Crashed, Failed, Outcome
from tessera.worker import wire
from tessera.worker.attempt import Attempt, Stop
from tessera.worker.calls import LocalCalls
from tessera.worker.handlers import Handler
from tessera.worker.report import Report
from tessera.worker.settings import WorkerSettings

logger = logging.getLogger("tessera.worker")

COMMAND: Final = ("-m", "tessera.worker.child")
_LINE_BYTES: Final = 65_536
_LAST_WORDS_SECONDS: Final = 1.0
"""How long the last output of a handler is waited for, should something else hold its stderr open."""


class Children:
    """The child processes of a worker."""

    def __init__(self, settings: WorkerSettings, calls: Callable[[Attempt], LocalCalls]) -> None:
        self._settings = settings
        self._calls = calls
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()

    @property
    def pids(self) -> list[int]:
        """The processes that live."""
        return sorted(child.pid for child in self._all)

    async def run(self, attempt: Attempt, handler: Handler, job: Job, deadline_ms: int) -> Outcome | None:
        """Run one attempt. None = it was asked to stop, and did or was killed."""
        child = self._warm() or await self._start()
        if isinstance(child, str):
            return Failed(child)
        try:
            return await child.run(attempt, handler.reference, job, deadline_ms, self._calls(attempt))
        finally:
            if child.is_warm:
                self._idle.append(child)
            else:
                self._all.discard(child)
                await child.end()

    async def close(self) -> None:
        """End all children."""
        children, self._all, self._idle = list(self._all), set(), []
        await asyncio.gather(*(child.end() for child in children))

    def _warm(self) -> _Child | None:
        while self._idle:
            child = self._idle.pop()
            if child.is_warm:
                return child
            self._all.discard(child)
        return None

    async def _start(self) -> _Child | str:
        """A child that is ready, or why there is none."""
        process = await seam.start_process([sys.executable, *COMMAND])
        child = _Child(process, self._settings.cancel_grace_seconds)
        self._all.add(child)
        if await child.started(self._settings.ready_seconds):
            return child
        self._all.discard(child)
        why = child.last_words or f"not ready within {self._settings.ready_seconds:g} s"
        await child.end()
        return f"the child process did not start: {why}"


class _Child:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process, grace_seconds: float) -> None:
        self._process = process
        self._grace_seconds = grace_seconds
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._gone = asyncio.Event()
        self._report: Report | None = None
        self._unclaimed: deque[str] = deque(maxlen=30)
        """The last lines that belong to no job: why it did not start, most likely."""
        self._calls: LocalCalls | None = None
        self._ended: asyncio.Future[wire.Ended | None] | None = None
        self._marker = b""
        self._marked = asyncio.Event()
        self._was_stopped = False
        self._answers: set[asyncio.Task[None]] = set()
        self._readers = [
            seam.spawn(self._read_frames(), "tessera-child-frames"),
            seam.spawn(self._read_lines(), "tessera-child-lines"),
        ]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_warm(self) -> bool:
        """Whether it can run another job."""
        return not self._gone.is_set() and not self._was_stopped and self._ended is None

    @property
    def last_words(self) -> str:
        """What it said before it had a job."""
        return "\n".join(self._unclaimed)

    async def started(self, seconds: float) -> bool:
        """Whether it was ready for work in time."""
        await self._send(wire.Hello(list(sys.path), _main_script()))
        waits = [seam.spawn(event.wait(), "tessera-child-start") for event in (self._ready, self._gone)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self._gone.is_set():
            await asyncio.wait(self._readers, timeout=_LAST_WORDS_SECONDS)
        return self._ready.is_set() and not self._gone.is_set()

    async def run(
        self, attempt: Attempt, reference: str, job: Job, deadline_ms: int, calls: LocalCalls
    ) -> Outcome | None:
        """Run one job. See ``Children.run``."""
        self._report, self._calls = attempt.report(), calls
        marker = seam.random_bytes(12).hex()
        self._marker = marker.encode()
        self._marked.clear()
        ended = self._ended = self._loop.create_future()
        attempt.kill = self.stop
        try:
            if attempt.stop is not None:  # asked while the process was starting
                self._was_stopped = True
                return None
            if self._gone.is_set():
                return await self._death()
            await self._send(wire.Run(reference, job, marker, deadline_ms))
            message = await ended
            if message is None:
                return await self._death()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_SECONDS):
                    await self._marked.wait()
            return wire.outcome_of(message)
        except (msgspec.DecodeError, KeyError) as error:
            self._was_stopped = True
            return Failed(f"the child process said what no outcome is: {error}")
        finally:
            attempt.kill = None
            self._report = self._calls = self._ended = None

    def stop(self, why: Stop) -> None:
        """Ask the handler to stop, and kill it if it does not. A lost lease leaves no time to ask."""
        self._was_stopped = True
        if why is Stop.LEASE:
            self._kill()
            return
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(wire.frame(wire.AskToStop()))
        with suppress(ProcessLookupError):
            self._process.terminate()
        self._loop.call_later(self._grace_seconds, self._kill)

    async def end(self) -> None:
        """Close the pipe, which ends an idle child by itself; kill whatever is still there a second later,
        and reap it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._ended is not None or self._was_stopped:
            self._kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._process.wait()
        self._kill_group()
        await self._process.wait()
        await asyncio.wait(self._readers, timeout=_LAST_WORDS_SECONDS)
        for task in (*self._readers, *self._answers):
            task.cancel()
        await asyncio.gather(*self._readers, *self._answers, return_exceptions=True)

    async def _death(self) -> Outcome | None:
        """What it means that the child is gone without an outcome."""
        status = await self._process.wait()
        self._kill_group()
        await asyncio.wait(self._readers[1:], timeout=_LAST_WORDS_SECONDS)
        if self._was_stopped:
            return None
        if status < 0:
            return Crashed(f"the process of the handler was ended by {_signal_name(-status)}")
        return Failed(f"the process of the handler exited with status {status} before the handler returned")

    def _kill(self) -> None:
        if self._process.returncode is None:
            self._kill_group()

    def _kill_group(self) -> None:
        if hasattr(os, "killpg"):
            # macOS answers PermissionError for a group of zombies.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        elif self._process.returncode is None:
            self._process.kill()

    async def _send(self, message: wire.ToChild) -> None:
        assert self._process.stdin is not None
        # A child that is gone is noticed where its frames are read.
        with suppress(ConnectionError):
            self._process.stdin.write(wire.frame(message))
            await self._process.stdin.drain()

    async def _read_frames(self) -> None:
        assert self._process.stdout is not None
        try:
            while True:
                header = await self._process.stdout.readexactly(wire.HEADER_BYTES)
                body = await self._process.stdout.readexactly(wire.length(header))
                self._heard(wire.read_in_worker(body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except (ValueError, msgspec.MsgspecError):
            logger.exception("the child process %d broke the protocol and is killed", self.pid)
            self._kill()
        finally:
            self._gone.set()
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)

    def _heard(self, message: wire.ToWorker) -> None:
        match message:
            case wire.Ready():
                self._ready.set()
            case wire.Said():
                if self._report is not None:
                    _note(self._report, message)
            case wire.Ask():
                if self._calls is not None:
                    task = seam.spawn(self._answer(message, self._calls), "tessera-child-answer")
                    self._answers.add(task)
                    task.add_done_callback(self._answers.discard)
            case wire.Ended():
                if self._ended is not None and not self._ended.done():
                    self._ended.set_result(message)
            case _:
                assert_never(message)

    async def _answer(self, ask: wire.Ask, calls: LocalCalls) -> None:
        try:
            value: object = None
            if ask.verb == "enqueue":
                handle = await calls.aenqueue(ask.what, ask.args, ask.kwargs, ask.options)
                value = str(getattr(handle, "id", ""))
            elif ask.verb == "extend":
                await calls.aextend(ask.seconds)
            elif ask.verb == "children":
                value = msgspec.to_builtins(await calls.achildren())
            reply = wire.Reply(ask.number, value)
        except StaleLease as error:
            reply = wire.Reply(ask.number, error=error.found, is_stale=True)
        except Exception as error:  # noqa: BLE001  the handler who asked must hear of it, whatever it is
            reply = wire.Reply(ask.number, error=f"{type(error).__name__}: {error}")
        await self._send(reply)

    async def _read_lines(self) -> None:
        """What the handler prints, line by line, into the log of its attempt."""
        assert self._process.stderr is not None
        rest = b""
        while chunk := await self._process.stderr.read(_LINE_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LINE_BYTES:
                lines.append(rest)
                rest = b""
            for line in lines:
                self._line(line)
        self._line(rest)

    def _line(self, line: bytes) -> None:
        is_last = bool(self._marker) and line.endswith(self._marker)
        text = (line[: -len(self._marker)] if is_last else line).decode("utf-8", "backslashreplace")
        if text and self._report is not None:
            self._report.line(text)
        elif text:
            self._unclaimed.append(text)
        if is_last:
            self._marked.set()


def _note(report: Report, said: wire.Said) -> None:
    if said.progress is not None:
        report.progress(*said.progress)
    if said.line is not None:
        report.line(said.line)
    if said.output is not None:
        report.output(said.output)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _main_script() -> str:
    """The worker's main script, if it is a file."""
    return str(getattr(sys.modules.get("__main__"), "__file__", None) or "")
