"""The PgBouncer of the tests is of the kind that breaks whatever counts on a session."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

pytestmark = pytest.mark.timeout(120)


def test_two_server_connections_serve_many_clients(pgbouncer_url: str):
    clients = [psycopg.connect(pgbouncer_url, autocommit=True, prepare_threshold=None) for _ in range(20)]
    try:
        with ThreadPoolExecutor(20) as threads:
            asked = [
                threads.submit(one.execute, "SELECT pg_backend_pid(), pg_sleep(0.01)") for one in clients
            ]
            rows = [one.result(60).fetchone() for one in asked]
        assert len({row[0] for row in rows if row is not None}) <= 2
    finally:
        for one in clients:
            one.close()


def test_a_startup_parameter_of_a_session_is_refused(pgbouncer_url: str):
    with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter"):
        psycopg.connect(pgbouncer_url, options="-c statement_timeout=1")
