"""How a store on a server is doing, in facts for ``tessera doctor`` and in worries."""

from __future__ import annotations

from typing import Any, Final

from tessera.model.condition import Condition, IndexUse, OldestReader, TableUse

OPEN_SECONDS: Final = 300
"""A transaction that is open so long is forgotten, or a report that should run on a replica."""
DEAD_ROWS: Final = 100_000
SHOWN: Final = 5


def facts_of(condition: Condition) -> dict[str, Any]:
    """What there is to say, by name."""
    connections = condition.connections
    return {
        "tables": [_table(one) for one in condition.tables[:SHOWN]],
        "indexes": [_index(one) for one in condition.indexes[:SHOWN]],
        "differences of counts not folded yet": condition.unfolded,
        "oldest transaction": "" if condition.oldest is None else told(condition.oldest),
        "connections in use, of those allowed": f"{connections.used} of {connections.allowed}",
        "connections that a worker opens at most": connections.worker,
        "connections that a blocking client opens at most": connections.blocking,
    }


def worries(condition: Condition) -> list[str]:
    """What an operator should look at, and what to do about it."""
    found = []
    bloated = [one for one in condition.indexes if one.is_bloated()]
    if bloated:
        names = ", ".join(f"{one.name} ({one.bloat:.1f} times its fresh size)" for one in bloated)
        found.append(f"bloated indexes: {names}; rebuild them with: tessera maintain --indexes")
    if invalid := [one.name for one in condition.indexes if not one.is_valid]:
        found.append(
            f"invalid indexes, left by a build that was broken off: {', '.join(invalid)}; "
            "tessera migrate or tessera maintain --indexes takes them up again"
        )
    oldest = condition.oldest
    if oldest is not None and oldest.seconds >= OPEN_SECONDS:
        found.append(f"dead rows cannot be removed anywhere because of a {told(oldest)}")
    found += [
        f"table {table.name} holds {table.dead_rows:,} dead rows: vacuum does not keep up"
        for table in condition.tables
        if table.dead_rows > max(DEAD_ROWS, table.live_rows)
    ]
    connections = condition.connections
    if connections.used + connections.worker > connections.allowed:
        found.append(
            f"{connections.used} of {connections.allowed} connections are in use: one more worker may open "
            f"{connections.worker}; lower ?connections=, or put PgBouncer in between"
        )
    return found


def told(oldest: OldestReader) -> str:
    """Who it is, since when, and what it does."""
    who = f"{oldest.what} {oldest.name}" + (f" (pid {oldest.pid})" if oldest.pid else "")
    since = f", open for {oldest.seconds} s" if oldest.seconds >= 0 else ""
    query = f": {' '.join(oldest.query.split())}" if oldest.query else ""
    return f"{who}{since}, {oldest.transactions:,} transactions ago{query}"


def _table(table: TableUse) -> str:
    return f"{table.name}: {_size(table.size_bytes)}, {table.live_rows:,} rows, {table.dead_rows:,} dead"


def _index(index: IndexUse) -> str:
    times = f", {index.bloat:.1f} times its fresh size" if index.fresh_bytes else ""
    return f"{index.name}: {_size(index.size_bytes)}{times}"


def _size(size_bytes: int) -> str:
    if size_bytes < 1 << 20:
        return f"{size_bytes / 1024:.0f} KiB"
    return f"{size_bytes / (1 << 20):,.1f} MiB"
