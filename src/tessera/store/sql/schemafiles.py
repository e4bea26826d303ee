"""The schema as plain numbered SQL files, and what of them is to be applied.

A file ``0002_words.sql`` has three parts behind the lines ``-- pre``, ``-- post`` and ``-- down``: what
older code does not mind, what it would, and the way back. What was applied is written down in the store with
a checksum of the first two parts, so that a released file that was edited is noticed.
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
_TRIGGER: Final = re.compile(r"\bCREATE\s+TRIGGER\b", re.IGNORECASE)


class Step(NamedTuple):
    """One numbered file."""

    version: int
    name: str
    forward: tuple[str, ...]
    back: tuple[str, ...]
    checksum: bytes


class Applied(NamedTuple):
    """One line of the store's own books."""

    version: int
    name: str
    checksum: bytes


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
    edited = edited_steps(steps, books)
    if edited:
        raise StoreError("; ".join(edited) + "; restore the released file")
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
    forward = "".join(parts["pre"] + parts["post"])
    return Step(
        version,
        name,
        tuple(_statements(forward)),
        tuple(_statements("".join(parts["down"]))),
        hashlib.sha256(forward.encode()).digest(),
    )


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
    """Whether a semicolon at the end of a line ends the statement: not inside a quoted body."""
    if statement.count("$$") % 2:
        return False
    return not _TRIGGER.search(statement) or statement.upper().rstrip().endswith("END;")
