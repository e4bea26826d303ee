"""The application of these tests: kinds that write down what they do, and a store handle that does."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from tessera import Ceiling, Context, Rate, Retry, Tessera
from tessera.connect import Backend, connect
from tessera.engine.finishing import Finish, finish
from tessera.kinds import JobKind
from tessera.model.changes import Answer, Done, EditJob, Group, Held, Lapsed, MoveJob
from tessera.model.ids import show_id
from tessera.model.job import Job, Terms, encode_terms
from tessera.model.outcomes import Completed
from tessera.model.queries import Claimed, ClaimRequest, Filter, JobPage, Page
from tessera.options import JobOptions
from tessera.store.protocol import Store, run_blocking
from tests.faults import history

CEILING = 2
RATE = 40
RATE_SECONDS = 1.0
CRASH_BACKOFF_MS = 50

app = Tessera("memory://")
"""``use`` gives it its file."""

_QUICK = Retry(max_attempts=5, base=0.05, cap=0.2)
_STURDY = 1_000
"""Crashes that an innocent kind may have: these tests take down the same job more often than a payload
that is to blame would."""


class QuickAfterCrash(JobOptions):
    """The wait after a crash has no public option; a test cannot wait 15 s for each."""

    @cached_property
    def body(self) -> bytes:
        usual = msgspec.msgpack.decode(super().body, type=Terms)
        return encode_terms(replace(usual, crash_backoff_ms=CRASH_BACKOFF_MS))


# Handlers ---------------------------------------------------------------------------------------------------


class HandlerStopped(Exception):
    """A thread has seen that it should stop."""


@contextmanager
def told(ctx: Context, key: str = "") -> Iterator[None]:
    """Write down the beginning, the effect and the end of a run."""
    job = ctx.job
    of = {"job": show_id(job.id), "fence": job.fence, "attempt": job.attempt, "kind": job.kind, "key": key}
    note = history.mine().note
    note("started", **of)
    try:
        yield
    except (asyncio.CancelledError, HandlerStopped):
        note("stopped", **of)
        raise
    except BaseException as error:
        note("raised", how=type(error).__name__, **of)
        raise
    else:
        history.mine().note_all([("effect", of), ("returned", of)])


@app.job(queue="work", retry=_QUICK, max_crashes=_STURDY)
async def nap(ms: int, ctx: Context) -> int:
    """Work in the event loop."""
    with told(ctx):
        await asyncio.sleep(ms / 1_000)
    return ctx.job.fence


@app.job(queue="work", retry=_QUICK, max_crashes=_STURDY)
def doze(ms: int, ctx: Context) -> int:
    """Work in a thread that looks whether it should stop."""
    with told(ctx):
        _look_now_and_then(ms, ctx)
    return ctx.job.fence


def _look_now_and_then(ms: int, ctx: Context) -> None:
    end = time.monotonic() + ms / 1_000
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))
        if ctx.cancelled:
            raise HandlerStopped


@app.job(queue="work", retry=_QUICK, max_crashes=_STURDY)
def deaf(ms: int, ctx: Context) -> int:
    """Work in a thread that looks at nothing: it hands in its result whatever has happened."""
    with told(ctx):
        time.sleep(ms / 1_000)
    return ctx.job.fence


@app.job(queue="work", retry=_QUICK, max_crashes=_STURDY)
def stubborn(ms: int, ctx: Context) -> int:
    """Work that hands in its result by itself too, as a holder outside would, and hears what the store
    says to that."""
    with told(ctx):
        time.sleep(ms / 1_000)
        fence = str(ctx.job.fence).encode()
        run_blocking(finish(app._store(), [Finish(ctx.job, Completed(fence))]))
    return ctx.job.fence


@app.job(queue="work", retry=_QUICK, max_crashes=_STURDY)
async def stumble(ms: int, times: int, ctx: Context) -> int:
    """Fail so often, then work."""
    with told(ctx):
        await asyncio.sleep(ms / 1_000)
        if ctx.job.failures < times:
            raise ValueError("as planned")
    return ctx.job.fence


@app.job(queue="work", retry=Retry(max_attempts=2, base=0.05, cap=0.1), max_crashes=_STURDY)
async def doomed(ms: int, ctx: Context) -> int:
    """Fail until the attempts are used up."""
    with told(ctx):
        await asyncio.sleep(ms / 1_000)
        raise ValueError("as planned")


@app.job(queue="work", retry=_QUICK, max_crashes=_STURDY, ceilings=[Ceiling("key", CEILING, by="key")])
async def keyed(key: str, ms: int, ctx: Context) -> int:
    """Work of which two at a time may run for a key."""
    with told(ctx, key):
        await asyncio.sleep(ms / 1_000)
    return ctx.job.fence


@app.job(
    queue="work",
    retry=_QUICK,
    max_crashes=_STURDY,
    rates=[Rate("api", RATE, per=RATE_SECONDS, burst=RATE // 2, exact=True)],
)
async def metered(ctx: Context) -> int:
    """Work of which so much may start in any second."""
    with told(ctx, "api"):
        await asyncio.sleep(0.005)
    return ctx.job.fence


@app.job(queue="work", retry=_QUICK, max_crashes=_STURDY, isolation="process")
def apart(ms: int, ctx: Context) -> int:
    """Work in a child process."""
    with told(ctx):
        time.sleep(ms / 1_000)
    return ctx.job.fence


@app.job(queue="gate", retry=_QUICK, max_crashes=_STURDY)
def gated(gate: str, ctx: Context) -> int:
    """Run until a file appears."""
    with told(ctx):
        while not Path(gate).exists():
            _look_now_and_then(20, ctx)
    return ctx.job.fence


@app.job(queue="bulk", retry=_QUICK, max_crashes=_STURDY)
async def carry(data: str, ctx: Context) -> int:
    """Take room in the store."""
    with told(ctx):
        return len(data)


# Poison: one body, three ways to run it ---------------------------------------------------------------------

FATAL = ("abort", "segfault")
HARMLESS = ("exit", "recurse", "interrupt")


def _poison(what: str) -> NoReturn:
    match what:
        case "abort":
            os.abort()
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            sys.exit(3)
        case "recurse":
            _poison_again()
        case "interrupt":
            raise KeyboardInterrupt
    raise AssertionError(f"{what} did nothing")


def _poison_again() -> None:
    _poison_again()


_FEW = Retry(max_attempts=2, base=0.05, cap=0.1)


@app.job(queue="poison", retry=_FEW)
async def poison_loop(what: str, ctx: Context) -> None:
    """Poison in the worker's event loop."""
    with told(ctx, what):
        _poison(what)


