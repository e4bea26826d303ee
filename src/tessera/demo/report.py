"""The report: totals, types, the largest files, duplicates and a table of all, as JSON and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tessera.demo.listing import replace_file
from tessera.demo.measuring import Measured

LARGEST: Final = 10
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


class Totals(msgspec.Struct, frozen=True):
    """Sums over files."""

    files: int = 0
    bytes: int = 0
    lines: int = 0
    words: int = 0


class TypeTotals(Totals, frozen=True, kw_only=True):
    """Sums over the files of one type."""

    type: str


class Copies(msgspec.Struct, frozen=True):
    """Files with the same content."""

    sha256: str
    size: int
    paths: tuple[str, ...]


class Trouble(msgspec.Struct, frozen=True):
    """A file or folder of which nothing is known, and why."""

    path: str
    problem: str


class Report(msgspec.Struct, frozen=True):
    """All that is known about a folder. Paths are spelled (``\\x0a`` for a newline) and relative to it."""

    folder: str
    how: str
    totals: Totals
    types: tuple[TypeTotals, ...]
    """Most bytes first."""
    largest: tuple[Measured, ...]
    duplicates: tuple[Copies, ...]
    """Most wasted bytes first; empty files are no duplicates."""
    problems: tuple[Trouble, ...]
    files: tuple[Measured, ...]
    """Every file, those with problems too, in the order of their names."""


def build(folder: str, how: str, files: Sequence[Measured], closed: Iterable[str] = ()) -> Report:
    """Join what was measured. ``closed``: folders that could not be listed, each with a colon and why."""
    known = [file for file in files if not file.problem]
    folders = (
        Trouble(f"{path}/", problem) for path, _, problem in (text.rpartition(": ") for text in closed)
    )
    return Report(
        folder=folder,
        how=how,
        totals=Totals(*_sums(known)),
        types=_by_type(known),
        largest=tuple(sorted(known, key=lambda file: (-file.size, file.path))[:LARGEST]),
        duplicates=_copies(known),
        problems=(*folders, *(Trouble(file.path, file.problem) for file in files if file.problem)),
        files=tuple(files),
    )


def _sums(files: Sequence[Measured]) -> tuple[int, int, int, int]:
    return (
        len(files),
        sum(file.size for file in files),
        sum(file.lines or 0 for file in files),
        sum(file.words or 0 for file in files),
    )


def _by_type(files: Sequence[Measured]) -> tuple[TypeTotals, ...]:
    groups: dict[str, list[Measured]] = {}
    for file in files:
        groups.setdefault(file.type, []).append(file)
    totals = [TypeTotals(*_sums(group), type=name) for name, group in groups.items()]
    return tuple(sorted(totals, key=lambda total: (-total.bytes, total.type)))


def _copies(files: Sequence[Measured]) -> tuple[Copies, ...]:
    groups: dict[str, list[Measured]] = {}
    for file in files:
        if file.size:
            groups.setdefault(file.sha256, []).append(file)
    copies = [
        Copies(sha256, group[0].size, tuple(file.path for file in group))
        for sha256, group in groups.items()
        if len(group) > 1
    ]
    return tuple(sorted(copies, key=lambda one: (-one.size * (len(one.paths) - 1), one.sha256)))


# Writing ----------------------------------------------------------------------------------------------------


def write_report(report: Report, json: Path, markdown: Path) -> None:
    """Write both forms; each file is there wholly or not at all, the JSON last."""
    replace_file(markdown, as_markdown(report).encode())
    replace_file(json, msgspec.json.format(msgspec.json.encode(report), indent=1))


def read_report(json: Path) -> Report:
    """A report as it was written. Raises OSError, msgspec.DecodeError."""
    return msgspec.json.decode(json.read_bytes(), type=Report)


def as_markdown(report: Report) -> str:
    """The report for people."""
    parts = [
        f"# Files of {code(report.folder)}\n",
        _in_short(report),
        "## By type\n",
        _table(
            ("type", "files", "bytes", "lines", "words"),
            [(t.type, f"{t.files:,}", f"{t.bytes:,}", f"{t.lines:,}", f"{t.words:,}") for t in report.types],
        ),
        "## Largest\n",
        _table(("file", "bytes", "type"), [(code(f.path), f"{f.size:,}", f.type) for f in report.largest]),
        "## Duplicates\n",
        _list(
            f"{len(c.paths)} copies of {c.size:,} bytes: {', '.join(map(code, c.paths))}"
            for c in report.duplicates
        ),
        "## Problems\n",
        _list(f"{code(trouble.path)}: {trouble.problem}" for trouble in report.problems),
        "## Every file\n",
        _table(
            ("file", "bytes", "type", "lines", "words", "sha256"),
            [
                (
                    code(f.path),
                    f"{f.size:,}",
                    f.type or "?",
                    _count(f.lines),
                    _count(f.words),
                    f.sha256 or "?",
                )
                for f in report.files
            ],
        ),
    ]
    return "\n".join(parts)


def _in_short(report: Report) -> str:
    totals = report.totals
    size = show_size(totals.bytes)
    return f"{totals.files:,} files, {report.how}: {size}, {totals.lines:,} lines, {totals.words:,} words.\n"


def show_size(count: int) -> str:
    """Bytes in the unit that reads best.

    >>> show_size(1_530_000)
    '1.5 MB'
    """
    size = float(count)
    unit = 0
    while size >= 1_000 and unit < len(_UNITS) - 1:
        size /= 1_000
        unit += 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def code(text: str) -> str:
    """A name as code within a table: bars and backticks in it must not end the cell."""
    fence = "``" if "`" in text else "`"
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}".replace("|", "\\|")


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "None.\n"
    rule = ["---" if name in ("file", "type", "sha256") else "---:" for name in head]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))


def _list(lines: Iterable[str]) -> str:
    return "".join(f"- {line}\n" for line in lines) or "None.\n"
