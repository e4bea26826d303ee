"""Questions to the database, each answered by one flight where it can be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from tessera.model.changes import Counter, Record, Shift, Slot
from tessera.model.errors import NotFound
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import Due, Event
from tessera.model.states import State
from tessera.rules import admission
from tessera.store import audit
from tessera.store.postgres import upkeep
from tessera.store.postgres.claiming import NEXT_DUE
from tessera.store.postgres.driver import Query, Rows
from tessera.store.postgres.loads import COUNTERS, DONES, EDGES_TO, GATE, JOBS, live_of
from tessera.store.postgres.params import Bigints, Texts, Uuid, Uuids
from tessera.store.postgres.site import Site
from tessera.store.postgres.tables import COUNTER, EDGE, RECORD, SLOT, selected
from tessera.store.sql import rows
from tessera.store.sql.rows import STATES

SEALED_AT_ONCE: Final = 10_000

NOW: Final = "SELECT {s}.clock_ms()"
# Index job_scheduled, one queue after the other.
SCHEDULED: Final = f"""
SELECT {JOBS}
FROM unnest($1::text[]) AS q (queue)
CROSS JOIN LATERAL (
    SELECT * FROM {{s}}.job
    WHERE queue = q.queue AND state = 1 AND due <= {{s}}.now_ms()
    ORDER BY due, id
    LIMIT $2
) AS j
ORDER BY j.due, j.id
LIMIT $2
"""
# Index job_running: as many rows as there are leases. The time of a lease is in no index, or each renewal
# would write to it.
LAPSED: Final = f"""
SELECT {JOBS}
FROM {{s}}.job j
WHERE j.state = 4 AND j.lease_until <= {{s}}.now_ms() AND ($1::text[] IS NULL OR j.queue = ANY($1))
ORDER BY j.lease_until, j.id
LIMIT $2
"""
EXPIRED: Final = f"""
SELECT {JOBS}
FROM {{s}}.job j
WHERE j.expires_at > 0 AND j.state < 4 AND j.expires_at <= {{s}}.now_ms()
    AND ($1::text[] IS NULL OR j.queue = ANY($1))
ORDER BY j.expires_at, j.id
LIMIT $2
"""
# Those whose going has consequences, and those that are in no partition of a day; the others go with theirs.
GONE: Final = """
SELECT uuid_send(id), gone_at
FROM (
    (SELECT id, gone_at FROM {s}.done
     WHERE loud AND gone_at BETWEEN 0 AND {s}.now_ms() ORDER BY gone_at LIMIT $1)
    UNION
    (SELECT id, gone_at FROM {s}.done_other
     WHERE gone_at BETWEEN 0 AND {s}.now_ms() ORDER BY gone_at LIMIT $1)
) AS g
ORDER BY gone_at, id
LIMIT $1
"""
SLOTS_OVER: Final = f"""
SELECT {selected(SLOT)}
FROM {{s}}.slot
WHERE expires_at > 0 AND expires_at <= {{s}}.now_ms()
ORDER BY expires_at
LIMIT $1
"""
COUNTERS_DUE: Final = """
SELECT key
FROM {s}.counter
WHERE wake_at > 0 AND wake_at <= {s}.now_ms()
ORDER BY wake_at
LIMIT $1
"""
RECORDS_DUE: Final = f"""
SELECT {selected(RECORD)}
FROM {{s}}.record
WHERE (due_at > 0 AND due_at <= {{s}}.now_ms()) OR (expires_at > 0 AND expires_at <= {{s}}.now_ms())
LIMIT $1
"""
COUNTS: Final = """
SELECT queue, state, sum(n)::bigint
FROM (SELECT queue, state, n FROM {s}.count UNION ALL SELECT queue, state, n FROM {s}.count_delta) AS c
GROUP BY queue, state
HAVING sum(n) <> 0
"""
FACTS: Final = """
SELECT current_setting('server_version'), current_setting('synchronous_commit'), current_database(),
    current_setting('max_connections'), (SELECT count(*) FROM pg_catalog.pg_stat_activity)
