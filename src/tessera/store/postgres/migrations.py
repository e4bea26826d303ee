"""PostgreSQL's schema over time: made whole in an empty database, and changed beside the work in any other.

``migrate`` takes the ``pre`` parts, which code of the release before does not mind; both releases then share
the tables until ``contract`` takes the ``post`` parts. Where others may work, a part goes piece by piece: a
transaction that neither waits for a lock nor holds one longer than a moment, and tries again, instead of
standing in front of everybody who comes after it; an index is built beside the work. The books say after each
piece how far it went, so that whoever comes next goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from tessera import seam
from tessera.model.errors import SchemaTooNew, SchemaTooOld, StoreBusy, StoreError
from tessera.store.postgres import books as book
from tessera.store.postgres.books import Plan, Task, contracting, downwards, supported, upwards, whole
from tessera.store.postgres.driver import Driver, Flights, Query, quoted
from tessera.store.postgres.errors import Retry
from tessera.store.postgres.lock import PATIENCE, PATIENCE_MS, LockedOut, as_one, holding, patience, stand_by
from tessera.store.sql.schemafiles import Applied, Piece, Step, checked_target, edited_steps, steps_of

INSTALLATION_BYTES: Final = 16
END_MS: Final = 30_000
ATTEMPTS: Final = 50
LOOK_SECONDS: Final = 10.0
LOCK_SECONDS: Final = 60.0
"""How long to wait for whoever else is changing the tables."""

HAS_SCHEMA: Final = "SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = $1"
MAKE_SCHEMA: Final = "CREATE SCHEMA IF NOT EXISTS {schema}"
FOUND: Final = "INSERT INTO {schema}.meta (id, installation) VALUES (1, $1) ON CONFLICT (id) DO NOTHING"
INSTALLATION: Final = "SELECT installation FROM {schema}.meta"
INDEX_STATE: Final = """
SELECT i.indisvalid
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2
"""
DROP_INDEX: Final = "DROP INDEX CONCURRENTLY IF EXISTS {schema}.{index}"


def our_steps() -> tuple[Step, ...]:
    """The schema of this release."""
    return steps_of(files(__package__) / "schema")


class Schema:
    """The tables of one installation, in a schema of their own. ``blocking`` is the driver's colour,
    ``connections`` how many it opens at most.
    """

    def __init__(
        self,
        driver: Driver,
        name: str,
        *,
        blocking: bool,
        connections: int = 2,
        steps: Sequence[Step] | None = None,
    ) -> None:
        self.driver = driver
        self._blocking = blocking
        self._connections = connections
        self.name = name
        self.quoted = quoted(name)
        self._looked_at = 0.0
        self.steps = our_steps() if steps is None else tuple(steps)

    async def open(self) -> bytes:
        """Make the tables of this schema if there are none, check them if there are; the installation. Raises
        SchemaTooOld, SchemaTooNew, StoreError.
        """
        books = await self.books()
        if not books:
            await self.migrate(None)
            books = await self.books()
        self._check(books)
        self._looked_at = seam.monotonic()
        found = await self.driver.flight([self.filled(INSTALLATION)])
        if not found[0]:
            raise StoreError(f"schema {self.name} has no installation; run: tessera migrate adopt")
        return bytes(found[0][0][0])

    async def look_again(self) -> None:
        """Check the tables as ``open`` does, now and then: they may be contracted while older code runs; it
        then takes no more work. Raises SchemaTooNew, SchemaTooOld.
        """
        if seam.monotonic() - self._looked_at >= LOOK_SECONDS:
            [found] = await self.driver.flight([self.filled(book.APPLIED)])
            self._check([Applied(*row) for row in found])
            self._looked_at = seam.monotonic()

    async def version(self) -> int:
        """The newest version that the tables serve; 0 = there are none yet."""
        return supported(await self.books())[1]

    async def form(self) -> int:
        """The version whose form is to be written: until ``contract`` the one that older code reads."""
        return supported(await self.books())[0]

    async def migrate(self, to: int | None, *, dry_run: bool = False) -> list[str]:
        """Bring the tables to a version, whoever else tries the same at the same time. The steps taken, or
        with ``dry_run`` those to take; what was taken stays if a later one fails.

        Raises InvalidArgument for a version that does not exist, SchemaTooNew where the way is known to newer
        code only, StoreError for an applied step that was edited, StoreBusy where a lock was not to be had.
        """
        target = checked_target(to, self.steps)
        plan = self._way(to, target, await self.books())
        return await self._carry_out(plan, dry_run=dry_run, target=target)

    async def contract(self, *, dry_run: bool = False) -> list[str]:
        """Take what older code would mind, now that none runs. Raises as ``migrate`` does."""
        return await self._carry_out(contracting(self.steps), dry_run=dry_run, target=0)

    async def script(self, to: int | None, *, contract: bool = False) -> str:
        """The SQL of what ``migrate`` or ``contract`` would do, for somebody who runs it by hand and then
        ``adopt``.
        """
        target = checked_target(to, self.steps)
        books = await self.books()
        if not books and not contract:
            statements = [
                MAKE_SCHEMA,
                book.OPEN_BOOKS,
                *(s for step in self.steps[:target] for s in step.forward),
            ]
            return self._script(["BEGIN", *statements, "COMMIT"])
        plan = contracting(self.steps) if contract else self._way(to, target, books)
        tasks = plan(books)
        lines: list[str] = []
        for task in tasks:
            lines.append(f"-- {task.title}")
            if task.piece.built:
                lines.append(task.piece.concurrent)
            elif task.piece.statements:
                lines += [
                    "BEGIN",
                    f"SET LOCAL lock_timeout = '{PATIENCE_MS}ms'",
                    *task.piece.statements,
                    "COMMIT",
                ]
        return self._script(lines)

    async def differences(self) -> list[str]:
        """Applied steps that are not what this release calls by their number."""
        return edited_steps(self.steps, await self.books())

    async def books(self, flights: Flights | None = None) -> list[Applied]:
        """What the schema's own books say; empty where Tessera has no tables."""
        flights = flights or self.driver
        [[(there,)]] = await flights.flight([(book.HAS_BOOKS, [self.name])])
        if not there:
            return []
        [found] = await flights.flight([self.filled(book.APPLIED)])
        return [Applied(*row) for row in found]

    def filled(self, query: str, *parameters: object) -> Query:
        """A statement over this schema."""
        return query.replace("{schema}", self.quoted), parameters

    def founding(self, steps: Sequence[Step]) -> list[Query]:
        """The books of steps that are taken whole, and the installation."""
        return [
            *(self.written(whole(step)) for step in steps),
            self.filled(FOUND, seam.random_bytes(INSTALLATION_BYTES)),
        ]

    def written(self, line: Applied) -> Query:
        """One line of the books."""
        return self.filled(book.WRITE_DOWN, *line)

    def _check(self, books: Sequence[Applied]) -> None:
        (lowest, highest), ours = supported(books), len(self.steps)
        if highest < ours:
            raise SchemaTooOld(
                f"schema {self.name} is at version {highest}, this Tessera needs {ours}; run: tessera migrate"
            )
        if lowest > ours:
            raise SchemaTooNew(
                f"schema {self.name} is at version {highest} and this Tessera knows {ours}; upgrade Tessera"
            )

    def _way(self, to: int | None, target: int, books: Sequence[Applied]) -> Plan:
        """Back only where a version is asked for that lies behind."""
        is_back = to is not None and bool(books) and books[-1].version > target
        return downwards(self.steps, target) if is_back else upwards(self.steps, target)

    # Taking steps -------------------------------------------------------------------------------------------

    async def _carry_out(self, plan: Plan, *, dry_run: bool, target: int) -> list[str]:
        taken: list[str] = []
        if dry_run:
            return [task.title for task in plan(await self.books()) if task.is_last]
        failed, late = 0, seam.monotonic() + LOCK_SECONDS
        while True:
            try:
                titles, is_done = await self._take_one(plan, target)
            except LockedOut:
                if seam.monotonic() > late:
                    raise StoreBusy(f"somebody else is changing the tables of schema {self.name}") from None
                await self._rest(0.05)
            except (StoreBusy, Retry) as error:
                failed += 1
                if failed == ATTEMPTS:
                    raise StoreBusy(
                        f"a lock could not be had within {PATIENCE_MS} ms, {ATTEMPTS} times ({error}): "
                        "a long transaction is in the way (see: tessera doctor); what was done stays"
                    ) from error
                await self._rest(0.5)
            else:
                failed, late = 0, seam.monotonic() + LOCK_SECONDS
                taken += titles
                if is_done:
                    return taken

    async def _take_one(self, plan: Plan, target: int) -> tuple[list[str], bool]:
        """Take the next piece; the parts that are whole with it, and whether nothing is left."""
        async with holding(self.driver, self.quoted) as transaction:
            books = await self.books(transaction)
            if not books and target:
                await transaction.flight(await self._from_nothing(transaction, target), last=True)
                return [step.name for step in self.steps[:target]], True
            left = plan(books)
            if not left:
                return [], True
            task = left[0]
            if task.piece.built:
                await stand_by(transaction)
                await self._build(task.piece)
            await transaction.flight(self._queries(task), last=True)
        return [task.title] if task.is_last else [], len(left) == 1

    async def _from_nothing(self, flights: Flights, target: int) -> list[Query]:
        """All at once: nobody works here yet."""
        [[(is_there,)]] = await flights.flight([(HAS_SCHEMA, [self.name])])
        [[(has_books,)]] = await flights.flight([(book.HAS_BOOKS, [self.name])])
        steps = self.steps[:target]
        return [
            *([] if is_there else [self.filled(MAKE_SCHEMA)]),
            *([] if has_books else [self.filled(book.OPEN_BOOKS)]),
            *(self.filled(statement) for step in steps for statement in step.forward),
            *self.founding(steps),
        ]

    def _queries(self, task: Task) -> list[Query]:
        statements = [] if task.piece.built else [self.filled(one)[0] for one in task.piece.statements]
        done = [self.filled(as_one(statements))] if statements else []
        if task.part == "down":
            # The first step is everything: who takes that back has stopped the work.
            limit = PATIENCE if task.step.version > 1 else patience(END_MS)
            return [limit, *done, self.filled(book.STRIKE_OUT, task.step.version)]
        return [PATIENCE, *done, self.written(task.line)]

    async def _build(self, piece: Piece) -> None:
        """Build an index beside the work, on another connection than the one that holds the lock. What an
        attempt that failed has left is invalid, and goes first.
        """
        if self._connections < 2:
            raise StoreError(
                f"building {piece.built} beside the work takes two connections; say connections=2"
            )
        [found] = await self.driver.flight([(INDEX_STATE, [self.name, piece.built])])
        if found and found[0][0]:
            return
        if found:
            await self.driver.flight([self.filled(DROP_INDEX.replace("{index}", piece.built))])
        await self.driver.flight([self.filled(piece.concurrent)])

    async def _rest(self, seconds: float) -> None:
        """Let others get on, for a part of so long."""
        seconds *= 0.1 + seam.random() * 0.9
        if self._blocking:
            seam.pause(seconds)
        else:
            await seam.sleep(seconds)

    def _script(self, statements: Sequence[str]) -> str:
        filled = (self.filled(one)[0].strip() for one in statements)
        return "\n".join(one if one.endswith(";") or _is_comment(one) else f"{one};" for one in filled) + "\n"


def _is_comment(text: str) -> bool:
    return text.startswith("--") and "\n" not in text
