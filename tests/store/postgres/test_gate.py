"""A claim that waited for the gate."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tessera.model.changes import AddJob, Group
from tessera.model.ids import JobId
from tessera.model.job import Job, Need
from tessera.model.policy import Policy
from tessera.model.queries import Claimed, ClaimRequest, Want
from tessera.store.postgres.server import Server
from tessera.store.postgres.store import PostgresStore
from tessera.store.protocol import run_blocking
from tests.servers import schemas
from tests.store.postgres.driver_rig import until

pytestmark = pytest.mark.store("postgresql")


def test_a_lease_begins_when_the_gate_was_passed_and_not_when_it_was_asked_for():
    """INV-5: what became ready meanwhile is claimed too, and its lease must not begin before."""
    schema = schemas.emptied("real")
    connection = schemas.connection_of_this_process()
    server = Server(schemas.direct_url(), schema=schema)
    store = PostgresStore(server, blocking=True)
    try:
        run_blocking(store.open())
        job = Job(id=JobId(bytes(16)), kind="k", queue="q", needs=(Need("c"),))
        run_blocking(store.commit([Group(changes=(AddJob(job),))]))
        request = ClaimRequest("w", (Want("q", 1),), 1, 60_000, Policy())
        claimed: list[Claimed] = []
        with psycopg.connect(schemas.direct_url()) as other:
            other.execute(f"SELECT 1 FROM {schema}.gate WHERE name = 'claim' FOR UPDATE")
            thread = threading.Thread(target=lambda: claimed.append(run_blocking(store.claim(request))))
            thread.start()
            pids = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
            until(lambda: connection.execute(pids, (other.info.backend_pid,)).fetchone() != (0,), "it waits")
            [(released_at,)] = connection.execute(f"SELECT {schema}.clock_ms() + 1").fetchall()
            until(
                lambda: (
                    connection.execute(f"SELECT {schema}.clock_ms() >= {released_at}").fetchone() == (True,)
                ),
                "a moment later",
            )
            other.rollback()
        thread.join(20)
        [[leased]] = [one.jobs for one in claimed]
        assert leased.claimed_at >= released_at
    finally:
        server.close()
