"""One installation on one PostgreSQL server, and what all handles on it in this process share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tessera.store.postgres.driver import Async, Blocking
from tessera.store.postgres.memory import Memory
from tessera.store.postgres.pool import PooledDriver
from tessera.store.postgres.signals import Signals

CONNECTIONS: Final = 4
_DEFAULTS: Final = {
    "fallback_application_name": "tessera",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
"""A peer that is gone without a word is noticed within some ten seconds. What the URL says comes first."""
_OURS: Final = {"client_encoding": "UTF8"}
"""``params`` packs texts so, whatever the database keeps them in."""


class Server:
    """See the module. Made without connecting; ``clock`` stands for the server's, in tests."""

    def __init__(
        self,
        conninfo: str,
        *,
        schema: str = "tessera",
        connections: int = CONNECTIONS,
        prepare: bool = True,
        listen: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> None:
        try:
            named = conninfo_to_dict(conninfo)
        except ProgrammingError as error:
            raise ValueError(str(error).strip()) from None
        self.conninfo = make_conninfo("", **{**_DEFAULTS, **named, **_OURS})
        self.schema = schema
        self.connections = connections
        self.prepare = prepare
        """Whether statements are prepared; switched off when a pooler turns out to keep none."""
        self.memory = Memory(clock)
        self.installation = b""
        # A channel is the database's already, and a pooler may know that by another name.
        channel = "tessera_" + hashlib.sha256(schema.encode()).hexdigest()[:16]
        self.signals = Signals(self.conninfo, channel, listen=listen)
        self._blocking: PooledDriver | None = None
        self._async: list[PooledDriver] = []

    def driver(self, *, blocking: bool) -> PooledDriver:
        """Flights of one colour: one pool for all threads, and one for each event loop's handle."""
        if not blocking:
            driver = PooledDriver(self, Async)
            self._async = [one for one in self._async if one.holds_any] + [driver]
            return driver
        if self._blocking is None:
            self._blocking = PooledDriver(self, Blocking)
        return self._blocking

    def close(self) -> None:
        """End the thread and the connections of all handles."""
        self.signals.close()
        blocking, self._blocking = self._blocking, None
        for driver in filter(None, (blocking, *self._async)):
            driver.end()
        self._async.clear()
