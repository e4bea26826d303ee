"""What the scenarios share: both colours of the client behind one call, a worker with short times, and
waiting for things by name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sized
from typing import Any

import pytest

from tessera import Handle, JobView, State, Tessera, Worker
from tessera.engine.claiming import Claimer
from tessera.engine.policies import Policies
from tessera.model.job import Job

PATIENCE = 15.0
"""Seconds after which a signal that did not come is a failure."""

QUICK: dict[str, Any] = {
    "lease_seconds": 3,
    "sweep_seconds": 0.05,
    "cancel_grace_seconds": 0.5,
    "grace_seconds": 5,
}


class Client:
    """Calls public verbs in one colour: ``await client(greet, "enqueue", "Ada")``."""

    def __init__(self, colour: str) -> None:
        self._is_blocking = colour == "blocking"

    async def __call__(self, owner: object, verb: str, *args: Any, **kwargs: Any) -> Any:
        if self._is_blocking:  # a thread, as any blocking producer has beside somebody's event loop
            return await asyncio.to_thread(getattr(owner, verb), *args, **kwargs)
        return await getattr(owner, "a" + verb)(*args, **kwargs)


def working(app: Tessera, **settings: Any) -> Worker:
    """A worker of this application, to be entered."""
    return app.worker(**{**QUICK, **settings})


async def until(
    app: Tessera, holds: Callable[[], Awaitable[object]], what: str, patience: float = PATIENCE
) -> None:
    """Wait until something holds; the store says when to look again."""
    store: Any = await app._astore()
    try:
        async with asyncio.timeout(patience):
            while not await holds():
                await store.wait(0.02)
    except TimeoutError:
        pytest.fail(f"waited in vain for {what}")


async def reaches(app: Tessera, handle: Handle[Any], *states: State, patience: float = PATIENCE) -> JobView:
    """Wait until the job is in one of these states; the job as it is then."""
    seen: list[JobView] = []

    async def is_there() -> bool:
        seen.append(await handle.aget())
        return seen[-1].state in states

    try:
        await until(app, is_there, f"{handle} to be {' or '.join(states)}", patience)
    except pytest.fail.Exception as error:
        pytest.fail(f"{error}; it is {seen[-1].state} {seen[-1].reason} {seen[-1].ends}")
    return seen[-1]


async def signalled(event: asyncio.Event, what: str = "the signal") -> None:
    """Wait for an event, within reason."""
    try:
        async with asyncio.timeout(PATIENCE):
            await event.wait()
    except TimeoutError:
        pytest.fail(f"waited in vain for {what}")


async def filled(app: Tessera, ran: Sized, count: int) -> None:
    """Wait until handlers have noted so many runs. Where their order is looked at, nobody may wait for a
    result meanwhile: that writes to the job's row, and a claim passes by a row that is being written."""

    async def are_there() -> bool:
        return len(ran) >= count

    await until(app, are_there, f"{count} runs")


async def logged(app: Tessera, caplog: pytest.LogCaptureFixture, text: str) -> logging.LogRecord:
    """Wait for a log line that holds this text."""
    found: list[logging.LogRecord] = []

    async def is_there() -> bool:
        found.extend(record for record in list(caplog.records) if text in record.getMessage())
        return bool(found)

    await until(app, is_there, f"a log line with {text!r}")
    return found[0]


async def vanish(app: Tessera, *, lease_ms: int = 250, count: int = 1) -> list[Job]:
    """What a worker leaves behind that claims jobs and is never heard of again: jobs held by nobody alive."""
    claimer = Claimer(await app._astore(), Policies(), holder="vanished", lease_ms=lease_ms, kinds=None)
    jobs = (await claimer.claim(["default"], count, counted_limit=count)).jobs
    assert len(jobs) == count
    return list(jobs)
