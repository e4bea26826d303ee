"""PostgreSQL's schema, applied in one transaction a step: see ``store/sql/schemafiles``.

Whoever migrates holds a lock of its transaction, so that it works through a pooler, and waits for no table
longer than a moment: a step that meets a long transaction gives way and tries again, instead of standing in
front of everybody who comes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from tessera import seam
from tessera.model.errors import SchemaTooNew, SchemaTooOld, StoreBusy
from tessera.store.postgres.driver import Driver, Query, Transaction
from tessera.store.sql.schemafiles import Applied, Step, checked_target, edited_steps, named, plan, steps_of

INSTALLATION_BYTES: Final = 16
LOCK_TIMEOUT_MS: Final = 200
ATTEMPTS: Final = 50

# One migration at a time; the number is the schema's.
LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('tessera ' || $1, 0))"
PATIENCE: Final = "SELECT set_config('lock_timeout', $1, true)"
HAS_BOOKS: Final = """
SELECT count(*)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = 'migration' AND c.relkind = 'r'
"""
HAS_SCHEMA: Final = "SELECT count(*) FROM pg_catalog.pg_namespace WHERE nspname = $1"
OPEN_BOOKS: Final = """
CREATE TABLE IF NOT EXISTS {s}.migration (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum bytea NOT NULL,
    applied_at bigint NOT NULL
)
"""
APPLIED: Final = "SELECT version, name, checksum FROM {s}.migration ORDER BY version"
WRITE_DOWN: Final = """
INSERT INTO {s}.migration (version, name, checksum, applied_at)
VALUES ($1, $2, $3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
"""
STRIKE_OUT: Final = "DELETE FROM {s}.migration WHERE version = $1"
FOUND: Final = "INSERT INTO {s}.meta (id, installation) VALUES (1, $1) ON CONFLICT (id) DO NOTHING"
INSTALLATION: Final = "SELECT installation FROM {s}.meta"


def our_steps() -> tuple[Step, ...]:
    """The schema of this release."""
    return steps_of(files(__package__) / "schema")


class Schema:
    """The tables of one installation, in a schema of their own."""

    def __init__(self, driver: Driver, name: str, steps: Sequence[Step] | None = None) -> None:
        self._driver = driver
        self._name = name
        self._quoted = quoted(name)
        self.steps = our_steps() if steps is None else tuple(steps)

    async def open(self) -> bytes:
        """Create the tables in an empty schema, check them in another; the installation. Raises SchemaTooOld,
        SchemaTooNew.
        """
        if not await self.version():
            await self.migrate(None)
        found, ours = await self.version(), len(self.steps)
        if found < ours:
            raise SchemaTooOld(
                f"schema {self._name} is at version {found}, this Tessera needs {ours}; run: tessera migrate"
            )
        if found > ours:
            raise SchemaTooNew(
                f"schema {self._name} is at version {found} and this Tessera knows {ours}; upgrade Tessera"
            )
        [[(installation,)]] = await self._driver.flight([self._filled(INSTALLATION)])
        return bytes(installation)

    async def version(self) -> int:
        """The version of the tables; 0 = none yet."""
        books = await self._books(self._driver)
        return books[-1].version if books else 0

    async def migrate(self, to: int | None, *, dry_run: bool = False) -> list[str]:
        """Bring the tables to a version, whoever else tries the same at the same time. The steps taken, or
        with ``dry_run`` those to take. Raises InvalidArgument, SchemaTooNew, StoreError, StoreBusy.
        """
        target = checked_target(to, self.steps)
        if dry_run:
            return [named(*step) for step in plan(self.steps, await self._books(self._driver), target)]
        taken: list[str] = []
        failed = 0
        while True:
            try:
                step, is_last = await self._take_one(target)
            except StoreBusy:
                failed += 1
                if failed == ATTEMPTS:
                    raise
                await seam.sleep(seam.random() * 0.5)
                continue
            taken += step
            if is_last:
                return taken

    async def differences(self) -> list[str]:
        """Applied steps that are not what this release calls by their number."""
        return edited_steps(self.steps, await self._books(self._driver))

    async def _take_one(self, target: int) -> tuple[list[str], bool]:
        async with self._driver.transaction() as transaction:
            first: list[Query] = [(PATIENCE, ["0"]), (LOCK, [self._name]), (HAS_SCHEMA, [self._name])]
            *_, [(there,)] = await transaction.flight(first)
            if not there:
                await transaction.flight([(f"CREATE SCHEMA IF NOT EXISTS {self._quoted}", [])])
            left = plan(self.steps, await self._books(transaction), target)
            for step, forward in left[:1]:
                await transaction.flight(self._queries(step, forward=forward))
            await transaction.flight([], last=True)
        return [named(*step) for step in left[:1]], len(left) <= 1

    def _queries(self, step: Step, *, forward: bool) -> list[Query]:
        patience: Query = (PATIENCE, [str(LOCK_TIMEOUT_MS)])
        if not forward:
            return [patience, *map(self._filled, step.back), self._filled(STRIKE_OUT, step.version)]
        return [
            patience,
            self._filled(OPEN_BOOKS),
            *map(self._filled, step.forward),
            self._filled(WRITE_DOWN, step.version, step.name, step.checksum),
            self._filled(FOUND, seam.random_bytes(INSTALLATION_BYTES)),
        ]

    async def _books(self, flights: Driver | Transaction) -> list[Applied]:
        [[(there,)]] = await flights.flight([(HAS_BOOKS, [self._name])])
        if not there:
            return []
        [found] = await flights.flight([self._filled(APPLIED)])
        return [Applied(*row) for row in found]

    def _filled(self, query: str, *parameters: object) -> Query:
        return query.replace("{schema}", self._quoted).replace("{s}", self._quoted), parameters


def quoted(name: str) -> str:
    """A name as SQL writes it, whatever is in it."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