"""
JOBS_OF: Final = f"SELECT {JOBS} FROM {{s}}.job j WHERE j.id = ANY($1)"
DONES_OF: Final = f"SELECT {DONES} FROM {{s}}.done WHERE id = ANY($1)"
SHIFTS: Final = """
SELECT key, sum(used)::bigint, sum(blocked)::bigint, sum(awake)::bigint, sum(refund)::bigint, max(close_until)
FROM {s}.counter_shift
WHERE $1::text[] IS NULL OR key = ANY($1)
GROUP BY key
"""
RECORDS: Final = f"""
SELECT {selected(RECORD)}
FROM {{s}}.record
WHERE (space, key) IN (SELECT * FROM unnest($1::text[], $2::text[]))
    AND NOT (expires_at > 0 AND expires_at <= {{s}}.now_ms())
"""
SCAN: Final = f"""
SELECT {selected(RECORD)}
FROM {{s}}.record
WHERE space = $1 AND key >= $2 AND key > $3 AND starts_with(key, $2) AND value IS NOT NULL
    AND NOT (expires_at > 0 AND expires_at <= {{s}}.now_ms())
ORDER BY key
LIMIT $4
"""
HISTORY: Final = f"""
SELECT {selected(RECORD)}
FROM {{s}}.record_history
WHERE space = $1 AND key = $2
ORDER BY version DESC, id DESC
LIMIT $3
"""
EVENTS: Final = """
SELECT pos, at, what, queue, uuid_send(job), number, by, data
FROM {s}.event
WHERE pos > $1
ORDER BY pos
LIMIT $2
"""
EVENTS_OF_JOB: Final = """
SELECT pos, at, what, queue, uuid_send(job), number, by, data
FROM {s}.event
WHERE job = $3 AND pos > $1
ORDER BY pos
LIMIT $2
"""
UNSEALED: Final = "SELECT id FROM {s}.event WHERE pos IS NULL ORDER BY id LIMIT 1"
TO_SEAL: Final = "SELECT id FROM {s}.event WHERE pos IS NULL ORDER BY id LIMIT $1"
SEAL: Final = """
WITH m AS (
    UPDATE {s}.meta SET events = events + cardinality($1::bigint[]) RETURNING events
)
UPDATE {s}.event e
SET pos = m.events - cardinality($1::bigint[]) + u.n
FROM m, unnest($1::bigint[]) WITH ORDINALITY AS u (id, n)
WHERE e.id = u.id
"""
STAGE: Final = """
WITH old AS (
    DELETE FROM {s}.staged WHERE upload = $1 AND number = $2 RETURNING chunk
), gone AS (
    DELETE FROM {s}.chunk WHERE id IN (SELECT chunk FROM old)
), new AS (
    INSERT INTO {s}.chunk (data) VALUES ($3) RETURNING id
)
SELECT id FROM new
"""
PUT_STAGED: Final = """
INSERT INTO {s}.staged (upload, number, chunk, size, staged_at)
VALUES ($1, $2, $3, $4, {s}.now_ms())
ON CONFLICT (upload, number) DO UPDATE
SET chunk = excluded.chunk, size = excluded.size, staged_at = excluded.staged_at
"""
BLOB: Final = "SELECT size FROM {s}.blob WHERE sha256 = $1"
BLOB_CHUNK: Final = """
SELECT c.data
FROM {s}.blob_chunk b
JOIN {s}.chunk c ON c.id = b.chunk
WHERE b.sha256 = $1 AND b.number >= $2
ORDER BY b.number
LIMIT 1
"""
ALL_JOBS: Final = f"SELECT {JOBS} FROM {{s}}.job j"
ALL_DONE: Final = f"SELECT {DONES} FROM {{s}}.done"
ALL_COUNTERS: Final = f"SELECT {selected(COUNTER)} FROM {{s}}.counter"
ALL_SLOTS: Final = f"SELECT {selected(SLOT)} FROM {{s}}.slot"
ALL_EDGES: Final = f"SELECT {selected(EDGE)} FROM {{s}}.edge"
ALL_TAGS: Final = "SELECT tag, uuid_send(job) FROM {s}.job_tag"
# One snapshot for all of a check.
REPEATABLE: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"


class Reads:
    """The questions of one handle."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def due(self, limit: int, queues: Sequence[str] | None) -> Due:
        """See ``Store.due``."""
        query = self._site.query
        asked = sorted(set(queues)) if queues is not None else await self._queues_with_scheduled()
        chosen = None if queues is None else Texts(sorted(set(queues)))
        [now], scheduled, lapsed, expired, gone, slots, counters, records, [next_due] = await self._flight(
            query(NOW),
            query(SCHEDULED, Texts(asked), limit),
            query(LAPSED, chosen, limit),
            query(EXPIRED, chosen, limit),
            query(GONE, limit),
            query(SLOTS_OVER, limit),
            query(COUNTERS_DUE, limit),
            query(RECORDS_DUE, limit),
            query(NEXT_DUE, Texts(asked)),
        )
        self._site.memory.heard(now[0])
        return Due(
            now=now[0],
            scheduled=tuple(map(live_of, scheduled)),
            lapsed=tuple(map(live_of, lapsed)),
            expired=tuple(map(live_of, expired)),
            gone=tuple(JobId(row[0]) for row in gone),
            slots=tuple(Slot(*row) for row in slots),
            counters=tuple(row[0] for row in counters),
            records=tuple(map(rows.record_of, records)),
            next_due=next_due[0] or 0,
        )

    async def jobs(self, keys: Sequence[JobId]) -> list[Job | None]:
        """See ``Store.get_jobs``. Hot, archive, and both again: a job moves from one to the other and back,
        and the archive may get a partition, with rows that were elsewhere, after the statement was planned.
        """
        found: dict[bytes, Job] = {}
        left = sorted(set(keys))
        for query, decode in 2 * ((JOBS_OF, live_of), (DONES_OF, rows.done_of)):
            if left:
                for row in await self._site.ask(query, Uuids(left)):
                    found[row[0]] = decode(row)
                left = [key for key in left if key not in found]
        return [found.get(key) for key in keys]

    async def counts(self) -> dict[tuple[str, State], int]:
        """See ``Store.count_jobs``."""
        query = self._site.query
        [(differences,)], found = await self._flight(query(upkeep.UNFOLDED), query(COUNTS))
        if differences > upkeep.FOLDED_BY_READERS:
            await upkeep.fold_counts(self._site)
        return {(queue, STATES[state]): n for queue, state, n in found}

    async def facts(self) -> Rows:
        """What the server says of itself."""
        return list(await self._site.ask(FACTS))

    async def edges(self, job: JobId) -> list[tuple[JobId, str]]:
        """See ``Store.edges``."""
        found = map(rows.edge_of, await self._site.ask(EDGES_TO, Uuids([job])))
        return [(edge.parent, edge.on) for edge in sorted(found, key=lambda edge: edge.parent)]

    async def counters(self, keys: Sequence[str]) -> list[tuple[str, int, int]]:
        """See ``Store.counters``: as the next fold would find them."""
        query = self._site.query
        [now], found, shifts = await self._flight(
            query(NOW), query(COUNTERS, Texts(list(keys))), query(SHIFTS, Texts(list(keys)))
        )
        folded = _folded([rows.counter_of(row) for row in found], shifts, now[0])
        return [
            (key, admission.units_in_use(folded[key], now[0]), folded[key].blocked)
            for key in keys
            if key in folded
        ]

    async def records(self, keys: Sequence[tuple[str, str]]) -> list[Record | None]:
        """See ``Store.get``."""
        spaces, names = Texts([space for space, _ in keys]), Texts([key for _, key in keys])
        found = {
            (row[0], row[1]): rows.record_of(row) for row in await self._site.ask(RECORDS, spaces, names)
        }
        return [found.get(key) for key in keys]

    async def scan(self, space: str, prefix: str, after: str, limit: int) -> list[Record]:
        """See ``Store.scan``."""
        return [rows.record_of(row) for row in await self._site.ask(SCAN, space, prefix, after, limit)]

    async def history(self, space: str, key: str, limit: int) -> list[Record]:
        """See ``Store.history``."""
        return [rows.record_of(row) for row in await self._site.ask(HISTORY, space, key, limit)]

    async def events(self, after: int, limit: int, job: JobId | None) -> list[Event]:
        """See ``Store.events``. What committed since the last look gets its positions first."""
        await self.seal()
        return await self.sealed_events(after, limit, job)

    async def sealed_events(self, after: int, limit: int, job: JobId | None) -> list[Event]:
        """Those that have their positions already."""
        if job is None:
            return [rows.event_of(row) for row in await self._site.ask(EVENTS, after, limit)]
        return [rows.event_of(row) for row in await self._site.ask(EVENTS_OF_JOB, after, limit, Uuid(job))]

    async def seal(self) -> None:
        """Give positions to the events that have none, in the order in which they were written."""
        while await self._site.ask(UNSEALED):
            async with self._site.driver.transaction() as transaction:
                query = self._site.query
                _, found = await transaction.flight([query(GATE, "seal"), query(TO_SEAL, SEALED_AT_ONCE)])
                if not found:
                    return
                await transaction.flight([query(SEAL, Bigints([row[0] for row in found]))], last=True)

    async def stage(self, upload: str, number: int, data: bytes) -> None:
        """See ``Store.stage``."""
        async with self._site.driver.transaction() as transaction:
            [[(chunk,)]] = await transaction.flight([self._site.query(STAGE, upload, number, data)])
            put = self._site.query(PUT_STAGED, upload, number, chunk, len(data))
            await transaction.flight([put], last=True)

    async def blob(self, sha256: bytes) -> AsyncIterator[bytes]:
        """See ``Store.blob``."""
        if not await self._site.ask(BLOB, sha256):
            raise NotFound("blob", sha256.hex())
        number = 0
        while found := await self._site.ask(BLOB_CHUNK, sha256, number):
            yield found[0][0]
            number += 1

    async def policy_version(self) -> int:
        """See ``Store.policy_version``."""
        [(version,)] = await self._site.ask("SELECT policy FROM {s}.meta")
        return int(version)

    async def differences(self) -> list[str]:
        """See ``Store.verify``."""
        query = self._site.query
        async with self._site.driver.transaction() as transaction:
            _, [now], jobs, done, counts, counters, shifts, slots, edges, tags = await transaction.flight(
                [
                    query(REPEATABLE),
                    query(NOW),
                    *map(query, (ALL_JOBS, ALL_DONE, COUNTS, ALL_COUNTERS)),
                    query(SHIFTS, None),
                    *map(query, (ALL_SLOTS, ALL_EDGES, ALL_TAGS)),
                ]
            )
        live, ended = [live_of(row) for row in jobs], [rows.done_of(row) for row in done]
        return [
            *audit.differences(
                jobs=live,
                archive=ended,
                counts={(queue, STATES[state]): n for queue, state, n in counts},
                counters=_folded([rows.counter_of(row) for row in counters], shifts, now[0]).values(),
                slots=[Slot(*row) for row in slots],
                edges=[rows.edge_of(row) for row in edges],
            ),
            *audit.tag_differences([*live, *ended], [(tag, JobId(job)) for tag, job in tags]),
        ]

    async def _queues_with_scheduled(self) -> list[str]:
        return sorted(queue for queue, state in await self.counts() if state is State.SCHEDULED)

    async def _flight(self, *queries: Query) -> list[Rows]:
        return await self._site.driver.flight(queries)


def _folded(counters: Sequence[Counter], shifts: Rows, now: int) -> dict[str, Counter]:
    """Counters with what is written down about them applied."""
    found = {counter.key: counter for counter in counters}
    for key, *parts in shifts:
        found[key] = admission.shifted(found.get(key) or Counter(key=key), Shift(*parts), now)
    # One that says nothing is forgotten by the next claim that looks at it.
    return {key: counter for key, counter in found.items() if not admission.is_idle(counter, now)}
