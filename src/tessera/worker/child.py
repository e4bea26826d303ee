"""A child process that runs isolated handlers, one at a time: ``python -m tessera.worker.child``.

Frames come in at stdin and go out at stdout. Both are moved out of the handler's reach first: what it prints
goes to stderr, which the worker reads into the job's log. When the worker is gone, stdin ends, and so does
this process at once, with all it started: the lease will lapse, and somebody else may run the job.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import queue
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import BinaryIO, Final, NoReturn

import msgspec

from tessera import seam
from tessera.model.changes import AddJob
from tessera.model.errors import InvalidArgument, StaleLease, TesseraError, UndecodablePayload
from tessera.model.ids import show_id
from tessera.model.job import Job
from tessera.model.outcomes import Outcome
from tessera.model.showing import shown
from tessera.rules.jsonform import Misfit, write_plain
from tessera.worker import verdict, wire
from tessera.worker.context import ChildResult, Context
from tessera.worker.handlers import is_async, signature_of
from tessera.worker.report import Report

MAIN_NAME: Final = "__tessera_main__"


class Stopped(BaseException):
    """SIGTERM came while a plain function ran."""


class Pipe:
    """Both directions to the worker. Writing is for any thread."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._lock = threading.Lock()

    def send(self, message: wire.ToWorker) -> None:
        """Write one frame, whole."""
        data = wire.frame(message)
        with self._lock:
            self._outgoing.write(data)
            self._outgoing.flush()

    def receive(self) -> wire.ToChild | None:
        """The next message; None when the worker is gone."""
        header = self._incoming.read(wire.HEADER_BYTES)
        if len(header) < wire.HEADER_BYTES:
            return None
        size = wire.length(header)
        body = self._incoming.read(size)
        return wire.read_in_child(body) if len(body) == size else None


class PipeReport(Report):
    """Hands what the handler says to the worker at once."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def progress(self, current: float, total: float, message: str) -> None:
        self._pipe.send(wire.Said(progress=(current, total, message)))

    def output(self, data: bytes) -> None:
        self._pipe.send(wire.Said(output=data))

    def line(self, text: str) -> None:
        self._pipe.send(wire.Said(line=text))


class PipeCalls:
    """Calls that the worker answers."""

    def __init__(self, pipe: Pipe, job: Job) -> None:
        self._pipe = pipe
        self._job = job
        self._lock = threading.Lock()
        self._asked: dict[int, Future[wire.Reply]] = {}
        self._number = 0
        self.stopped = False

    def is_stopped(self) -> bool:
        return self.stopped

    def enqueue(
        self,
        what: object,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        options: Mapping[str, object],
    ) -> object:
        return self._enqueued(self._ask(_enqueue(what, args, kwargs, options)).result())

    async def aenqueue(
        self,
        what: object,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        options: Mapping[str, object],
    ) -> object:
        return self._enqueued(await asyncio.wrap_future(self._ask(_enqueue(what, args, kwargs, options))))

    def extend(self, seconds: float) -> None:
        self._value(self._ask(wire.Ask(0, "extend", seconds=seconds)).result())

    async def aextend(self, seconds: float) -> None:
        self._value(await asyncio.wrap_future(self._ask(wire.Ask(0, "extend", seconds=seconds))))

    def children(self) -> list[ChildResult]:
        return msgspec.convert(self._value(self._ask(wire.Ask(0, "children")).result()), list[ChildResult])

    async def achildren(self) -> list[ChildResult]:
        value = self._value(await asyncio.wrap_future(self._ask(wire.Ask(0, "children"))))
        return msgspec.convert(value, list[ChildResult])

    def draft_children(self, children: Sequence[object]) -> tuple[AddJob, ...]:
        raise InvalidArgument(
            "children",
            "cannot be stored from an isolated handler; split in a handler without isolation='process'",
        )

    def answer(self, reply: wire.Reply) -> None:
        """Hand a reply to whoever asked."""
        with self._lock:
            asked = self._asked.pop(reply.number, None)
        if asked is not None and not asked.cancelled():
            asked.set_result(reply)

    def _ask(self, ask: wire.Ask) -> Future[wire.Reply]:
        asked: Future[wire.Reply] = Future()
        with self._lock:
            self._number += 1
            number = self._number
            self._asked[number] = asked
        self._pipe.send(msgspec.structs.replace(ask, number=number))
        return asked

    def _enqueued(self, reply: wire.Reply) -> EnqueuedJob:
        return EnqueuedJob(str(self._value(reply)))

    def _value(self, reply: wire.Reply) -> object:
        if reply.is_stale:
            raise StaleLease(show_id(self._job.id), self._job.fence, reply.error)
        if reply.error:
            raise TesseraError(reply.error)
        return reply.value


class EnqueuedJob(msgspec.Struct, frozen=True):
    """What an enqueue answers in a child process: a job's id, and no connection to ask about it."""

    id: str


