"""Handlers for child processes, which find them here by name."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tessera.model.control import Snooze
from tessera.model.job import Job
from tessera.worker.context import Context


def double(n: int) -> int:
    return 2 * n


async def adouble(n: int) -> int:
    await asyncio.sleep(0)
    return 2 * n


def pid() -> int:
    return os.getpid()


def fails() -> None:
    raise ValueError("no such page")


def quits() -> None:
    sys.exit(4)


def exits_hard() -> None:
    os._exit(3)


def segfaults() -> None:
    ctypes.string_at(0)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def snoozes() -> None:
    raise Snooze(60)


def unserialisable():
    return object()


def prints(ctx: Context) -> None:
    print("to stdout")
    sys.stderr.write("to stderr\n")
    subprocess.run(["echo", "from a program"], check=True)
    ctx.log.info("to the log")
    sys.stdout.write("no newline at the end")


def says_much(lines: int) -> None:
    for n in range(lines):
        print(n, "x" * 10_000)


def reports(ctx: Context) -> None:
    ctx.progress(3, 10, "page 3")
    ctx.output({"pages": [1, 2, 3]})


def waits(started: str, ctx: Context) -> str:
    """Until it is told to stop by SIGTERM, as a plain function hears it."""
    Path(started).touch()
    threading.Event().wait(30)
    return "was not stopped"


async def awaits(started: str) -> str:
    Path(started).touch()  # noqa: ASYNC240  nobody else is in this loop
    await asyncio.sleep(30)
    return "was not stopped"


def looks(started: str, ctx: Context) -> str:
    """Until ctx.cancelled; deaf to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(started).touch()
    while not ctx.cancelled:
        threading.Event().wait(0.005)
    return "saw it"


def is_deaf(started: str, child: str) -> None:
    """Ignores every request, and has a program of its own running."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    program = subprocess.Popen(["sleep", "60"])
    Path(child).write_text(str(program.pid))
    Path(started).write_text(str(os.getpid()))
    while True:
        threading.Event().wait(30)


def enqueues(ctx: Context) -> str:
    return ctx.enqueue("other", 1, options={"delay": 5}, to="ada").id  # type: ignore[attr-defined]


async def aenqueues(ctx: Context) -> str:
    await ctx.aextend(5)
    return (await ctx.aenqueue("other")).id  # type: ignore[attr-defined]


def extends(ctx: Context) -> None:
    ctx.extend(60)


def joins(ctx: Context) -> list[object]:
    return [child.value for child in ctx.children()]


def splits(ctx: Context) -> None:
    ctx.split([("double", {"n": 1})])


def knows(ctx: Context) -> dict[str, object]:
    job: Job = ctx.job
    return {
        "id": ctx.id,
        "attempt": ctx.attempt,
        "queue": job.queue,
        "has_deadline": ctx.deadline is not None,
    }
