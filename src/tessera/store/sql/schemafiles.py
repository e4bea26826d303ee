"""The schema as plain numbered SQL files, and what of them is to be applied.

A file ``0002_words.sql`` has three parts behind the lines ``-- pre``, ``-- post`` and ``-- down``: what
older code does not mind, what it would, and the way back. What was applied is written down in the store with
a checksum of the first two parts, so that a released file that was edited is noticed.

A server that others work on meanwhile takes a part in pieces, each in a transaction of its own: one ends at
a line ``-- apart``, and the index that follows a line ``-- concurrently`` is built beside the work. Whoever
writes a step owes three things: a ``pre`` works before and after the ``post`` of the steps below it, since an
operator may take several releases at once; ``down`` works whether ``post`` was taken or not, and half way
through either (``IF EXISTS``); and no piece works through many rows, since its locks are held till its end.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final, NamedTuple

from tessera.model.errors import InvalidArgument, SchemaTooNew, StoreError

_NAME: Final = re.compile(r"(\d{4})_(\w+)\.sql")
_PARTS: Final = ("pre", "post", "down")
_APART: Final = "-- apart"
_CONCURRENTLY: Final = "-- concurrently"
_INDEX: Final = re.compile(
    r"((?:\s*--[^\n]*\n)*\s*CREATE\s+(?:UNIQUE\s+)?INDEX)\s+(\w+)\s+ON\s+\{schema\}\.", re.IGNORECASE
)
_TRIGGER: Final = re.compile(r"\bCREATE\s+TRIGGER\b.*\bBEGIN\b", re.IGNORECASE | re.DOTALL)
_WHOLE: Final = re.compile(r"--[^\n]*|\$\$.*?\$\$|'(?:[^']|'')*'", re.DOTALL)
"""What may hold a semicolon: a comment, a quoted body, a text."""


class Piece(NamedTuple):
    """Statements of one transaction. ``built`` names the index that the only one of them builds beside the
    work of others, outside any transaction.
    """

    statements: tuple[str, ...]
    built: str = ""

    @property
    def concurrent(self) -> str:
        """The statement of an index as it is built beside the work."""
        return _INDEX.sub(r"\1 CONCURRENTLY \2 ON {schema}.", self.statements[0], count=1)


class Step(NamedTuple):
    """One numbered file."""

    version: int
    name: str
    pre: tuple[Piece, ...]
    post: tuple[Piece, ...]
    back: tuple[str, ...]
    checksum: bytes

    @property
    def forward(self) -> tuple[str, ...]:
        """All statements of the way up, for a store that nobody else works on."""
        return tuple(one for piece in (*self.pre, *self.post) for one in piece.statements)


class Applied(NamedTuple):
    """One line of the store's own books. The rest is for stores that take a step in parts: pieces taken of
    each, and whether it is whole.
    """

    version: int
    name: str
    checksum: bytes
    pre: int = 0
    post: int = 0
    is_applied: bool = True
    is_contracted: bool = True


def steps_of(folder: Traversable | Path) -> tuple[Step, ...]:
    """The numbered files of a folder, in order and without a gap."""
    found = []
    for file in folder.iterdir():
        match = _NAME.fullmatch(file.name)
        if match is not None:
            found.append(
                _step(int(match[1]), file.name.removesuffix(".sql"), file.read_text(encoding="utf-8"))
            )
    found.sort()
    if [step.version for step in found] != list(range(1, len(found) + 1)):
        raise InvalidArgument(
            "schema", f"the numbered files are not 1 to {len(found)}: {[s.name for s in found]}"
        )
    return tuple(found)


def edited_steps(steps: Sequence[Step], books: Sequence[Applied]) -> list[str]:
    """Applied steps that are not what this code calls by their number, each in a sentence."""
    known = {step.version: step for step in steps}
    return [
        f"schema step {line.name} is not what was applied under its number (version {line.version})"
        for line in books
        if line.version in known and known[line.version].checksum != line.checksum
    ]


def check_steps(steps: Sequence[Step], books: Sequence[Applied]) -> None:
    """Raise StoreError for an applied step that is not what this code calls by its number."""
    if edited := edited_steps(steps, books):
        raise StoreError("; ".join(edited) + "; restore the released file")


def checked_target(to: int | None, steps: Sequence[Step]) -> int:
    """The version to bring a store to. Raises InvalidArgument for one that does not exist."""
    target = len(steps) if to is None else to
    if not 0 <= target <= len(steps):
        raise InvalidArgument(
            "to", f"there is no schema version {target}; this Tessera knows 0 to {len(steps)}"
        )
    return target


def plan(steps: Sequence[Step], books: Sequence[Applied], target: int) -> list[tuple[Step, bool]]:
    """Steps to take, and whether forwards. Raises SchemaTooNew, StoreError."""
    found = books[-1].version if books else 0
    if found > len(steps):
        raise SchemaTooNew(
            f"the store has schema version {found} and this Tessera knows {len(steps)}; upgrade Tessera"
        )
    check_steps(steps, books)
    if target >= found:
        return [(step, True) for step in steps[found:target]]
    return [(step, False) for step in reversed(steps[target:found])]


def named(step: Step, forward: bool) -> str:
    """The step in words."""
    return step.name if forward else f"{step.name} (back)"


def _step(version: int, name: str, text: str) -> Step:
    parts: dict[str, list[str]] = {part: [] for part in _PARTS}
    current: list[str] | None = None
    for line in text.splitlines(keepends=True):
        marker = line.strip().removeprefix("-- ")
        if line.startswith("-- ") and marker in parts:
            current = parts[marker]
        elif current is not None:
            current.append(line)
    pre, post = "".join(parts["pre"]), "".join(parts["post"])
    return Step(
        version,
        name,
        tuple(_pieces(pre)),
        tuple(_pieces(post)),
        tuple(_statements("".join(parts["down"]))),
        hashlib.sha256((pre + post).encode()).digest(),
    )


def _pieces(text: str) -> Iterator[Piece]:
    marker, segment = _APART, ""
    for line in (*text.splitlines(keepends=True), _APART):
        if line.strip() not in (_APART, _CONCURRENTLY):
            segment += line
            continue
        statements = tuple(_statements(segment))
        if marker == _CONCURRENTLY:
            yield _index(statements[0] if statements else "")
            statements = statements[1:]
        if statements:
            yield Piece(statements)
        marker, segment = line.strip(), ""


def _index(statement: str) -> Piece:
    match = _INDEX.match(statement)
    if match is None:
        raise InvalidArgument(
            "schema",
            f"behind {_CONCURRENTLY} stands no CREATE INDEX name ON {{schema}}.table: {statement[:60]!r}",
        )
    return Piece((statement,), match[2])


def _statements(text: str) -> Iterator[str]:
    """The statements of a script. The driver's own way to run a script would commit first."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if line.strip().endswith(";") and _is_complete(statement):
            yield statement.strip()
            statement = ""
    if statement.strip() and not all(
        line.startswith("--") or not line.strip() for line in statement.splitlines()
    ):
        raise InvalidArgument("schema", f"a statement does not end: {statement.strip()[:60]!r}")


def _is_complete(statement: str) -> bool:
    """Whether a semicolon at the end of a line ends the statement: not inside a text, a quoted body or a
    trigger.
    """
    bare = _WHOLE.sub(" ", statement)
    if "'" in bare or "$$" in bare or not bare.rstrip().endswith(";"):
        return False
    return not _TRIGGER.search(bare) or bare.upper().rstrip().endswith("END;")
