"""The store inside the caller's own transaction on his own ``sqlite3`` connection.

What is committed here becomes true with the caller's COMMIT and vanishes with his ROLLBACK. The caller's
settings are left as they were: our cursors have no row factory, and the connection's text factory is ours
only while a statement of ours runs.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import ClassVar, Final, NoReturn, TypeVar

from tessera.model.changes import AddJob, Answer, Group, Record
from tessera.model.errors import ForeignStore, NotFound, NotInTransaction, StoreFull, Unsupported
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import Claimed, ClaimRequest, Due, Event, Filter, JobPage, Page
from tessera.model.states import State
from tessera.store import evaluator
from tessera.store.sqlite import finding, migrations, writes
from tessera.store.sqlite.connection import translated
from tessera.store.sqlite.file import SqliteFile
from tessera.store.sqlite.reads import Reads
from tessera.store.sqlite.source import META, Meta, SqlSource
from tessera.store.sqlite.writer import INSTALLATION
from tessera.store.working import Working

T = TypeVar("T")

MAIN_FILE: Final = """
SELECT file
FROM pragma_database_list
WHERE name = 'main'
"""


class JoinedStore:
    """A view of a store on one connection of the caller's, for as long as its transaction. Always of the
    blocking colour.
    """

    name: ClassVar[str] = "sqlite"

    def __init__(self, file: SqliteFile, connection: object) -> None:
        if not isinstance(connection, sqlite3.Connection):
            raise Unsupported(self.name, f"joining a transaction on a {type(connection).__qualname__}")
        self._file = file
        self._connection = connection
        self._check_transaction()
        with self._asking() as cursor:
            _check_is_ours(cursor, file)

    @property
    def installation(self) -> bytes:
        return self._file.installation

    async def open(self) -> None:
        """Nothing to do: the connection is the caller's."""

    async def close(self) -> None:
        """Nothing to do: the connection is the caller's."""

    async def commit(self, groups: Sequence[Group], request_id: str = "") -> list[Answer]:
        """See ``Store.commit``; part of the caller's transaction. After an error that transaction is as it
        was.
        """
        self._check_transaction()
        adds = any(isinstance(change, AddJob) for group in groups for change in group.changes)
        if adds and not self._file.ballast.allows_more():
            raise StoreFull
        with self._asking() as cursor:
            # Other drivers do without a savepoint (an error there aborts the transaction or the statement
            # alone). SQLite undoes a failed statement and goes on, so that without one our first half would
            # stay.
            cursor.execute("SAVEPOINT tessera_commit")
            try:
                answers = self._commit(cursor, groups, request_id)
            except BaseException:
                if self._connection.in_transaction:
                    cursor.execute("ROLLBACK TO tessera_commit")
                    cursor.execute("RELEASE tessera_commit")
                raise
            cursor.execute("RELEASE tessera_commit")
        return answers

    def _commit(self, cursor: sqlite3.Cursor, groups: Sequence[Group], request_id: str) -> list[Answer]:
        meta = Meta(*cursor.execute(META).fetchone())
        meta.clock = self._file.clock.follow(meta.clock)
        source = SqlSource(cursor, meta)
        work = Working(source, meta.clock)
        source.preload(work, groups)
        answers = evaluator.commit(work, groups, request_id)
        work.finish()
        if source.wrote:
            writes.write_meta(cursor, meta)
        return answers

    # Reads: as the caller's transaction sees them -----------------------------------------------------------

    async def due(self, limit: int, queues: Sequence[str] | None = None) -> Due:
        return self._ask(lambda reads: reads.due(limit, queues))

    async def find_jobs(self, which: Filter, page: Page) -> JobPage:
        return self._ask(lambda reads: finding.find_jobs(reads, which, page))

    async def count_jobs(self) -> dict[tuple[str, State], int]:
        return self._ask(Reads.counts)

    async def get_jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        return self._ask(lambda reads: reads.jobs(ids))

    async def edges(self, job: JobId) -> list[tuple[JobId, str]]:
        return self._ask(lambda reads: reads.edges(job))

    async def counters(self, keys: Sequence[str]) -> list[tuple[str, int, int]]:
        return self._ask(lambda reads: reads.counters(keys))

    async def get(self, keys: Sequence[tuple[str, str]]) -> list[Record | None]:
        return self._ask(lambda reads: reads.records(keys))

    async def scan(self, space: str, prefix: str = "", after: str = "", limit: int = 200) -> list[Record]:
        return self._ask(lambda reads: reads.scan(space, prefix, after, limit))

    async def history(self, space: str, key: str, limit: int = 200) -> list[Record]:
        return self._ask(lambda reads: reads.history(space, key, limit))

    async def events(self, after: int = 0, limit: int = 200, job: JobId | None = None) -> list[Event]:
        return self._ask(lambda reads: reads.events(after, limit, job))

    async def blob(self, sha256: bytes) -> AsyncIterator[bytes]:
        if self._ask(lambda reads: reads.blob_size(sha256)) is None:
            raise NotFound("blob", sha256.hex())
        number = 0
        while (chunk := self._ask(partial(Reads.blob_chunk, sha256=sha256, number=number))) is not None:
            yield chunk
            number += 1

    async def policy_version(self) -> int:
        return self._ask(Reads.policy_version)

    async def schema(self) -> tuple[int, int]:
        with self._asking():
            return migrations.version_of(self._connection), len(self._file.steps)

    async def verify(self) -> list[str]:
        return self._ask(Reads.differences)

    # What a transaction of the caller's is no place for -----------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Claimed:
        self._refuse("claim")

    async def stage(self, upload: str, number: int, data: bytes) -> None:
        self._refuse("stage")

    async def migrate(self, to: int | None = None, dry_run: bool = False) -> list[str]:
        self._refuse("migrate")

    def _refuse(self, verb: str) -> NoReturn:
        raise Unsupported(self.name, f"{verb} inside the caller's transaction")

    def _ask(self, question: Callable[[Reads], T]) -> T:
        with self._asking() as cursor:
            return question(Reads(cursor, self._file.clock.now()))

    def _check_transaction(self) -> None:
        try:
            is_open = self._connection.in_transaction
        except sqlite3.Error as error:
            raise NotInTransaction(f"the sqlite3 connection cannot be used: {error}") from error
        if not is_open:
            raise NotInTransaction(
                "the sqlite3 connection has no open transaction; execute BEGIN IMMEDIATE first "
                "(a plain BEGIN may meet StoreBusy at its first write)"
            )

    @contextmanager
    def _asking(self) -> Iterator[sqlite3.Cursor]:
        """A cursor of our own on the caller's connection, and our errors for the driver's."""
        connection = self._connection
        factory = connection.text_factory
        try:
            cursor = sqlite3.Cursor(connection)
            cursor.row_factory = None
            connection.text_factory = str
            yield cursor
        except sqlite3.Error as error:
            raise translated(error) from error
        finally:
            connection.text_factory = factory


def _check_is_ours(cursor: sqlite3.Cursor, file: SqliteFile) -> None:
    """The same file, and in it the same installation: a copy has the second, a replaced file the first."""
    (path,) = cursor.execute(MAIN_FILE).fetchone()
    if not path or not os.path.exists(path) or not os.path.samefile(path, file.path):
        raise ForeignStore(
            f"the connection leads to {path or 'a database in memory'}, the store is {file.path}"
        )
    if not cursor.execute(migrations.HAS_BOOKS).fetchone()[0]:
        raise ForeignStore(f"the file behind the connection holds no Tessera tables: {path}")
    (installation,) = cursor.execute(INSTALLATION).fetchone()
    if installation != file.installation:
        raise ForeignStore(f"the file behind the connection holds another installation of Tessera: {path}")
