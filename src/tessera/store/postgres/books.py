"""What is written down about the schema: which steps were taken, and how far each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tessera.model.errors import SchemaTooNew
from tessera.store.sql.schemafiles import Applied, Piece, Step, check_steps

HAS_BOOKS: Final = """
SELECT count(*)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = 'migration' AND c.relkind = 'r'
"""
# "pre" and "post" count the pieces taken; a part is whole from its instant on.
OPEN_BOOKS: Final = """
CREATE TABLE {schema}.migration (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum bytea NOT NULL,
    pre smallint NOT NULL,
    post smallint NOT NULL,
    applied_at bigint,
    contracted_at bigint
)
"""
APPLIED: Final = """
SELECT version, name, checksum, pre, post, applied_at IS NOT NULL, contracted_at IS NOT NULL
FROM {schema}.migration
ORDER BY version
"""
WRITE_DOWN: Final = """
INSERT INTO {schema}.migration AS m (version, name, checksum, pre, post, applied_at, contracted_at)
SELECT $1, $2, $3, $4, $5, CASE WHEN $6 THEN t.now END, CASE WHEN $7 THEN t.now END
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) AS t
ON CONFLICT (version) DO UPDATE
SET pre = excluded.pre, post = excluded.post, applied_at = coalesce(m.applied_at, excluded.applied_at),
    contracted_at = coalesce(m.contracted_at, excluded.contracted_at)
"""
STRIKE_OUT: Final = "DELETE FROM {schema}.migration WHERE version = $1"


class Task(NamedTuple):
    """The next thing to do: a piece of a step's ``pre`` or ``post``, or all of its ``down``. ``line`` is what
    the books say afterwards.
    """

    step: Step
    part: str
    piece: Piece
    line: Applied

    @property
    def is_last(self) -> bool:
        """Whether the part is whole then."""
        return self.part == "down" or (
            self.line.is_applied if self.part == "pre" else self.line.is_contracted
        )

    @property
    def title(self) -> str:
        """The part in words."""
        return self.step.name + {"pre": "", "post": " (contract)", "down": " (back)"}[self.part]


Plan = Callable[[Sequence[Applied]], list[Task]]


def supported(books: Sequence[Applied]) -> tuple[int, int]:
    """(lowest, highest) version of code that works on the tables: code of a step whose ``post`` is not taken
    yet shares them with code of the step before.
    """
    highest = max((line.version for line in books if line.is_applied), default=0)
    return max((line.version for line in books if line.is_contracted), default=0), highest


def upwards(steps: Sequence[Step], target: int) -> Plan:
    """Every ``pre`` up to a version."""

    def plan(books: Sequence[Applied]) -> list[Task]:
        check_steps(steps, books)
        lowest, highest = supported(books)
        if lowest > len(steps):
            raise SchemaTooNew(
                f"the store has schema version {highest} and this Tessera knows {len(steps)}; upgrade Tessera"
            )
        lines = {line.version: line for line in books}
        return [task for step in steps[:target] for task in _parts(step, "pre", lines.get(step.version))]

    return plan


def contracting(steps: Sequence[Step]) -> Plan:
    """Every ``post`` that its step's ``pre`` waits for. It is for the newest code alone."""

    def plan(books: Sequence[Applied]) -> list[Task]:
        check_steps(steps, books)
        _, highest = supported(books)
        if highest > len(steps):
            raise SchemaTooNew(
                f"the store has schema version {highest} and this Tessera knows {len(steps)}; "
                "contract with the newer one"
            )
        lines = {line.version: line for line in books}
        return [task for step in steps[:highest] for task in _parts(step, "post", lines[step.version])]

    return plan


def downwards(steps: Sequence[Step], target: int) -> Plan:
    """The way back to a version, also from steps that were taken in part."""

    def plan(books: Sequence[Applied]) -> list[Task]:
        check_steps(steps, books)
        if books and books[-1].version > len(steps):
            raise SchemaTooNew(
                f"the store has schema version {books[-1].version}, and this Tessera knows the way back from "
                f"{len(steps)}; upgrade Tessera"
            )
        return [
            Task(steps[line.version - 1], "down", Piece(steps[line.version - 1].back), line)
            for line in reversed(books)
            if line.version > target
        ]

    return plan


def whole(step: Step) -> Applied:
    """The line of a step of which all is taken."""
    return Applied(step.version, step.name, step.checksum, len(step.pre), len(step.post))


def _parts(step: Step, part: str, line: Applied | None) -> list[Task]:
    line = line or Applied(step.version, step.name, step.checksum, is_applied=False, is_contracted=False)
    if line.is_applied if part == "pre" else line.is_contracted:
        return []
    pieces = step.pre if part == "pre" else step.post
    # A part without statements is written down all the same.
    numbered = list(enumerate(pieces, 1)) or [(0, Piece(()))]
    tasks = []
    for number, piece in numbered:
        is_whole = number == len(pieces)
        if part == "pre":
            after = line._replace(pre=number, is_applied=is_whole)
            is_taken = number <= line.pre
        else:
            after = line._replace(post=number, is_contracted=is_whole)
            is_taken = number <= line.post
        if not is_taken or not pieces:
            tasks.append(Task(step, part, piece, after))
    return tasks
