"""What the tables need from time to time beside their partitions: counts folded, indexes rebuilt, and a look
at how they are.

A fold is safe to run anywhere, any number of times at once, and holds no lock that a claim or a finish would
notice. Whoever sums up the counts reads fold and differences in one statement, and so is exact at any time.
"""

from __future__ import annotations

from typing import Final

from tessera.model.condition import (
    BLOAT,
    BLOATED_BYTES,
    Condition,
    Connections,
    IndexUse,
    OldestReader,
    TableUse,
)
from tessera.model.errors import StoreBusy
from tessera.store.postgres.lock import LockedOut, holding, stand_by
from tessera.store.postgres.site import Site

FOLDED_BY_READERS: Final = 10_000
"""A reader that meets more differences of counts than this folds them."""
QUERY_SHOWN: Final = 120

TAKE_FOLD: Final = "SELECT 1 FROM {s}.gate WHERE name = 'fold' FOR UPDATE SKIP LOCKED"
FOLD_COUNTS: Final = """
WITH taken AS (
    DELETE FROM {s}.count_delta RETURNING queue, state, n
), folded AS (
    INSERT INTO {s}.count AS c (queue, state, n)
    SELECT queue, state, sum(n) FROM taken GROUP BY queue, state
    ON CONFLICT (queue, state) DO UPDATE SET n = c.n + excluded.n
)
SELECT count(*) FROM taken
"""
FORGET_EMPTY: Final = "DELETE FROM {s}.count WHERE n = 0"
UNFOLDED: Final = "SELECT count(*) FROM {s}.count_delta"
TABLES: Final = """
SELECT c.relname, pg_table_size(c.oid), coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
    coalesce(extract(epoch FROM now() - greatest(s.last_vacuum, s.last_autovacuum))::bigint, -1)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid
WHERE n.nspname = $1 AND c.relkind = 'r'
ORDER BY 2 DESC, 1
"""
# An entry is 8 bytes of header, the columns (8 where nothing is known) rounded up to 8, and 4 for its place;
# a page of 8 kB is filled to nine tenths. Equal keys lie closer: their index is called bloated later.
INDEXES: Final = """
SELECT i.relname, t.relname, pg_relation_size(i.oid),
    CASE WHEN i.reltuples < 0 THEN 0
        ELSE 8192 * (2 + ceil(i.reltuples * (12 + 8 * ceil(w.width / 8.0)) / 7300.0)) END::bigint,
    x.indisvalid
FROM pg_catalog.pg_index x
JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid AND i.relkind = 'i'
JOIN pg_catalog.pg_class t ON t.oid = x.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
CROSS JOIN LATERAL (
    SELECT coalesce(sum(coalesce(s.avg_width, 8)), 8) AS width
    FROM unnest(x.indkey::int2[]) AS k (number)
    LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum = k.number
    LEFT JOIN pg_catalog.pg_stats s
        ON s.schemaname = n.nspname AND s.tablename = t.relname AND s.attname = a.attname
) AS w
WHERE n.nspname = $1
ORDER BY 3 DESC, 1
"""
# Only what is older than this very look holds anything back.
OLDEST: Final = """
SELECT what, name, pid, age, seconds, query
FROM (
    SELECT CASE WHEN backend_type = 'walsender' THEN 'standby' ELSE 'session' END AS what,
        concat_ws(' ', usename, nullif(application_name, '')) AS name, pid,
        greatest(age(backend_xmin), age(backend_xid)) AS age,
        coalesce(extract(epoch FROM clock_timestamp() - xact_start)::bigint, -1) AS seconds,
        left(coalesce(query, ''), $1::int) AS query
    FROM pg_catalog.pg_stat_activity
    WHERE pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    UNION ALL
    SELECT 'prepared transaction', gid, 0, age(transaction),
        extract(epoch FROM clock_timestamp() - prepared)::bigint, ''
    FROM pg_catalog.pg_prepared_xacts
    UNION ALL
    SELECT 'replication slot', slot_name, coalesce(active_pid, 0),
        greatest(age(xmin), age(catalog_xmin)), -1, ''
    FROM pg_catalog.pg_replication_slots
    WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
) AS holders
ORDER BY age DESC NULLS LAST, seconds DESC
LIMIT 1
"""
# What is kept for superusers is of no use to anybody who is none.
CONNECTIONS: Final = """
SELECT (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
"""
# What an interrupted rebuild leaves behind.
LEFTOVERS: Final = """
SELECT quote_ident(c.relname)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND NOT i.indisvalid AND c.relkind = 'i' AND c.relname ~ '_cc(new|old)[0-9]*$'
ORDER BY 1
"""
DROP_LEFTOVER: Final = "DROP INDEX CONCURRENTLY IF EXISTS {s}."
REBUILD: Final = "REINDEX INDEX CONCURRENTLY {s}."


async def fold_counts(site: Site) -> int:
    """Add what commits have written down since to the counts, unless somebody is at it; how many rows."""
    if site.is_joined:
        return 0  # the application's transaction is no place for it
    async with site.driver.transaction() as transaction:
        [taken] = await transaction.flight([site.query(TAKE_FOLD)])
        if not taken:
            return 0
        [[(folded,)], _] = await transaction.flight(
            [site.query(FOLD_COUNTS), site.query(FORGET_EMPTY)], last=True
        )
    return int(folded)


async def condition(site: Site, connections: int) -> Condition:
    """How the tables are. ``connections``: what the process opens at most for each pool."""
    name = site.name
    tables, indexes, oldest, [(used, allowed)], [(unfolded,)] = await site.driver.flight(
        [
            site.query(TABLES, name),
            site.query(INDEXES, name),
            site.query(OLDEST, QUERY_SHOWN),
            site.query(CONNECTIONS),
            site.query(UNFOLDED),
        ]
    )
    return Condition(
        tables=tuple(TableUse(*row) for row in tables),
        indexes=tuple(IndexUse(*row) for row in indexes),
        oldest=OldestReader(*oldest[0]) if oldest else None,
        connections=Connections(
            blocking=connections + 1, worker=worker_connections(connections), used=used, allowed=allowed
        ),
        unfolded=unfolded,
    )


def worker_connections(connections: int) -> int:
    """What a worker's process opens at most: a pool for its loop, one for the loop beside it that renews
    leases, one for handlers that enqueue from their threads, and one connection for signals.
    """
    return 3 * connections + 1


async def rebuild_indexes(site: Site, *, bloat: float = BLOAT, least_bytes: int = BLOATED_BYTES) -> list[str]:
    """Rebuild what takes ``bloat`` times its fresh size, one index after the other and beside the work; their
    names. Takes two connections, and may take long. Raises StoreBusy while the tables are being changed.
    """
    try:
        # The lock keeps migrations away, and the partitions' duty: an index is in the hands of one at a time.
        async with holding(site.driver, site.schema) as transaction:
            name = site.name
            [leftovers, found] = await transaction.flight(
                [site.query(LEFTOVERS, name), site.query(INDEXES, name)]
            )
            await stand_by(transaction)
            for (leftover,) in leftovers:
                await site.driver.flight([site.query(DROP_LEFTOVER + leftover)])
            indexes = [IndexUse(*row) for row in found]
            chosen = [one for one in indexes if one.is_bloated(bloat, least_bytes)]
            for index in chosen:
                await site.driver.flight([site.query(f'{REBUILD}"{index.name}"')])
    except LockedOut:
        raise StoreBusy("somebody else is changing the tables; try again later") from None
    return [index.name for index in chosen]
