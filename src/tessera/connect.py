"""From a URL to a store: the only place that names concrete stores. Drivers are imported when a URL asks for
them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from tessera import seam
from tessera.config import shown_url
from tessera.model.errors import ConfigError
from tessera.store.protocol import Store

if TYPE_CHECKING:
    from urllib.parse import SplitResult  # each function loads what it needs: it brings ipaddress along

_TO_COME = (
    "mysql",
    "mariadb",
    "redis",
    "rediss",
    "redis+sentinel",
    "redis+cluster",
)

_OFFERED: Final = "begin it with postgresql://, sqlite:/// or memory://"
MOST_CONNECTIONS: Final = 100
_SCHEMA_NAME: Final = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_]{0,62}")


class Backend(Protocol):
    """One store, and as many handles on it as one likes."""

    @property
    def url(self) -> str:
        """The URL without a password."""
        ...

    def handle(self, *, blocking: bool) -> Store:
        """A handle, not opened yet, of one colour."""
        ...

    def close(self) -> None:
        """Give up what all handles share, after each of them was closed."""
        ...


def connect(url: str) -> Backend:
    """The backend behind a URL; nothing is opened yet. Raises ConfigError for a URL that leads nowhere.

    ``memory://`` lives and dies with the backend. ``sqlite:///work.db`` is relative to the working directory,
    ``sqlite:////var/work.db`` absolute; ``?synchronous=normal`` trades the last few commits before a power
    cut for speed, ``?unsafe_filesystem=1`` skips the check for network file systems.

    ``postgresql://user@host/database`` takes what libpq takes, and ``?schema=`` (``tessera``),
    ``?connections=`` (at most so many for each colour, 4), ``?prepare=0`` and ``?listen=0`` (for poolers, but
    these are found out).
    """
    if not isinstance(url, str):
        raise ConfigError([f"url: is of type {type(url).__name__}; give a text such as sqlite:///work.db"])
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError([f"url: {url!r} is no URL: {error}"]) from None
    if parts.scheme == "memory":
        return _memory(url)
    if parts.scheme == "sqlite":
        return _sqlite(url, parts)
    if parts.scheme in ("postgresql", "postgres"):
        return _postgres(url, parts)
    if parts.scheme in _TO_COME:
        problem = f"{parts.scheme}:// is not offered by this version of Tessera; {_OFFERED}"
        raise ConfigError([f"url: {problem}"])
    raise ConfigError([f"url: {url!r} is no store URL; {_OFFERED}"])


class _MemoryBackend:
    def __init__(self, url: str) -> None:
        from tessera.store.memory import World

        self.url = url
        self._world = World(seam.random_bytes(16), seam.now_ms)

    def handle(self, *, blocking: bool) -> Store:
        from tessera.store.memory import MemoryStore

        return MemoryStore(self._world, blocking=blocking)

    def close(self) -> None:
        """Nothing is held that the garbage collector does not know of."""


def _memory(url: str) -> Backend:
    return _MemoryBackend(url)


class _SqliteBackend:
    def __init__(self, url: str, path: str, synchronous: str, unsafe_filesystem: bool) -> None:
        from tessera.store.sqlite import SqliteFile

        self.url = url
        self._file = SqliteFile(path, synchronous=synchronous, unsafe_filesystem=unsafe_filesystem)

    def handle(self, *, blocking: bool) -> Store:
        from tessera.store.sqlite import SqliteStore

        return SqliteStore(self._file, blocking=blocking)

    def close(self) -> None:
        self._file.close()


def _sqlite(url: str, parts: SplitResult) -> Backend:
    from urllib.parse import parse_qsl, unquote

    problems = []
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not path or path == ":memory:":
        problems.append(
            f"url: {url!r} names no file; write sqlite:///work.db, or sqlite:////absolute/work.db"
        )
    if "\0" in path:
        problems.append(f"url: {url!r} holds a NUL, which no file name can")
    known = {"synchronous": "full", "unsafe_filesystem": "0"}
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    problems += [
        f"url: {name!r} is no option of sqlite://; there are: {', '.join(known)}"
        for name in options.keys() - known.keys()
    ]
    options = {**known, **options}
    if options["synchronous"].lower() not in ("full", "normal"):
        problems.append(f"url: synchronous={options['synchronous']!r}; it is full or normal")
    if options["unsafe_filesystem"] not in ("0", "1"):
        problems.append(f"url: unsafe_filesystem={options['unsafe_filesystem']!r}; it is 0 or 1")
    if problems:
        raise ConfigError(problems)
    return _SqliteBackend(url, path, options["synchronous"].lower(), options["unsafe_filesystem"] == "1")


class _PostgresBackend:
    def __init__(
        self, url: str, conninfo: str, schema: str, connections: int, prepare: bool, listen: bool
    ) -> None:
        from tessera.store.postgres.server import Server

        self.url = url
        self._server = Server(
            conninfo, schema=schema, connections=connections, prepare=prepare, listen=listen
        )

    def handle(self, *, blocking: bool) -> Store:
        from tessera.store.postgres.store import PostgresStore

        return PostgresStore(self._server, blocking=blocking)

    def close(self) -> None:
        self._server.close()


def _postgres(url: str, parts: SplitResult) -> Backend:
    from urllib.parse import parse_qsl, urlencode, urlunsplit

    known = {"schema": "tessera", "connections": "4", "prepare": "1", "listen": "1"}
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = {**known, **{name: value for name, value in pairs if name in known}}
    problems = [
        f"url: {name}={options[name]!r}; it is 0 or 1"
        for name in ("prepare", "listen")
        if options[name] not in ("0", "1")
    ]
    if not options["connections"].isdecimal() or not 1 <= int(options["connections"]) <= MOST_CONNECTIONS:
        problems.append(f"url: connections={options['connections']!r}; it is 1 to {MOST_CONNECTIONS}")
    if not _SCHEMA_NAME.fullmatch(options["schema"]):
        problems.append(
            f"url: schema={options['schema']!r}; it is up to 63 letters, digits and _, no digit or pg_ first"
        )
    if problems:
        raise ConfigError(problems)
    theirs = urlencode([(name, value) for name, value in pairs if name not in known])
    conninfo = urlunsplit(("postgresql", parts.netloc, parts.path, theirs, ""))
    try:
        return _PostgresBackend(
            shown_url(url),
            conninfo,
            options["schema"],
            int(options["connections"]),
            options["prepare"] == "1",
            options["listen"] == "1",
        )
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise ConfigError(
            ["url: postgresql:// needs psycopg; pip install 'tessera-queue[postgres]'"]
        ) from None
    except ValueError as error:
        raise ConfigError([f"url: it is no URL for PostgreSQL: {error}"]) from None
