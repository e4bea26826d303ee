"""The archive's partitions: one for each day on which rows may go, made ahead and dropped when it is over.

What can go wrong, and how it is met. A partition that is made may overlap rows that lie in ``done_other``
already, from before or because nobody foresaw so long a retention: a few are moved into it, many stay where
they are and go one by one. A partition that is dropped takes rows with it that the counts know of: they are
counted beforehand, without a lock, while a trigger strikes the count out if a row changes meanwhile; a row
that something hangs on (``loud``) has gone by itself before, or the partition waits. The lock on the whole
archive that a drop needs is waited for and held a moment only; what cannot be had is left for the next round,
so that no claim and no finish ever stands behind it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Coroutine
from datetime import date
from typing import Any, Final

import msgspec

from tessera.model.errors import StoreBusy
from tessera.store.postgres.driver import Query, Rows
from tessera.store.postgres.errors import Retry
from tessera.store.postgres.lock import PATIENCE, PATIENCE_MS, LockedOut, as_one, holding
from tessera.store.postgres.site import Site
from tessera.store.postgres.tables import COUNT, EVENT, arrays
from tessera.store.postgres.writes import ADD_COUNTS, ADD_EVENTS

logger = logging.getLogger("tessera.store")

DAY_MS: Final = 86_400_000
DAYS_AHEAD: Final = 8
"""Days for which there is a partition whatever is stored."""
DAYS_FORESEEN: Final = 40
"""Rows of longer retention lie in ``done_other``. Each partition is one more place to look for a key."""
MOVED_AT_MOST: Final = 5_000
"""Rows that move into a new partition, under a lock that readers of the archive wait for."""
_FIRST_DAY: Final = date(1970, 1, 1).toordinal()
_NAME: Final = re.compile(r"done_d(\d{4})(\d\d)(\d\d)")

THERE: Final = """
SELECT c.relname
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass($1)
"""
TODAY: Final = f"SELECT {{s}}.now_ms() / {DAY_MS}"
# Index done_other_gone.
LAST_IN_OTHER: Final = "SELECT max(gone_at) / $2 FROM {s}.done_other WHERE gone_at < $1"
HAS_ROWS: Final = "SELECT EXISTS (SELECT 1 FROM {p})"
TO_MOVE: Final = """
SELECT count(*)
FROM (SELECT 1 FROM {s}.done_other WHERE gone_at >= $1 AND gone_at < $2 LIMIT $3) AS r
"""
# Whoever looks for a row waits for the move, whoever archives one does not: it goes elsewhere.
MAKE: Final = (
    "CREATE TABLE {p} (LIKE {s}.done INCLUDING DEFAULTS INCLUDING STORAGE)",
    "LOCK TABLE {s}.done_other IN ACCESS EXCLUSIVE MODE",
    """
    WITH moved AS (DELETE FROM {s}.done_other WHERE gone_at >= {from} AND gone_at < {to} RETURNING *)
    INSERT INTO {p} SELECT * FROM moved
    """,
    "ALTER TABLE {s}.done ATTACH PARTITION {p} FOR VALUES FROM ({from}) TO ({to})",
)
# Index done_gone.
LOUD: Final = "SELECT count(*) FROM (SELECT 1 FROM {p} WHERE loud LIMIT 1000) AS r"
IS_CLOSING: Final = "SELECT count(*) FROM {s}.closing WHERE name = $1"
HAS_TRIGGER: Final = """
SELECT count(*) FROM pg_catalog.pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = 'reopen'
"""
# Waits for whoever is writing to it, so that all later changes fire the trigger and find the line.
STAND_STILL: Final = "LOCK TABLE {p} IN SHARE ROW EXCLUSIVE MODE"
WATCH: Final = """
CREATE TRIGGER reopen AFTER INSERT OR UPDATE OR DELETE ON {p} FOR EACH ROW EXECUTE FUNCTION {s}.reopen()
"""
BEGIN_CLOSING: Final = "INSERT INTO {s}.closing (name) VALUES ($1) ON CONFLICT (name) DO NOTHING"
TALLY: Final = "SELECT queue, state, count(*) FROM {p} GROUP BY queue, state ORDER BY queue, state"
UNCHANGED: Final = "SELECT {s}.now_ms() FROM {s}.closing WHERE name = $1 FOR UPDATE"
END_CLOSING: Final = "DELETE FROM {s}.closing WHERE name = $1"
DROP: Final = "DROP TABLE {p}"


async def keep_partitions(site: Site) -> list[str]:
    """Make the partitions of the days to come and drop those of the days that are over; what was done, or had
    to wait, in words. Raises StoreError where the user may not.
    """
    [there, [(today,)]] = await site.driver.flight(
        [site.query(THERE, f"{site.schema}.done"), site.query(TODAY)]
    )
    days = {day for (name,) in there if (day := day_of(name)) is not None}
    last = await _last_day_to_make(site, days, today)
    missing = sorted(set(range(today, last + 1)) - days)
    over = sorted(day for day in days if day < today)
    done = [await _or_later(day, _make(site, day)) for day in missing]
    done += [await _or_later(day, _close(site, day)) for day in over]
    for told in done:
        logger.info("the archive's partition %s", told)
    return done


def name_of(day: int) -> str:
    """The partition of a day (days since the epoch, UTC).

    >>> name_of(20788)
    'done_d20261201'
    """
    return f"done_d{date.fromordinal(_FIRST_DAY + day):%Y%m%d}"


def day_of(name: str) -> int | None:
    """The day of a partition; None for those that are of no day."""
    match = _NAME.fullmatch(name)
    return None if match is None else date(*map(int, match.groups())).toordinal() - _FIRST_DAY


async def _or_later(day: int, work: Coroutine[Any, Any, str]) -> str:
    try:
        return await work
    except (LockedOut, StoreBusy, Retry):
        return f"{name_of(day)} waits: a lock was not to be had within {PATIENCE_MS} ms"


async def _last_day_to_make(site: Site, days: set[int], today: int) -> int:
    """Beyond the days that always are: as far as rows lie already, and one more for those of tomorrow."""
    beyond = sorted(day for day in days if day >= today + DAYS_AHEAD)
    queries = [site.query(LAST_IN_OTHER, (today + DAYS_FORESEEN) * DAY_MS, DAY_MS)]
    queries += [_over(site, day, HAS_ROWS) for day in beyond]
    [[(in_other,)], *filled] = await site.driver.flight(queries)
    used = [day + 1 for day, [(has_rows,)] in zip(beyond, filled, strict=True) if has_rows]
    known = [*used, *([] if in_other is None else [in_other + 1]), today + DAYS_AHEAD - 1]
    last: int = min(max(known), today + DAYS_FORESEEN - 1)
    return last


async def _make(site: Site, day: int) -> str:
    name, first, end = name_of(day), day * DAY_MS, (day + 1) * DAY_MS
    [[(moving,)]] = await site.driver.flight([site.query(TO_MOVE, first, end, MOVED_AT_MOST + 1)])
    if moving > MOVED_AT_MOST:
        return (
            f"{name} is not made: over {MOVED_AT_MOST} rows of that day lie in done_other, and go one by one"
        )
    statements = [
        _over(site, day, one)[0].replace("{from}", str(first)).replace("{to}", str(end)) for one in MAKE
    ]
    async with holding(site.driver, site.schema) as transaction:
        await transaction.flight([PATIENCE, (as_one(statements), [])], last=True)
    return f"{name} is made" + (f", {moving} rows moved into it" if moving else "")


async def _close(site: Site, day: int) -> str:
    name = name_of(day)
    [[(loud,)]] = await site.driver.flight([_over(site, day, LOUD)])
    if loud:
        return f"{name} waits: {loud} rows with keys, tags, heirs or a full log go one by one before"
    await _watch(site, day)
    [tally] = await site.driver.flight([_over(site, day, TALLY)])
    async with holding(site.driver, site.schema) as transaction:
        _, unchanged = await transaction.flight([PATIENCE, site.query(UNCHANGED, name)])
        if not unchanged:
            return f"{name} waits: its rows changed while they were counted"
        gone = _gone(site, tally, unchanged[0][0])
        await transaction.flight([*gone, site.query(END_CLOSING, name), _over(site, day, DROP)], last=True)
    return f"{name} is dropped with {sum(row[2] for row in tally)} rows"


async def _watch(site: Site, day: int) -> None:
    """From here on a change of a row strikes the partition out of those that are being closed."""
    name = name_of(day)
    [[(is_closing,)], [(has_trigger,)]] = await site.driver.flight(
        [site.query(IS_CLOSING, name), site.query(HAS_TRIGGER, f"{site.schema}.{name}")]
    )
    if is_closing:
        return
    statements = [STAND_STILL, *([] if has_trigger else [WATCH])]
    watch = as_one([_over(site, day, one)[0] for one in statements])
    async with holding(site.driver, site.schema) as transaction:
        await transaction.flight([PATIENCE, (watch, []), site.query(BEGIN_CLOSING, name)], last=True)


def _gone(site: Site, tally: Rows, now: int) -> list[Query]:
    """The counts without these rows, and one event a queue: nothing vanishes unrecorded."""
    counts = [(queue, state, -n) for queue, state, n in tally]
    queues: dict[str, int] = {}
    for queue, _, n in tally:
        queues[queue] = queues.get(queue, 0) + n
    events = [
        (now, "evicted", queue, None, 0, "sweep", msgspec.json.encode({"count": n}))
        for queue, n in queues.items()
    ]
    if not tally:
        return []
    return [
        site.query(ADD_COUNTS, *arrays(COUNT, counts)),
        site.query(ADD_EVENTS, *arrays(EVENT, events)),
    ]


def _over(site: Site, day: int, text: str) -> Query:
    """A statement over one partition, named ``{p}`` in it."""
    return site.query(text.replace("{p}", f"{site.schema}.{name_of(day)}"))
