"""PgBouncer for tests: transaction mode and few server connections, so that whatever counts on a session
breaks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.servers.programs import as_server_user, free_port, hand_over, program

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
ignore_startup_parameters = extra_float_digits,options
pidfile = {folder}/pid
"""
STARTS_WITHIN = 20.0


def start(upstream: str, run_folder: Path, keep: Callable[[list[str], Path], None]) -> str | None:
    """Its URL; None if it cannot be had here."""
    path = program("pgbouncer", "pgbouncer")
    if path is None:
        return None
    folder = run_folder / "pgbouncer"
    folder.mkdir()
    hand_over(folder)
    parts = urlsplit(upstream)
    port = free_port()
    user = parts.username or "postgres"
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        CONFIGURATION.format(host=parts.hostname, port=parts.port, user=user, listen=port, folder=folder),
        encoding="utf-8",
    )
    keep(as_server_user([path, "-q", str(configuration)]), folder / "log")
    url = f"postgresql://{user}@127.0.0.1:{port}{parts.path}"
    end = time.monotonic() + STARTS_WITHIN
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
            continue
        return url
