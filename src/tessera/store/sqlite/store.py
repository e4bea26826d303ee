"""The verbs of the SQLite store, in both colours: writes go through the line to the one writer, questions
to a pool of readers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import ClassVar, TypeVar

from tessera.model.changes import AddJob, Answer, Group, Record
from tessera.model.errors import NotFound, StoreClosed
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import Claimed, ClaimRequest, Due, Event, Filter, JobPage, Page
from tessera.model.states import State
from tessera.store.sql.schemafiles import edited_steps
from tessera.store.sqlite import describing, finding, migrations
from tessera.store.sqlite.driver import Crew, Ticket, hop
from tessera.store.sqlite.file import Life, SqliteFile
from tessera.store.sqlite.joined import JoinedStore
from tessera.store.sqlite.reads import Reads

T = TypeVar("T")


class SqliteStore:
    """A handle on a ``SqliteFile``. With ``blocking`` no verb suspends; else a verb hops to a thread once."""

    name: ClassVar[str] = "sqlite"

    def __init__(self, file: SqliteFile, *, blocking: bool) -> None:
        self._file = file
        self._blocking = blocking
        self._is_open = False
        self._heard = 0
        """Rings of the bell before the last look for work: a ring since then ends ``wait`` at once."""

    @property
    def installation(self) -> bytes:
        if not self._file.installation:
            raise StoreClosed
        return self._file.installation

    async def open(self) -> None:
        if not self._is_open:
            await self._aside(self._file.attach)
            self._heard = self._file.bell.rings
            self._is_open = True

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._aside(self._file.detach)

    # Writes -------------------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Claimed:
        self._heard = self._file.bell.rings
        return await self._write(Ticket(lambda turn: turn.claim(request)))

    async def commit(self, groups: Sequence[Group], request_id: str = "") -> list[Answer]:
        adds = any(isinstance(change, AddJob) for group in groups for change in group.changes)
        return await self._write(Ticket(lambda turn: turn.commit(groups, request_id), adds=adds))

    async def stage(self, upload: str, number: int, data: bytes) -> None:
        await self._write(Ticket(lambda turn: turn.stage(upload, number, data), adds=True))

    async def migrate(self, to: int | None = None, dry_run: bool = False) -> list[str]:
        if self._is_open:
            return await self._write(Ticket(lambda writer: writer.migrate(to, dry_run), alone=True))
        # A schema that is too old to be opened is what migrating is for.
        return await self._aside(lambda: self._file.migrate(to, dry_run))

    # Questions ----------------------------------------------------------------------------------------------

    async def due(self, limit: int, queues: Sequence[str] | None = None) -> Due:
        return await self._ask(lambda reads: reads.due(limit, queues))

    async def find_jobs(self, which: Filter, page: Page) -> JobPage:
        return await self._ask(lambda reads: finding.find_jobs(reads, which, page))

    async def count_jobs(self) -> dict[tuple[str, State], int]:
        return await self._ask(Reads.counts)

    async def get_jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await self._ask(lambda reads: reads.jobs(ids))

    async def edges(self, job: JobId) -> list[tuple[JobId, str]]:
        return await self._ask(lambda reads: reads.edges(job))

    async def counters(self, keys: Sequence[str]) -> list[tuple[str, int, int]]:
        return await self._ask(lambda reads: reads.counters(keys))

    async def get(self, keys: Sequence[tuple[str, str]]) -> list[Record | None]:
        return await self._ask(lambda reads: reads.records(keys))

    async def scan(self, space: str, prefix: str = "", after: str = "", limit: int = 200) -> list[Record]:
        return await self._ask(lambda reads: reads.scan(space, prefix, after, limit))

    async def history(self, space: str, key: str, limit: int = 200) -> list[Record]:
        return await self._ask(lambda reads: reads.history(space, key, limit))

    async def events(self, after: int = 0, limit: int = 200, job: JobId | None = None) -> list[Event]:
        return await self._ask(lambda reads: reads.events(after, limit, job))

    async def blob(self, sha256: bytes) -> AsyncIterator[bytes]:
        if await self._ask(lambda reads: reads.blob_size(sha256)) is None:
            raise NotFound("blob", sha256.hex())
        number = 0
        while (chunk := await self._ask(partial(Reads.blob_chunk, sha256=sha256, number=number))) is not None:
            yield chunk
            number += 1

    async def policy_version(self) -> int:
        return await self._ask(Reads.policy_version)

    async def schema(self) -> tuple[int, int]:
        found = await self._ask(lambda reads: migrations.version_of(reads.cursor.connection))
        return found, len(self._file.steps)

    async def verify(self) -> list[str]:
        return await self._ask(self._differences)

    def _differences(self, reads: Reads) -> list[str]:
        books = migrations.applied(reads.cursor.connection)
        return [*edited_steps(self._file.steps, books), *reads.differences()]

    # Optional protocols -------------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> bool:
        """See ``Notifies.wait``. A change since the last claim or wait of this handle counts."""
        life, bell = self._life(), self._file.bell
        with life.watch:
            if self._blocking:
                rang = bell.wait_blocking(seconds, self._heard)
            else:
                rang = await bell.wait(seconds, self._heard)
        self._heard = bell.rings
        return rang

    async def describe(self) -> dict[str, str]:
        """See ``Describes.describe``."""
        return await self._ask(lambda _: describing.describe(self._file))

    async def set_clock_back(self) -> int:
        """See ``SetsClockBack.set_clock_back``."""
        back = await self._write(Ticket(lambda writer: writer.set_clock_back(), alone=True))
        return int(back)

    def joined(self, connection: object) -> JoinedStore:
        """See ``JoinsTransaction.joined``. The view is of the blocking colour, whatever this handle is."""
        self._life()
        return JoinedStore(self._file, connection)

    # Colours ------------------------------------------------------------------------------------------------

    async def _write(self, ticket: Ticket[T]) -> T:
        line = self._life().line
        return line.run(ticket) if self._blocking else await line.arun(ticket)

    async def _ask(self, question: Callable[[Reads], T]) -> T:
        life = self._life()
        if self._blocking:
            return life.readers.read(question)
        return await hop(life.reading, lambda: life.readers.read(question))

    async def _aside(self, work: Callable[[], T]) -> T:
        """Run what blocks for longer, opening and closing, in a thread of its own."""
        if self._blocking:
            return work()
        crew = Crew("tessera-sqlite-open", 1)
        try:
            return await hop(crew, work)
        finally:
            crew.stop()

    def _life(self) -> Life:
        if not self._is_open:
            raise StoreClosed
        return self._file.life()
