"""The one connection of this process that writes, and the transactions on it.

What can go wrong, and how it is answered. A verb of a batch raises: the transaction is taken back and each
verb gets one of its own, so that it fails alone. Another process holds the lock too long: StoreBusy for
all, nothing written. The disk is full: the ballast goes, finishes are tried once more, new jobs get
StoreFull. COMMIT itself reports an error after which the log may hold it: OutcomeUnknown. Whoever else
writes to the file (another process, a joined transaction) shows in ``data_version``: what was remembered is
forgotten then.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tessera.model.changes import Answer, Group
from tessera.model.errors import OutcomeUnknown, StoreFull, StoreUnavailable
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import Claimed, ClaimRequest
from tessera.store import claims, evaluator
from tessera.store.driver import Doorbell
from tessera.store.sql.schemafiles import Step
from tessera.store.sqlite import clock as clocks
from tessera.store.sqlite import connection as connections
from tessera.store.sqlite import migrations, writes
from tessera.store.sqlite.ballast import Ballast
from tessera.store.sqlite.clock import Clock
from tessera.store.sqlite.connection import (
    identity_of,
    is_broken,
    is_no_room,
    translated,
    translated_at_commit,
)
from tessera.store.sqlite.driver import Batch, Ticket
from tessera.store.sqlite.source import META, Meta, SqlSource
from tessera.store.working import Working

INSTALLATION: Final = """
SELECT installation
FROM tessera_meta
WHERE id = 1
"""
FIND_CHUNK: Final = """
SELECT chunk
FROM tessera_staged
WHERE upload = :upload AND number = :number
"""
REPLACE_CHUNK: Final = """
UPDATE tessera_chunk
SET data = :data
WHERE id = :chunk
"""
ADD_CHUNK: Final = """
INSERT INTO tessera_chunk (data)
VALUES (:data)
"""
PUT_STAGED: Final = """
REPLACE INTO tessera_staged (upload, number, chunk, size, staged_at)
VALUES (:upload, :number, :chunk, :size, :now)
"""


class Turn:
    """The open transaction, as the verbs of a batch see it. They share what was read and changed."""

    def __init__(self, cursor: sqlite3.Cursor, source: SqlSource, now: int) -> None:
        self._cursor = cursor
        self.source = source
        self._now = now
        self._work = Working(source, now)

    def claim(self, request: ClaimRequest) -> Claimed:
        """See ``Store.claim``. Its queries must see what the verbs before it did."""
        self._work.flush()
        claimed = claims.claim(self._work, request)
        self._work.flush()
        next_due = self.source.next_due({want.queue for want in request.wants})
        return Claimed(
            claimed.jobs, claimed.now, next_due, claimed.set_aside, claimed.policy_version, claimed.replan
        )

    def commit(self, groups: Sequence[Group], request_id: str) -> list[Answer]:
        """See ``Store.commit``."""
        self.source.preload(self._work, groups)
        answers = evaluator.commit(self._work, groups, request_id)
        if self._work.policy_bumped or self._work.blobs:
            self._write()  # the next verb must see the new policy, and an upload published once is gone
        return answers

    def stage(self, upload: str, number: int, data: bytes) -> None:
        """See ``Store.stage``."""
        self.source.wrote = True
        of = {"upload": upload, "number": number, "data": data, "size": len(data), "now": self._now}
        found = self._cursor.execute(FIND_CHUNK, of).fetchone()
        if found is not None:
            of["chunk"] = found[0]
            self._cursor.execute(REPLACE_CHUNK, of)
        else:
            of["chunk"] = self._cursor.execute(ADD_CHUNK, of).lastrowid or 0
        self._cursor.execute(PUT_STAGED, of)

    def end(self) -> None:
        """Write what is left. A transaction that wrote nothing leaves no trace, and costs no sync."""
        self._work.finish()
        if self.source.wrote:
            writes.write_meta(self._cursor, self.source.meta)

    def _write(self) -> None:
        self._work.finish()
        self._work = Working(self.source, self._now)


class Writer:
    """Runs batches. Whoever calls a method here leads the line, so that no two threads do at once."""

    def __init__(
        self,
        path: str,
        *,
        synchronous: str,
        busy_timeout_ms: int,
        clock: Clock,
        ballast: Ballast,
        bell: Doorbell,
        steps: Sequence[Step],
        installation: bytes,
    ) -> None:
        self._path = path
        self._synchronous = synchronous
        self._busy_timeout_ms = busy_timeout_ms
        self._clock = clock
        self._ballast = ballast
        self._bell = bell
        self._steps = steps
        self._installation = installation
        self._identity = (0, 0)
        self._folds_early = False
        self._connection: sqlite3.Connection | None = None
        self._meta: Meta | None = None
        self._mark = 0
        """The clock as it stands in the file; that of ``_meta`` may have nothing stored under it."""
        self._known: dict[JobId, Job] = {}
        self._data_version = -1

    # Life ---------------------------------------------------------------------------------------------------

    def prepare(self) -> bytes:
        """Open the file, create the schema in a new one, check it in an old one. Returns the installation.

        On a full disk even that needs the ballast: a log must be begun before anything can be read.
        """
        self._ballast.put_back()
        try:
            return self._prepare()
        except sqlite3.Error as error:
            self.close()
            if not is_no_room(error) or not self._ballast.give_up():
                raise
        return self._prepare()

    def _prepare(self) -> bytes:
        connection = self._open(create=True)
        if migrations.version_of(connection) == 0:
            migrations.migrate(connection, self._steps, None, self._clock.now())
        self._check_schema(connection)
        self._data_version = _data_version(connection)
        (self._installation,) = connection.execute(INSTALLATION).fetchone()
        (mark,) = connection.execute(clocks.MARK).fetchone()
        self._clock.follow(mark)
        return self._installation

    def migrate(self, to: int | None, dry_run: bool) -> list[str]:
        """See ``Store.migrate``."""
        self._forget()
        return migrations.migrate(self._open(), self._steps, to, self._clock.now(), dry_run=dry_run)

    def set_clock_back(self) -> int:
        """See ``SetsClockBack.set_clock_back``."""
        self._forget()
        return clocks.set_back(self._open(), self._clock.machine())

    def look(self) -> bool:
        """Whether another connection wrote to the file since the last look or transaction; then the bell
        rings.
        """
        return self._notice(self._open())

    def close(self) -> None:
        """Close the connection. The last one on the file folds the log into it."""
        connection, self._connection = self._connection, None
        self._forget()
        if connection is not None:
            connection.close()

    def disown(self) -> list[sqlite3.Connection]:
        """In a forked child: the parent's connection, which is not to be used and not to be closed."""
        connection, self._connection = self._connection, None
        return [] if connection is None else [connection]

    # Batches ------------------------------------------------------------------------------------------------

    def run(self, batch: Batch) -> None:
        """Run the verbs and answer their tickets."""
        if batch[0].alone:
            self._run_alone(batch[0])
            return
        batch = self._not_refused(batch)
        if not batch:
            return
        failure = self._attempt(batch)
        if failure is None:
            return
        error, is_everybodys = failure
        is_full = is_no_room(error)
        if is_full:
            self._make_room()
        elif is_everybodys or len(batch) == 1:
            for ticket in batch:
                ticket.fail(translated(error))
            return
        for ticket in batch:
            if is_full and ticket.adds:
                ticket.fail(translated(error))
            elif (again := self._attempt([ticket])) is not None:
                ticket.fail(translated(again[0]))

    def _run_alone(self, ticket: Ticket[object]) -> None:
        try:
            ticket.answer(ticket.verb(self))
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
            self._give_up(error)
            ticket.fail(translated(error))

    def _not_refused(self, batch: Batch) -> Batch:
        """Refuse new jobs while the room kept for finishes is in use."""
        if not any(ticket.adds for ticket in batch) or self._ballast.allows_more():
            return batch
        for ticket in batch:
            if ticket.adds:
                ticket.fail(
                    StoreFull(
                        "the disk is full: jobs that run can finish, new ones are refused until there is room"
                    )
                )
        return [ticket for ticket in batch if not ticket.answered]

    def _attempt(self, batch: Batch) -> tuple[Exception, bool] | None:
        """One transaction for all, all or nothing. None = committed and answered; else the error, and
        whether it is everybody's.
        """
        try:
            connection, turn = self._begin()
        except Exception as error:  # noqa: BLE001 - handed to the tickets
            self._give_up(error)
            return error, True
        try:
            values = [ticket.verb(turn) for ticket in batch]
            turn.end()
        except Exception as error:  # noqa: BLE001 - handed to the tickets
            self._give_up(error)
            return error, is_broken(error)
        except BaseException:
            self._give_up()
            raise
        try:
            connection.execute("COMMIT")
            if turn.source.wrote:
                self._mark = turn.source.meta.clock
            _answer(batch, values)
        except sqlite3.Error as error:
            self._give_up(error)
            meant = translated_at_commit(error)
            return (meant, True) if isinstance(meant, OutcomeUnknown) else (error, True)
        except BaseException:
            if connection.in_transaction:
                self._give_up()
            else:
                _answer(batch, values)
            raise
        if turn.source.rings:
            self._bell.ring()
        return None

    def _begin(self) -> tuple[sqlite3.Connection, Turn]:
        if self._connection is not None and identity_of(self._path) != self._identity:
            self.close()
            raise StoreUnavailable(f"the file {self._path} was removed or replaced; nothing was written")
        connection = self._open()
        self._mind_the_room(connection)
        connection.execute("BEGIN IMMEDIATE")
        self._notice(connection)
        cursor = connection.cursor()
        if self._meta is None:
            self._check_schema(connection)
            self._check_installation(connection)
            self._meta = Meta(*cursor.execute(META).fetchone())
            self._mark = self._meta.clock
        now = self._meta.clock = self._clock.follow(self._mark)
        return connection, Turn(cursor, SqlSource(cursor, self._meta, self._known), now)

    def _notice(self, connection: sqlite3.Connection) -> bool:
        """``data_version`` moves with the commits of other connections and not with our own."""
        version = _data_version(connection)
        if version == self._data_version:
            return False
        self._data_version = version
        self._forget()
        self._bell.ring()
        return True

    def _open(self, *, create: bool = False) -> sqlite3.Connection:
        if self._connection is None:
            self._data_version = -1
            self._folds_early = False
            self._connection = connections.open_writer(
                self._path,
                synchronous=self._synchronous,
                busy_timeout_ms=self._busy_timeout_ms,
                create=create,
            )
            self._identity = identity_of(self._path)
        return self._connection

    def _check_installation(self, connection: sqlite3.Connection) -> None:
        """A backup that was put in the place of the file goes on; another store there is not this one."""
        (installation,) = connection.execute(INSTALLATION).fetchone()
        if installation != self._installation:
            raise StoreUnavailable(
                f"the file {self._path} holds another installation of Tessera; open it anew"
            )

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        migrations.check(self._path, migrations.version_of(connection), len(self._steps))

    def _give_up(self, error: Exception | None = None) -> None:
        """Take back an open transaction, and open a connection anew that may be broken."""
        self._forget()
        connection = self._connection
        if connection is None:
            return
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()
        else:
            if error is not None and is_broken(error) and not is_no_room(error):
                self.close()

    def _forget(self) -> None:
        self._meta = None
        self._known.clear()

    def _make_room(self) -> None:
        """Give up the ballast, and let the log begin anew: then commits write where the log lies already.
        Folding it into the file needs room itself, so it is only begun if that is there.
        """
        was_there = self._ballast.give_up()
        room = self._ballast.free_bytes()
        if was_there:
            room = min(room, self._ballast.size_bytes)  # under a quota nothing else is sure
        with suppress(sqlite3.Error, StoreUnavailable):
            connection = self._open()
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
            if pages * page_bytes - connections.size_of(self._path) <= room:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _mind_the_room(self, connection: sqlite3.Connection) -> None:
        """On a disk with little room the log is folded early, so that it stays small and folding it needs
        less than the ballast gives.
        """
        is_tight = self._ballast.is_tight()
        if is_tight is not self._folds_early:
            self._folds_early = is_tight
            pages = connections.TIGHT_PAGES if is_tight else connections.CHECKPOINT_PAGES
            connections.fold_after(connection, pages)


def _data_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return int(version)


def _answer(batch: Batch, values: Sequence[object]) -> None:
    for ticket, value in zip(batch, values, strict=True):
        ticket.answer(value)
