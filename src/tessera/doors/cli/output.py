"""What a command prints: one JSON document for programs; tables for people, in colour where a terminal and
rich are there.

Results go to stdout, everything else to stderr, so that a pipe sees results only. What comes from the store
is made printable first: an error text may hold the escape codes of a terminal.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click
import msgspec

from tessera.doors.cli.fitting import GAP, cells_of, fit, short_time
from tessera.model.states import State

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

COLOURS: Final = {
    State.RUNNING: "cyan",
    State.COMPLETED: "green",
    State.DEAD: "red",
    State.QUARANTINED: "red",
    State.BLOCKED: "yellow",
    State.CANCELLED: "dim",
}
_CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

Row = Sequence[object]


def printable(value: object, *, lines: bool = False) -> str:
    """The text of a value with control characters shown as escapes; line ends too unless ``lines``.

    >>> printable("red \\x1b[31m")
    'red \\\\x1b[31m'
    """
    text = _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), _text(value))
    return text if lines else text.replace("\n", "\\n").replace("\t", "\\t")


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tuple | list | frozenset | set):
        return ", ".join(_text(each) for each in value)
    if isinstance(value, Mapping | msgspec.Struct):
        return msgspec.json.encode(value).decode()
    return str(value)


class Output:
    """Where one command prints."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def document(self, document: object) -> None:
        """The one JSON document of a command that was asked for JSON."""
        click.echo(msgspec.json.encode(document))

    def result(self, document: object, text: str) -> None:
        """The document for a program, the sentence for a person."""
        if self.as_json:
            self.document(document)
        else:
            click.echo(printable(text, lines=True))

    def note(self, text: str) -> None:
        """Something beside the result: to stderr, and not at all for a program."""
        if not self.as_json:
            click.echo(printable(text, lines=True), err=True)

    def warn(self, text: str) -> None:
        """Something that may be a mistake: to stderr, for a program as a document of its own."""
        if self.as_json:
            click.echo(msgspec.json.encode({"warning": {"message": text}}), err=True)
        else:
            click.echo(f"warning: {printable(text, lines=True)}", err=True)

    def table(
        self,
        titles: Sequence[str],
        rows: Iterable[Row],
        *,
        empty: str,
        drop: Collection[str] = (),
        cut: str = "",
    ) -> None:
        """A table for a person. On a terminal it is made to fit: columns of ``drop`` go one by one, the text
        column ``cut`` is shortened, times are short and local. In a pipe it is whole."""
        found = list(rows)
        if not found:
            self.note(empty)
            return
        titles, cells = _drawn(titles, found, drop, cut)
        if (console := _console()) is not None:
            # What is too wide for the terminal is wrapped by it, so that an id can still be copied whole.
            console.width = max(console.width, _least_width(titles, cells))
            console.print(_rich_table(titles, cells), crop=False)
        else:
            click.echo("\n".join(_aligned([titles, *cells])))

    def facts(self, facts: Iterable[tuple[str, object]]) -> None:
        """Names and values, one a line; a value of several lines is indented. Those without a value are left
        out."""
        shown = [(name, printable(value, lines=True)) for name, value in facts]
        width = max((len(name) for name, text in shown if text), default=0)
        for name, text in shown:
            if text:
                first, *more = text.splitlines() or [""]
                styled = click.style(f"{name:<{width}}", bold=True) if _wants_colour() else f"{name:<{width}}"
                click.echo("\n".join([f"{styled}  {first}", *(f"{'':<{width}}  {line}" for line in more)]))

    def heading(self, title: str) -> None:
        """What the lines below are about."""
        click.echo("\n" + (click.style(title, bold=True, underline=True) if _wants_colour() else f"{title}:"))

    def live(
        self,
        draw: Callable[[], tuple[Sequence[str], list[Row]]],
        wait: Callable[[], object],
        *,
        drop: Collection[str] = (),
    ) -> None:
        """Draw a table again and again until ``wait`` raises: in place on a terminal with rich, else one
        below the other."""
        console = _console()
        if console is None:
            while True:
                titles, rows = draw()
                self.table(titles, rows, empty="nothing yet", drop=drop)
                wait()
        from rich.live import Live

        with Live(console=console, auto_refresh=False) as live:
            while True:
                titles, rows = draw()
                live.update(_rich_table(*_drawn(titles, rows, drop)), refresh=True)
                wait()


def _is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _wants_colour() -> bool:
    return _is_terminal() and not os.environ.get("NO_COLOR")


def _console() -> Console | None:
    """Rich's console, if there is a terminal to draw on and rich to draw with."""
    if not _is_terminal():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False, force_terminal=True, no_color=not _wants_colour())


def _drawn(
    titles: Sequence[str], rows: Sequence[Row], drop: Collection[str] = (), cut: str = ""
) -> tuple[list[str], list[list[str]]]:
    """The cells as they are printed: made to fit if there is a terminal, whole if there is none."""
    if not rows or not _is_terminal():
        return list(titles), [[printable(cell) for cell in row] for row in rows]
    cells = [
        [short_time(cell) if isinstance(cell, datetime) else printable(cell) for cell in row] for row in rows
    ]
    return fit(titles, cells, shutil.get_terminal_size().columns, drop=drop, cut=cut)


def _least_width(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    columns = zip(*[titles, *rows], strict=True)
    return sum(max(map(cells_of, column)) + GAP for column in columns) - GAP


def _rich_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0)
    )
    for title in titles:
        table.add_column(title, no_wrap=True)
    for row in rows:
        # Text, not markup: a queue may be called [red].
        table.add_row(*(Text(cell, style=_colour(cell)) for cell in row))
    return table


def _colour(cell: str) -> str:
    return COLOURS.get(State(cell), "") if cell in frozenset(State) else ""


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(cells_of, column)) for column in zip(*rows, strict=True)]
    return [
        (" " * GAP)
        .join(cell + " " * (width - cells_of(cell)) for cell, width in zip(row, widths, strict=True))
        .rstrip()
        for row in rows
    ]