@app.job(queue="poison", retry=_FEW)
def poison_thread(what: str, ctx: Context) -> None:
    """Poison in a thread of the worker."""
    with told(ctx, what):
        _poison(what)


@app.job(queue="apart", retry=_FEW, isolation="process")
def poison_apart(what: str, ctx: Context) -> None:
    """Poison in a child process."""
    with told(ctx, what):
        _poison(what)


@app.job(queue="apart", retry=_FEW, isolation="process")
async def poison_aside(what: str, ctx: Context) -> None:
    """Poison in the event loop of a child process."""
    with told(ctx, what):
        _poison(what)


@app.job(queue="poison", retry=_FEW)
async def neighbour(ms: int, ctx: Context) -> int:
    """Innocent work beside poison, under the usual limit of crashes."""
    with told(ctx):
        await asyncio.sleep(ms / 1_000)
    return ctx.job.fence


@app.job(queue="apart", retry=_FEW)
async def neighbour_apart(ms: int, ctx: Context) -> int:
    """Innocent work in a worker whose poison is isolated."""
    with told(ctx):
        await asyncio.sleep(ms / 1_000)
    return ctx.job.fence


def _quick_after_crash(kind: JobKind[object]) -> None:
    options = QuickAfterCrash(
        **{field.name: getattr(kind.options, field.name) for field in fields(JobOptions)}
    )
    kind.options = kind._options = options
    assert msgspec.msgpack.decode(options.body, type=Terms).crash_backoff_ms == CRASH_BACKOFF_MS


