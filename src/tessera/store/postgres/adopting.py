"""Books for tables that somebody made by hand from the printed SQL, after a look at whether they are right.

What right is, is made for comparison among temporary tables, which any user may make, and taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tessera.model.errors import StoreBusy, StoreError
from tessera.store.postgres import books as book
from tessera.store.postgres.books import supported, whole
from tessera.store.postgres.catalog import TEMPORARY, contents, missing
from tessera.store.postgres.lock import LockedOut, holding
from tessera.store.postgres.migrations import Schema
from tessera.store.sql.schemafiles import Applied, Step, check_steps

SHOWN: Final = 10
"""Differences that are told; the rest is counted."""


async def adopt(schema: Schema) -> list[str]:
    """Write down that the tables are those of this release; the steps written down. They may lack what
    ``contract`` would do. Raises StoreError with what differs, StoreBusy.
    """
    books = await schema.books()
    check_steps(schema.steps, books)
    _, highest = supported(books)
    contracted = [whole(step) for step in schema.steps]
    if list(books) == contracted:
        return []
    differences = await _differences(schema, [one for step in schema.steps for one in step.forward])
    lines = contracted
    if differences and highest < len(schema.steps):
        # As release N leaves them to N + 1: the newest step's older half only.
        *before, newest = schema.steps
        statements = [one for step in before for one in step.forward]
        statements += [one for piece in newest.pre for one in piece.statements]
        if not await _differences(schema, statements):
            lines = [*contracted[:-1], _half(newest)]
            differences = []
    if differences:
        told = "\n".join(f"  - {one}" for one in differences[:SHOWN])
        more = f"\n  and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        raise StoreError(f"schema {schema.name} is not as the printed SQL makes it:\n{told}{more}")
    return await _write(schema, lines, books)


async def _differences(schema: Schema, statements: Sequence[str]) -> list[str]:
    async with schema.driver.transaction() as transaction:
        await transaction.flight([(one.replace("{schema}", TEMPORARY), []) for one in statements])
        wanted = await contents(transaction, TEMPORARY)
        found = await contents(transaction, schema.name)
    return missing(wanted, found)


async def _write(schema: Schema, lines: Sequence[Applied], former: Sequence[Applied]) -> list[str]:
    try:
        async with holding(schema.driver, schema.quoted) as transaction:
            if await schema.books(transaction) != former:
                raise LockedOut
            [[(has_books,)]] = await transaction.flight([(book.HAS_BOOKS, [schema.name])])
            make = [] if has_books else [schema.filled(book.OPEN_BOOKS)]
            founding = schema.founding([])
            await transaction.flight([*make, *map(schema.written, lines), *founding], last=True)
    except LockedOut:
        raise StoreBusy(f"somebody else is changing the tables of schema {schema.name}") from None
    return [line.name for line in lines if line not in former]


def _half(step: Step) -> Applied:
    return whole(step)._replace(post=0, is_contracted=False)