def _enqueue(
    what: object, args: Sequence[object], kwargs: Mapping[str, object], options: Mapping[str, object]
) -> wire.Ask:
    kind = what if isinstance(what, str) else getattr(what, "name", None)
    if not isinstance(kind, str):
        raise InvalidArgument(
            "what", f"is {shown(what)}; in an isolated handler give a kind or its decorated function"
        )
    try:
        plain = msgspec.json.decode(write_plain([list(args), dict(kwargs), dict(options)]))
    except Misfit as misfit:
        raise InvalidArgument("arguments", misfit.told) from misfit
    return wire.Ask(0, "enqueue", kind, *plain)


class Child:
    """The life of this process. One thread reads; the main thread runs handlers, since only there signals
    arrive."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._hello = wire.Hello([])
        self._runs: queue.SimpleQueue[tuple[wire.Run, PipeCalls] | None] = queue.SimpleQueue()
        self._busy = False
        self._is_plain = False
        """A plain function runs: SIGTERM becomes an exception in it."""
        self._told = False
        """SIGTERM came. Never taken back: a child that was stopped gets no other job."""
        self._main: dict[str, object] | None = None

    def live(self) -> None:
        """Run what comes until the worker closes the pipe."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        seam.start_thread(self._listen, "tessera-pipe")
        self._pipe.send(wire.Ready())
        while (work := self._runs.get()) is not None:
            self._run(*work)

    def _listen(self) -> None:
        calls: PipeCalls | None = None
        while (message := self._pipe.receive()) is not None:
            match message:
                case wire.Hello():
                    self._hello = message
                    sys.path[:] = message.path
                case wire.Run():
                    self._busy = True
                    calls = PipeCalls(self._pipe, message.job)
                    self._runs.put((message, calls))
                case wire.AskToStop():
                    if calls is not None:
                        calls.stopped = True
                case wire.Reply():
                    if calls is not None:
                        calls.answer(message)
        if self._busy:
            _end_this_group()
        self._runs.put(None)

    def _on_sigterm(self, number: int, frame: object) -> None:
        self._told = True
        if self._is_plain:
            self._is_plain = False
            raise Stopped

    def _run(self, run: wire.Run, calls: PipeCalls) -> None:
        outcome: Outcome | None = None
        try:
            outcome = self._outcome(run, calls)
        except Stopped:
            outcome = None
        finally:
            self._is_plain = False
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(2, f"{run.marker}\n".encode())
        self._busy = False
        self._pipe.send(wire.ended(outcome))

    def _outcome(self, run: wire.Run, calls: PipeCalls) -> Outcome | None:
        job = run.job
        try:
            function = self._find(run.reference)
            signature = signature_of(function)
            context = Context(job, PipeReport(self._pipe), calls, deadline_ms=run.deadline_ms)
            args, kwargs = signature.decode(job.payload, context)
        except UndecodablePayload as error:
            return verdict.of_payload(error)
        except BaseException as error:  # noqa: BLE001  importing the handler runs the application's code
            return verdict.of_exception(error)
        try:
            if is_async(function):
                value = self._run_async(function, args, kwargs)
            else:
                self._is_plain = True
                if self._told:  # while the handler was being imported
                    return None
                value = function(*args, **kwargs)
        except Stopped:
            return None
        except asyncio.CancelledError as error:
            return None if self._told else verdict.of_exception(error)
        except BaseException as error:  # noqa: BLE001  whatever a handler raises is an outcome
            self._is_plain = False
            return verdict.of_exception(error)
        self._is_plain = False
        return verdict.of_result(signature, value)

    def _run_async(
        self, function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        async def until_told() -> object:
            task = asyncio.current_task()
            assert task is not None

            def tell() -> None:
                self._told = True
                task.cancel()

            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, tell)
            if self._told:  # while the handler was being imported
                raise asyncio.CancelledError
            return await function(*args, **kwargs)  # type: ignore[misc]  # is_async() has looked

        try:
            return asyncio.run(until_told())
        finally:
            # Closing the loop has set the signal's default action.
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _find(self, reference: str) -> Callable[..., object]:
        module, _, path = reference.partition(":")
        found: object
        if module == "__main__":
            if self._main is None:
                self._main = runpy.run_path(self._hello.main, run_name=MAIN_NAME)
            first, *rest = path.split(".")
            found = self._main[first]
        else:
            found, rest = importlib.import_module(module), path.split(".")
        for name in rest:
            found = getattr(found, name)
        function = getattr(found, "function", found)
        if not callable(function):
            raise TypeError(f"{reference} is no function")
        return function


def _end_this_group() -> NoReturn:
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    """Take the pipes away from the handler and live."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    # Lines appear in the job's log when they are printed, and in order with those of stderr.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    Child(Pipe(incoming, outgoing)).live()


if __name__ == "__main__":
    main()