for _kind in app.kinds.values():
    _quick_after_crash(_kind)


# The store, as its callers see it ---------------------------------------------------------------------------


_noted: set[tuple[bytes, int]] = set()
"""Leases of this process that were written down as claimed."""


class Recording:
    """Mixed into a store: writes down what was claimed, and what the store answered to every write under a
    lease.
    """

    async def claim(self, request: ClaimRequest) -> Claimed:
        claimed: Claimed = await super().claim(request)  # type: ignore[misc]
        self._note(claimed.jobs)
        return claimed

    async def find_jobs(self, which: Filter, page: Page) -> JobPage:
        """A worker whose claim's reply was lost finds its jobs so."""
        found: JobPage = await super().find_jobs(which, page)  # type: ignore[misc]
        if which.holder and which.cancel_requested is None:
            self._note(found.jobs)
        return found

    def _note(self, jobs: Sequence[Job]) -> None:
        new = [job for job in jobs if (job.id, job.fence) not in _noted]
        _noted.update((job.id, job.fence) for job in new)
        history.mine().note_all(("claimed", _claim(job, job.holder)) for job in new)

    async def commit(self, groups: Sequence[Group], request_id: str = "") -> list[Answer]:
        sent = time.time_ns() // 1_000_000
        answers: list[Answer] = await super().commit(groups, request_id)  # type: ignore[misc]
        told = (_answer(group, answer, sent) for group, answer in zip(groups, answers, strict=True))
        history.mine().note_all(one for one in told if one is not None)
        return answers


def _claim(job: Job, holder: str) -> dict[str, object]:
    return {
        "job": show_id(job.id),
        "fence": job.fence,
        "attempt": job.attempt,
        "kind": job.kind,
        "holder": holder,
        "claimed_at": job.claimed_at,
        "until": job.lease_until,
    }


def _answer(group: Group, answer: Answer, sent_ms: int) -> tuple[str, dict[str, object]] | None:
    """The line for one group; None if no lease is in it."""
    guard = group.guards[0] if group.guards else None
    done = isinstance(answer, Done)
    if isinstance(guard, Lapsed):
        if not done:
            return None
        ends = [
            change.end.end
            for change in group.changes
            if isinstance(change, MoveJob) and change.end is not None
        ]
        return "rescued", {"job": show_id(guard.job), "fence": guard.fence, "how": ends[0]}
    if not isinstance(guard, Held):
        return None
    of: dict[str, object] = {"job": show_id(guard.job), "fence": guard.fence, "how": guard.end or "renewal"}
    if guard.end:
        return "finished" if done else "stale", of
    [lease] = [change.edits.lease for change in group.changes if isinstance(change, EditJob)]
    # The store counts from its own instant, which lies after the sending: the lease ends then or later.
    return ("renewed", {**of, "until": sent_ms + lease.ms}) if done else ("stale", of)  # type: ignore[union-attr]


class RecordedBackend:
    """A backend whose handles are recorded."""

    def __init__(self, inner: Backend) -> None:
        self.url = inner.url
        self._inner = inner

    def handle(self, *, blocking: bool) -> Store:
        store = self._inner.handle(blocking=blocking)
        store.__class__ = type("RecordedStore", (Recording, type(store)), {})
        return store

    def close(self) -> None:
        self._inner.close()


def use(url: str, *, recorded: bool = False) -> Tessera:
    """The application over this store."""
    app.url = url
    if recorded:
        app._backend = RecordedBackend(connect(url))
    return app
