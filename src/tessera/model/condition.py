"""How a store on a server is doing, for an operator: what grew, what holds it back, who may connect."""

from __future__ import annotations

from typing import Final

import msgspec

BLOAT: Final = 2.0
"""An index that takes so many times its fresh size is rebuilt."""
BLOATED_BYTES: Final = 16 << 20
"""Below this the size of an index costs nobody anything."""


class TableUse(msgspec.Struct, frozen=True, gc=False):
    """One table, without its indexes. Rows are the server's estimates."""

    name: str
    size_bytes: int
    live_rows: int
    dead_rows: int
    vacuumed_seconds_ago: int = -1
    """-1 = never, as far as the server remembers."""


class IndexUse(msgspec.Struct, frozen=True, gc=False):
    """One index. What it would take if it were built anew is an estimate from the server's statistics."""

    name: str
    table: str
    size_bytes: int
    fresh_bytes: int
    """0 = unknown: the server has no statistics yet."""
    is_valid: bool = True

    @property
    def bloat(self) -> float:
        """How many times its fresh size it takes; 1 where that is unknown."""
        return self.size_bytes / self.fresh_bytes if self.fresh_bytes else 1.0

    def is_bloated(self, bloat: float = BLOAT, least_bytes: int = BLOATED_BYTES) -> bool:
        """Whether rebuilding it is worth it."""
        return self.size_bytes >= least_bytes and self.bloat >= bloat


class OldestReader(msgspec.Struct, frozen=True, gc=False):
    """Whatever keeps dead rows from being removed, in the whole server."""

    what: str
    """session, prepared transaction, replication slot or standby."""
    name: str
    pid: int
    transactions: int
    """How many have begun since."""
    seconds: int
    """How long it has been open; -1 = unknown."""
    query: str


class Connections(msgspec.Struct, frozen=True, gc=False):
    """What one process of this Tessera opens at most, and what the server allows to all."""

    blocking: int
    worker: int
    used: int
    allowed: int


class Condition(msgspec.Struct, frozen=True, gc=False):
    """All of it."""

    tables: tuple[TableUse, ...]
    indexes: tuple[IndexUse, ...]
    oldest: OldestReader | None
    connections: Connections
    unfolded: int
    """Differences of counts that no fold has added up yet."""
