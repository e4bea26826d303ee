"""The schema: plain numbered SQL files, applied forwards, one transaction a step.

A file ``0002_words.sql`` has three parts behind the lines ``-- pre``, ``-- post`` and ``-- down``: what
older code does not mind, what it would, and the way back. What was applied is written down with a checksum
of the first two parts, so that a released file that was edited is noticed.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final, NamedTuple

from tessera import seam
from tessera.model.errors import InvalidArgument, SchemaTooNew, SchemaTooOld, StoreError

_NAME: Final = re.compile(r"(\d{4})_(\w+)\.sql")
_PARTS: Final = ("pre", "post", "down")
INSTALLATION_BYTES: Final = 16

HAS_BOOKS: Final = """
SELECT count(*)
FROM sqlite_master
WHERE type = 'table' AND name = 'tessera_migration'
"""
OPEN_BOOKS: Final = """
CREATE TABLE IF NOT EXISTS tessera_migration (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    checksum BLOB NOT NULL,
    applied_at INTEGER NOT NULL
)
"""
APPLIED: Final = """
SELECT version, name, checksum
FROM tessera_migration
ORDER BY version
"""
WRITE_DOWN: Final = """
INSERT INTO tessera_migration (version, name, checksum, applied_at)
VALUES (:version, :name, :checksum, :now)
"""
STRIKE_OUT: Final = """
DELETE FROM tessera_migration
WHERE version = :version
"""
FOUND: Final = """
INSERT OR IGNORE INTO tessera_meta (id, installation)
VALUES (1, :installation)
"""


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


def our_steps() -> tuple[Step, ...]:
    """The schema of this release."""
    return steps_of(files(__package__) / "schema")


def applied(connection: sqlite3.Connection) -> list[Applied]:
    """What the file's books say; empty in a file that Tessera never used."""
    if connection.execute(HAS_BOOKS).fetchone()[0] == 0:
        return []
    return [Applied(*row) for row in connection.execute(APPLIED)]


def version_of(connection: sqlite3.Connection) -> int:
    """The schema version of the file; 0 = none yet."""
    books = applied(connection)
    return books[-1].version if books else 0


def check(path: str, found: int, ours: int) -> None:
    """Raise SchemaTooOld or SchemaTooNew unless the file is at the version that this code works on."""
    if found < ours:
        raise SchemaTooOld(
            f"{path} has schema version {found} and this Tessera needs {ours}; run: tessera migrate --url sqlite:///{path}"
        )
    if found > ours:
        raise SchemaTooNew(
            f"{path} has schema version {found} and this Tessera knows {ours}; upgrade Tessera"
        )


def edited_steps(steps: Sequence[Step], books: Sequence[Applied]) -> list[str]:
    """Applied steps that are not what this code calls by their number, each in a sentence."""
    known = {step.version: step for step in steps}
    return [
        f"schema step {line.name} is not what was applied under its number (version {line.version})"
        for line in books
        if line.version in known and known[line.version].checksum != line.checksum
    ]


def migrate(
    connection: sqlite3.Connection, steps: Sequence[Step], to: int | None, now: int, *, dry_run: bool = False
) -> list[str]:
    """Bring the file to a version, one transaction a step, whoever else tries the same at the same time.

    Returns the steps taken, or with ``dry_run`` those to take. Raises InvalidArgument for a version that
    does not exist, SchemaTooNew where the way back is in a newer release, and StoreError for an applied
    step that was edited.
    """
    target = len(steps) if to is None else to
    if not 0 <= target <= len(steps):
        raise InvalidArgument(
            "to", f"there is no schema version {target}; this Tessera knows 0 to {len(steps)}"
        )
    if dry_run:
        return [_named(step, forward) for step, forward in _plan(steps, applied(connection), target)]
    taken = []
    while True:
        connection.execute("BEGIN IMMEDIATE")
        try:
            plan = _plan(steps, applied(connection), target)
            for step, forward in plan[:1]:
                _take(connection, step, forward, now)
                taken.append(_named(step, forward))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if len(plan) <= 1:
            return taken


def _plan(steps: Sequence[Step], books: Sequence[Applied], target: int) -> list[tuple[Step, bool]]:
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


def _take(connection: sqlite3.Connection, step: Step, forward: bool, now: int) -> None:
    if forward:
        connection.execute(OPEN_BOOKS)
        for statement in step.forward:
            connection.execute(statement)
        written = {"version": step.version, "name": step.name, "checksum": step.checksum, "now": now}
        connection.execute(WRITE_DOWN, written)
        connection.execute(FOUND, {"installation": seam.random_bytes(INSTALLATION_BYTES)})
    else:
        for statement in step.back:
            connection.execute(statement)
        connection.execute(STRIKE_OUT, {"version": step.version})


def _named(step: Step, forward: bool) -> str:
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
        if line.strip().endswith(";") and sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
    if statement.strip() and not all(
        line.startswith("--") or not line.strip() for line in statement.splitlines()
    ):
        raise InvalidArgument("schema", f"a statement does not end: {statement.strip()[:60]!r}")
