"""The one lock of whoever changes the tables themselves: migrations, partitions, rebuilt indexes.

It belongs to a transaction, so that it works through a pooler, and nobody waits for it inside the server: a
session that waits has a snapshot, and an index that is built beside the work would wait for that snapshot,
each for the other and for ever.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tessera.store.postgres.driver import Driver, Query, Transaction

# The number is the schema's.
_TRY: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended('tessera ' || $1, 0))"
# An index may take an hour, and the server's own bounds are meant for the application.
_UNHURRIED: Final = "SELECT set_config('idle_in_transaction_session_timeout', '0', true)"
_PATIENCE: Final = "SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $1, true)"

PATIENCE_MS: Final = 200


class LockedOut(Exception):
    """Somebody else is changing the tables of this schema."""


@asynccontextmanager
async def holding(driver: Driver, schema: str) -> AsyncIterator[Transaction]:
    """A transaction that holds the lock of the schema of this (quoted) name. Raises LockedOut."""
    async with driver.transaction() as transaction:
        [_, [(is_taken,)]] = await transaction.flight([(_UNHURRIED, []), (_TRY, [schema])])
        if not is_taken:
            raise LockedOut
        yield transaction


async def stand_by(transaction: Transaction) -> None:
    """Let the snapshot of the last question go, which its portal keeps till the next statement: an index that
    is built on another connection would wait for it.
    """
    await transaction.flight([("SET LOCAL idle_in_transaction_session_timeout = 0", [])])


def patience(milliseconds: int) -> Query:
    """From here on to the end of the transaction, no statement takes longer, waiting included."""
    return _PATIENCE, [f"{milliseconds}ms"]


PATIENCE: Final = patience(PATIENCE_MS)
"""Whoever stands behind us in the line for a lock stands there no longer than this."""


def as_one(statements: list[str]) -> str:
    """Statements as one, so that one time limit is that of all, and no lock of theirs is held longer."""
    lines = "\n".join(f"EXECUTE $tessera${one}$tessera$;" for one in statements)
    return f"DO $together$ BEGIN\n{lines}\nEND $together$"
