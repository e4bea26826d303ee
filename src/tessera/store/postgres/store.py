"""The verbs of the PostgreSQL store, in both colours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import ClassVar, Final

from tessera import seam
from tessera.model.changes import Answer, Group, Record
from tessera.model.condition import Condition
from tessera.model.errors import StoreClosed
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import Claimed, ClaimRequest, Due, Event, Filter, JobPage, Page
from tessera.model.states import State
from tessera.store.foreign import unwrapped
from tessera.store.postgres import adopting, finding, partitions, upkeep
from tessera.store.postgres.callers import flights_over
from tessera.store.postgres.claiming import Claimer
from tessera.store.postgres.committing import Committer
from tessera.store.postgres.joined import JoinedStore
from tessera.store.postgres.migrations import Schema
from tessera.store.postgres.reads import Reads
from tessera.store.postgres.server import Server
from tessera.store.postgres.site import Site

PARTITIONS_SECONDS: Final = 600.0
"""Between two looks at the partitions of the archive."""


class PostgresStore:
    """A handle on a ``Server``. With ``blocking`` no verb suspends; else it belongs to one event loop."""

    name: ClassVar[str] = "postgresql"

    def __init__(self, server: Server, *, blocking: bool) -> None:
        self._server = server
        self._blocking = blocking
        self._driver = server.driver(blocking=blocking)
        self._site = Site(self._driver, server.schema, server.memory, server.signals)
        self._schema = Schema(self._driver, server.schema, blocking=blocking, connections=server.connections)
        self._committer = Committer(self._site)
        self._claimer = Claimer(self._site)
        self._reads = Reads(self._site)
        self._is_open = False
        self._partitions_at = seam.monotonic()
        self._heard = server.signals.bell.rings
        """Rings of the bell before the last look for work: a ring since then ends ``wait`` at once."""

    @property
    def installation(self) -> bytes:
        if not self._server.installation:
            raise StoreClosed
        return self._server.installation

    async def open(self) -> None:
        if not self._is_open:
            self._driver.open()
            self._server.installation = await self._schema.open()
            self._heard = self._server.signals.bell.rings
            self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        if not self._blocking:  # the blocking connections serve all threads, until the server closes
            await self._driver.close()

    # Writes -------------------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Claimed:
        self._check_open()
        self._heard = self._server.signals.bell.rings
        await self._schema.look_again()
        return await self._claimer.claim(request)

    async def commit(self, groups: Sequence[Group], request_id: str = "") -> list[Answer]:
        self._check_open()
        return await self._committer.commit(groups, request_id)

    async def stage(self, upload: str, number: int, data: bytes) -> None:
        self._check_open()
        await self._reads.stage(upload, number, data)

    async def migrate(self, to: int | None = None, dry_run: bool = False) -> list[str]:
        self._driver.open()
        return await self._schema.migrate(to, dry_run=dry_run)

    async def contract(self, dry_run: bool = False) -> list[str]:
        """See ``Evolves.contract``."""
        self._driver.open()
        return await self._schema.contract(dry_run=dry_run)

    async def adopt(self) -> list[str]:
        """See ``Evolves.adopt``."""
        self._driver.open()
        return await adopting.adopt(self._schema)

    async def script(self, to: int | None = None, contract: bool = False) -> str:
        """See ``Evolves.script``."""
        self._driver.open()
        return await self._schema.script(to, contract=contract)

    # Questions ----------------------------------------------------------------------------------------------

    async def due(self, limit: int, queues: Sequence[str] | None = None) -> Due:
        return await self._asking.due(limit, queues)

    async def find_jobs(self, which: Filter, page: Page) -> JobPage:
        return await finding.find_jobs(self._site, self._asking, which, page)

    async def count_jobs(self) -> dict[tuple[str, State], int]:
        return await self._asking.counts()

    async def get_jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await self._asking.jobs(ids)

    async def edges(self, job: JobId) -> list[tuple[JobId, str]]:
        return await self._asking.edges(job)

    async def counters(self, keys: Sequence[str]) -> list[tuple[str, int, int]]:
        return await self._asking.counters(keys)

    async def get(self, keys: Sequence[tuple[str, str]]) -> list[Record | None]:
        return await self._asking.records(keys)

    async def scan(self, space: str, prefix: str = "", after: str = "", limit: int = 200) -> list[Record]:
        return await self._asking.scan(space, prefix, after, limit)

    async def history(self, space: str, key: str, limit: int = 200) -> list[Record]:
        return await self._asking.history(space, key, limit)

    async def events(self, after: int = 0, limit: int = 200, job: JobId | None = None) -> list[Event]:
        return await self._asking.events(after, limit, job)

    async def blob(self, sha256: bytes) -> AsyncIterator[bytes]:
        async for chunk in self._asking.blob(sha256):
            yield chunk

    async def policy_version(self) -> int:
        return await self._asking.policy_version()

    async def schema(self) -> tuple[int, int]:
        return await self._schema.version(), len(self._schema.steps)

    async def verify(self) -> list[str]:
        return [*await self._schema.differences(), *await self._asking.differences()]

    # Optional protocols -------------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> bool:
        """See ``Notifies.wait``. A change since the last claim or wait of this handle counts."""
        self._check_open()
        signals, bell = self._server.signals, self._server.signals.bell
        signals.begin()
        end = seam.monotonic() + seconds
        while True:
            part = min(end - seam.monotonic(), signals.poll_seconds)
            if self._blocking:
                rang = bell.wait_blocking(max(part, 0), self._heard)
            else:
                rang = await bell.wait(max(part, 0), self._heard)
            is_over = seam.monotonic() >= end
            if rang or is_over or part == signals.poll_seconds:
                self._heard = bell.rings
                return rang or not is_over

    async def maintain(self) -> None:
        """See ``Maintains.maintain``."""
        self._check_open()
        await upkeep.fold_counts(self._site)
        await self._reads.seal()
        if seam.monotonic() >= self._partitions_at:
            self._partitions_at = seam.monotonic() + PARTITIONS_SECONDS
            await partitions.keep_partitions(self._site)

    async def condition(self) -> Condition:
        """See ``Maintains.condition``."""
        self._check_open()
        return await upkeep.condition(self._site, self._server.connections)

    async def rebuild_indexes(self) -> list[str]:
        """See ``Maintains.rebuild_indexes``."""
        self._check_open()
        return await upkeep.rebuild_indexes(self._site)

    async def describe(self) -> dict[str, str]:
        """See ``Describes.describe``."""
        [(version, commits, database, most, used)] = await self._asking.facts()
        return {
            "server": f"PostgreSQL {version}",
            "place": f"database {database}, schema {self._server.schema}",
            "durability": f"synchronous_commit={commits}",
            "connections": (
                f"this process opens at most {self._server.connections} for blocking calls, "
                f"{self._server.connections} for each event loop's handle and 1 for signals; "
                f"{used} of {most} are in use on the server"
            ),
            "signals": "LISTEN" if self._server.signals.delivers else "polling",
            "prepared statements": "yes" if self._server.prepare else "no: reached through a pooler",
        }

    def joined(self, connection: object) -> JoinedStore:
        """See ``JoinsTransaction.joined``. The connection, or what SQLAlchemy or Django has around it, must
        be of this handle's colour. That it leads to this store is checked with the first statement.
        """
        self._check_open()
        flights = flights_over(unwrapped(connection), blocking=self._blocking)
        return JoinedStore(self._site, flights, self.installation)

    @property
    def _asking(self) -> Reads:
        self._check_open()
        return self._reads

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosed
