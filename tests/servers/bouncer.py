"""PgBouncer for tests: transaction mode and few server connections, so that whatever counts on a session
breaks.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.servers.keeper import Kept
from tests.servers.programs import free_port, hand_over, program

CONFIGURATION = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
max_client_conn = 1000
server_reset_query =
"""
STARTS_WITHIN = 20.0


def is_installed() -> bool:
    return program("pgbouncer", "pgbouncer") is not None


def start(upstream: str, folder: Path, run: int, run_folder: Path) -> tuple[str, Kept]:
    """Its URL, and its keeper. It lives as long as that process and that folder."""
    path = program("pgbouncer", "pgbouncer")
    assert path is not None, "the caller has asked is_installed()"
    folder.mkdir()
    hand_over(folder)
    parts = urlsplit(upstream)
    port = free_port()
    user = parts.username or "postgres"
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        CONFIGURATION.format(host=parts.hostname, port=parts.port, user=user, listen=port), encoding="utf-8"
    )
    log = folder / "log"
    # Which other signal ends it at once, and which waits for the clients, has changed between versions.
    kept = Kept([path, "-q", str(configuration)], log, run, run_folder, remove=True, by=signal.SIGKILL)
    url = f"postgresql://{user}@127.0.0.1:{port}{parts.path}"
    end = time.monotonic() + STARTS_WITHIN
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError as error:
            if time.monotonic() > end or kept.has_ended:
                last = log.read_text(errors="replace")[-500:]
                raise RuntimeError(f"PgBouncer does not start: {last or error}") from error
            time.sleep(0.05)
            continue
        return url, kept
