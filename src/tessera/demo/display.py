"""How a run looks while it goes on: a live panel on a terminal with rich, else a line now and then."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import click

from tessera import seam
from tessera.demo.report import show_size
from tessera.model.states import State
from tessera.model.views import JobView

if TYPE_CHECKING:
    from rich.console import RenderableType

_LINE_SECONDS = 2.0
_SHOWN = 5


class Snapshot(NamedTuple):
    """A run at one instant, as the store and the handlers tell it."""

    seconds: float
    planned: int
    """Jobs there will be in all."""
    counts: dict[State, int]
    bytes_read: int
    at_work: Sequence[str]
    """Files that are being read."""
    retrying: Sequence[JobView]
    dead: Sequence[JobView]

    @property
    def ended(self) -> int:
        """Jobs that have ended, however."""
        return sum(
            count
            for state, count in self.counts.items()
            if state in (State.COMPLETED, State.DEAD, State.CANCELLED)
        )

    @property
    def rate(self) -> float:
        """Jobs ended per second since the start."""
        return self.ended / self.seconds if self.seconds > 0 else 0.0


class Display(Protocol):
    """Shows snapshots between ``start`` and ``stop``."""

    def start(self) -> None: ...
    def show(self, snapshot: Snapshot) -> None: ...
    def stop(self) -> None: ...


def make_display() -> Display:
    """The live one if standard output is a terminal that can do it and rich is installed."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return PlainDisplay()
    try:
        return LiveDisplay()
    except ImportError:  # the extra ``cli`` is not installed
        return PlainDisplay()


def last_error(job: JobView) -> str:
    """What the last failed attempt of a job said, in one line."""
    errors = [attempt.error for attempt in job.ends if attempt.error]
    return in_a_line(errors[-1]) if errors else job.reason


def in_a_line(error: str) -> str:
    """The last line of a traceback, without the module of the exception.

    >>> in_a_line("Traceback ...\\nmail.errors.Refused: no such box")
    'Refused: no such box'
    """
    last = error.strip().splitlines()[-1]
    name, colon, said = last.partition(": ")
    return f"{name.rpartition('.')[2]}{colon}{said}" if " " not in name else last


def in_short(snapshot: Snapshot) -> str:
    """A snapshot in one line.

    >>> in_short(Snapshot(2.0, 10, {State.COMPLETED: 4}, 2_000, (), (), ()))
    '2.0 s: 4 of 10 jobs, 2/s, 2.0 kB read'
    """
    parts = [
        f"{snapshot.ended:,} of {snapshot.planned:,} jobs",
        f"{snapshot.rate:,.0f}/s",
        f"{show_size(snapshot.bytes_read)} read",
    ]
    if snapshot.retrying:
        parts.append(f"{len(snapshot.retrying)} to be retried")
    if snapshot.dead:
        parts.append(f"{len(snapshot.dead)} dead")
    return f"{snapshot.seconds:.1f} s: {', '.join(parts)}"


class PlainDisplay:
    """A line every two seconds, and at once for a new retry or dead job."""

    def __init__(self) -> None:
        self._next = 0.0
        self._told: set[tuple[str, int]] = set()

    def start(self) -> None:
        """Nothing to prepare."""

    def show(self, snapshot: Snapshot) -> None:
        for job in (*snapshot.retrying, *snapshot.dead):
            if (job.key, job.attempt) not in self._told:
                self._told.add((job.key, job.attempt))
                what = (
                    "is dead"
                    if job.state is State.DEAD
                    else f"failed in attempt {job.attempt} and will be retried"
                )
                click.echo(f"  {job.kind} {what}: {last_error(job)}")
        if seam.monotonic() >= self._next:
            self._next = seam.monotonic() + _LINE_SECONDS
            click.echo(f"  {in_short(snapshot)}")

    def stop(self) -> None:
        """Nothing to put away."""


class LiveDisplay:
    """A panel that is drawn anew in place."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(auto_refresh=False)

    def start(self) -> None:
        self._live.start()

    def show(self, snapshot: Snapshot) -> None:
        self._live.update(_panel(snapshot), refresh=True)

    def stop(self) -> None:
        self._live.stop()


def _panel(snapshot: Snapshot) -> RenderableType:
    # Names come from a stranger's disk: they are put into Text, where square brackets are no markup.
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    states = Table.grid(padding=(0, 2))
    for state in State:
        if count := snapshot.counts.get(state, 0):
            states.add_row(
                Text(state.value, style=_STYLES.get(state, "")), Text(f"{count:,}", justify="right")
            )
    bar = Table.grid(expand=True)  # by itself a bar ends without a new line
    bar.add_row(ProgressBar(total=max(1, snapshot.planned), completed=snapshot.ended))
    lines: list[RenderableType] = [Text(in_short(snapshot), style="bold"), bar, states]
    lines += [
        Text(f"reading  {name}", style="dim", no_wrap=True, overflow="ellipsis")
        for name in snapshot.at_work[:_SHOWN]
    ]
    lines += [
        Text(f"retry    {job.kind} after attempt {job.attempt}: {last_error(job)}", style="yellow")
        for job in snapshot.retrying[:_SHOWN]
    ]
    lines += [Text(f"dead     {job.kind}: {job.reason}", style="red") for job in snapshot.dead[:_SHOWN]]
    return Group(*lines)


_STYLES = {
    State.RUNNING: "cyan",
    State.COMPLETED: "green",
    State.DEAD: "red",
    State.SCHEDULED: "yellow",
}
