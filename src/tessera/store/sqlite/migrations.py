"""SQLite's schema, applied in one transaction a step: see ``store/sql/schemafiles``."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from tessera import seam
from tessera.model.errors import SchemaTooNew, SchemaTooOld
from tessera.store.sql.schemafiles import Applied, Step, checked_target, named, plan, steps_of

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


def migrate(
    connection: sqlite3.Connection, steps: Sequence[Step], to: int | None, now: int, *, dry_run: bool = False
) -> list[str]:
    """Bring the file to a version, one transaction a step, whoever else tries the same at the same time.

    Returns the steps taken, or with ``dry_run`` those to take. Raises InvalidArgument for a version that
    does not exist, SchemaTooNew where the way back is in a newer release, and StoreError for an applied
    step that was edited.
    """
    target = checked_target(to, steps)
    if dry_run:
        return [named(step, forward) for step, forward in plan(steps, applied(connection), target)]
    taken = []
    while True:
        connection.execute("BEGIN IMMEDIATE")
        try:
            left = plan(steps, applied(connection), target)
            for step, forward in left[:1]:
                _take(connection, step, forward, now)
                taken.append(named(step, forward))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if len(left) <= 1:
            return taken


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
