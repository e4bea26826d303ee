"""The PostgreSQL store inside the application's own transaction: what it writes is there if, and only if, the
application commits.

It takes no lock that another enqueue could wait for, but its own unique keys. It writes nothing that could
fail, since an error would poison the application's transaction: keys that might be taken meanwhile are
inserted first and by themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import ClassVar, Final, NoReturn

from msgspec.structs import replace

from tessera.model.changes import Answer, Group, Record
from tessera.model.errors import ForeignStore, StoreBusy, StoreError, Unsupported
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import Claimed, ClaimRequest, Due, Event, Filter, JobPage, Page
from tessera.model.states import State
from tessera.store.postgres import finding, writes
from tessera.store.postgres.committing import ATTEMPTS, Attempt
from tessera.store.postgres.driver import Flights
from tessera.store.postgres.errors import Retry, Unasserted
from tessera.store.postgres.params import Texts, Uuids
from tessera.store.postgres.reads import Reads
from tessera.store.postgres.site import Site
from tessera.store.postgres.tables import SLOT, arrays, unnested
from tessera.store.sql import foresight
from tessera.store.working import Net

WHICH: Final = "SELECT installation FROM {s}.meta"
HAS_TABLES: Final = "SELECT to_regclass($1)::text"
TAKE_SLOTS: Final = f"""
INSERT INTO {{s}}.slot (key, owner, expires_at)
SELECT key, owner, expires_at FROM {unnested(SLOT)}
ON CONFLICT (key) DO NOTHING
RETURNING key
"""
GIVE_BACK: Final = "DELETE FROM {s}.slot WHERE key = ANY($1) AND owner = ANY($2)"


class JoinedStore:
    """A view of the store over one open transaction, of that connection's colour."""

    name: ClassVar[str] = "postgresql"

    def __init__(self, site: Site, flights: Flights, installation: bytes) -> None:
        self._site = Site(_Joined(flights), site.name, site.memory, site.signals, is_joined=True)
        self._flights = flights
        self._reads = Reads(self._site)
        self._is_checked = False
        self.installation = installation

    async def open(self) -> None:
        """It is open as long as the transaction is."""

    async def close(self) -> None:
        """It is open as long as the transaction is."""

    async def commit(self, groups: Sequence[Group], request_id: str = "") -> list[Answer]:
        await self._check_is_ours()
        wanted = foresight.foreseen(groups, request_id)
        for _ in range(ATTEMPTS):
            attempt = Attempt(self._site, self._flights, groups, request_id, wanted, ours=False)
            try:
                answers, net = await attempt.evaluate()
                if await self._take_slots(net):
                    rest = replace(net, slots=[row for row in net.slots if row.after is None])
                    await self._flights.flight([*attempt.queries(rest), *self._site.ringing_inside(net)])
                    attempt.guesses.keep()
                    return answers
            except (Retry, Unasserted) as error:
                # PostgreSQL has ended the transaction: it is the application's to repeat.
                raise StoreError(
                    f"the transaction lost against another and must be repeated: {error}"
                ) from error
        raise StoreBusy(f"others took the same keys {ATTEMPTS} times meanwhile; nothing was written")

    async def _take_slots(self, net: Net) -> bool:
        """Own the keys, before anything else is written; False = somebody took one meanwhile, and none of
        ours is left.
        """
        changed = [row for row in net.slots if row.after is not None]
        if not changed:
            return True
        replaced = sorted(row.key for row in changed if row.before is not None)
        if replaced:
            await self._flights.flight([self._site.query(writes.DELETE_SLOTS, Texts(replaced))])
        slots = sorted((s.key, s.owner, s.expires_at) for row in changed if (s := row.after) is not None)
        [found] = await self._flights.flight([self._site.query(TAKE_SLOTS, *arrays(SLOT, slots))])
        if len(found) == len(slots):
            return True
        ours = Texts([row[0] for row in found])
        owners = Uuids(sorted({owner for _, owner, _ in slots}))
        await self._flights.flight([self._site.query(GIVE_BACK, ours, owners)])
        return False

    async def _check_is_ours(self) -> None:
        """The same installation; a copy of the database has it too, and is what it says it is."""
        if self._is_checked:
            return
        [[(there,)]] = await self._flights.flight([(HAS_TABLES, [f"{self._site.schema}.meta"])])
        if there is None:
            raise ForeignStore(f"the database behind the connection holds no Tessera in {self._site.schema}")
        [[(installation,)]] = await self._flights.flight([self._site.query(WHICH)])
        if bytes(installation) != self.installation:
            raise ForeignStore("the database behind the connection holds another installation of Tessera")
        self._is_checked = True

    # Reads: as the caller's transaction sees them -----------------------------------------------------------

    async def due(self, limit: int, queues: Sequence[str] | None = None) -> Due:
        return await (await self._asking()).due(limit, queues)

    async def find_jobs(self, which: Filter, page: Page) -> JobPage:
        return await finding.find_jobs(self._site, await self._asking(), which, page)

    async def count_jobs(self) -> dict[tuple[str, State], int]:
        return await (await self._asking()).counts()

    async def get_jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await (await self._asking()).jobs(ids)

    async def edges(self, job: JobId) -> list[tuple[JobId, str]]:
        return await (await self._asking()).edges(job)

    async def counters(self, keys: Sequence[str]) -> list[tuple[str, int, int]]:
        return await (await self._asking()).counters(keys)

    async def get(self, keys: Sequence[tuple[str, str]]) -> list[Record | None]:
        return await (await self._asking()).records(keys)

    async def scan(self, space: str, prefix: str = "", after: str = "", limit: int = 200) -> list[Record]:
        return await (await self._asking()).scan(space, prefix, after, limit)

    async def history(self, space: str, key: str, limit: int = 200) -> list[Record]:
        return await (await self._asking()).history(space, key, limit)

    async def events(self, after: int = 0, limit: int = 200, job: JobId | None = None) -> list[Event]:
        return await (await self._asking()).sealed_events(after, limit, job)

    async def blob(self, sha256: bytes) -> AsyncIterator[bytes]:
        async for chunk in (await self._asking()).blob(sha256):
            yield chunk

    async def policy_version(self) -> int:
        return await (await self._asking()).policy_version()

    async def _asking(self) -> Reads:
        await self._check_is_ours()
        return self._reads

    # What a transaction of the caller's is no place for -----------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Claimed:
        self._refuse("claim")

    async def stage(self, upload: str, number: int, data: bytes) -> None:
        self._refuse("stage")

    async def schema(self) -> tuple[int, int]:
        self._refuse("schema")

    async def migrate(self, to: int | None = None, dry_run: bool = False) -> list[str]:
        self._refuse("migrate")

    async def verify(self) -> list[str]:
        self._refuse("verify")

    def _refuse(self, verb: str) -> NoReturn:
        raise Unsupported(self.name, f"{verb} inside the caller's transaction")


class _Joined:
    """The caller's connection in the place of a driver. It opens no transaction: one is open."""

    def __init__(self, flights: Flights) -> None:
        self.flight = flights.flight

    def transaction(self) -> NoReturn:
        raise AssertionError("a joined store works in the transaction that is open")

    async def close(self) -> None:
        """The connection is the caller's."""
