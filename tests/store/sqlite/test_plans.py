"""Each statement on the way of a claim or a commit is served by the index that its comment names, on 10,000
rows.

An index that SQLite does not use turns a claim into a walk through the whole backlog, with the same
answers.
"""

from __future__ import annotations

import pytest

from tessera.store.sqlite import finding, migrations, reads, source, writes
from tests.store.sqlite.rig import START, Handle

KEYED = "USING INDEX sqlite_autoindex_{}_1 (id=?)"
VALUES = {
    "after": b"\xff" * 17, "beyond": "kind:q;", "blocked_on": "c", "child": b"c", "first": "kind:q:",
    "holder": "h", "id": b"i" * 16, "ids": b"i" * 160, "job": b"j", "key": "k", "limit": 100, "now": START,
    "number": 0, "parent": b"p", "prefix": "k", "priority": 0, "queue": "q", "sha256": b"s", "size": 1,
    "space": "s", "state": 0, "tag": "t", "tenant": "t", "upload": "u", "version": 1,
}  # fmt: skip
SERVED = [
    (source.LOAD_JOB, [KEYED.format("tessera_job")]),
    (source.LOAD_DONE, [KEYED.format("tessera_done")]),
    (source.LOAD_JOBS, [KEYED.format("tessera_job")]),
    (source.LOAD_DONES, [KEYED.format("tessera_done")]),
    (source.READY, ["USING INDEX tessera_job_ready (queue=?)"]),
    (source.BLOCKED, ["USING INDEX tessera_job_blocked (blocked_on=? AND state=?)"]),
    (source.WOKEN, ["USING INDEX tessera_job_blocked (blocked_on=? AND state=?)"]),
    (source.OUTDATED, ["USING INDEX tessera_counter_blocked (version<?)"]),
    (source.BLOCKED_KINDS, ["USING PRIMARY KEY (key>? AND key<?)"]),
    (source.NEXT_SCHEDULED, ["USING INDEX tessera_job_scheduled (queue=?)"]),
    (source.NEXT_LOOK, ["USING COVERING INDEX tessera_counter_wake"]),
    (source.LOAD_SLOT, ["USING PRIMARY KEY (key=?)"]),
    (source.LOAD_COUNTER, ["USING PRIMARY KEY (key=?)"]),
    (source.LOAD_RECORD, ["USING INDEX sqlite_autoindex_tessera_record_1 (space=? AND key=?)"]),
    (source.LOAD_LANE, ["USING PRIMARY KEY (queue=? AND priority=?)"]),
    (source.LOAD_TENANT, ["USING PRIMARY KEY (queue=? AND priority=? AND tenant=?)"]),
    (source.LOAD_EDGE, ["USING PRIMARY KEY (parent=? AND child=?)"]),
    (source.EDGES_FROM, ["USING PRIMARY KEY (parent=?)"]),
    (source.EDGES_TO, ["USING INDEX tessera_edge_child (child=?)"]),
    (source.STAGED, ["USING PRIMARY KEY (upload=?)"]),
    (writes.UPDATE_LEASE, [KEYED.format("tessera_job")]),
    (writes.UPDATE_JOB, [KEYED.format("tessera_job")]),
    (writes.DELETE_JOB, [KEYED.format("tessera_job")]),
    (writes.DELETE_DONE, [KEYED.format("tessera_done")]),
    (writes.DELETE_TAG, ["USING PRIMARY KEY (tag=? AND job=?)"]),
    (reads.SCHEDULED, ["USING INDEX tessera_job_scheduled (queue=? AND due<?)"]),
    (reads.LAPSED, ["USING INDEX tessera_job_lease (lease_until<?)"]),
    (reads.EXPIRED, ["USING INDEX tessera_job_expiry (expires_at>? AND expires_at<?)"]),
    (reads.GONE, ["USING INDEX tessera_done_gone (gone_at>? AND gone_at<?)"]),
    (reads.SLOTS_OVER, ["USING INDEX tessera_slot_expiry (expires_at>? AND expires_at<?)"]),
    (reads.COUNTERS_DUE, ["USING COVERING INDEX tessera_counter_wake (wake_at>? AND wake_at<?)"]),
    (reads.RECORDS_DUE, ["USING INDEX tessera_record_due", "USING INDEX tessera_record_expiry"]),
    (reads.SCAN, ["USING INDEX sqlite_autoindex_tessera_record_1 (space=? AND key>?)"]),
    (reads.HISTORY, ["USING INDEX tessera_record_history_key (space=? AND key=?)"]),
    (reads.EVENTS, ["USING INTEGER PRIMARY KEY (rowid>?)"]),
    (reads.EVENTS_OF_JOB, ["USING INDEX tessera_event_job (job=? AND pos>?)"]),
    (reads.BLOB_CHUNK, ["USING PRIMARY KEY (sha256=? AND number>?)", "USING INTEGER PRIMARY KEY (rowid=?)"]),
    (finding.WALK_JOBS, ["USING INDEX sqlite_autoindex_tessera_job_1 (id<?)"]),
    (finding.WALK_DONE, ["USING INDEX sqlite_autoindex_tessera_done_1 (id<?)"]),
    (finding.CHILDREN, ["USING INDEX tessera_job_parent (parent=? AND id<?)"]),
    (finding.ENDED_CHILDREN, ["USING INDEX tessera_done_parent (parent=? AND id<?)"]),
    (finding.ASKED_TO_STOP, ["USING INDEX tessera_job_cancel (holder=? AND id<?)"]),
    (finding.STILL, ["USING INDEX tessera_job_still (queue=? AND state=? AND id<?)"]),
    (finding.ODD, ["USING INDEX tessera_done_odd (queue=? AND state=? AND id<?)"]),
    (finding.TAGGED, ["USING PRIMARY KEY (tag=? AND job<?)"]),
    (finding.READY_KEYS, ["USING INDEX tessera_job_ready (queue=?)"]),
    (finding.SCHEDULED_KEYS, ["USING INDEX tessera_job_scheduled (queue=?)"]),
    (finding.LEASED_KEYS, ["USING INDEX tessera_job_lease"]),
    (finding.HELD_KEYS, ["USING INDEX tessera_job_lease"]),
    (finding.BLOCKED_KEYS, ["USING COVERING INDEX tessera_job_blocked"]),
    (finding.UNDER_KEY, ["USING COVERING INDEX tessera_job_blocked (blocked_on=?)"]),
]
SORTED = {
    source.OUTDATED,
    reads.GONE,
    reads.LAPSED,
    finding.BLOCKED_KEYS,
    finding.HELD_KEYS,
    finding.LEASED_KEYS,
    finding.READY_KEYS,
    finding.SCHEDULED_KEYS,
    finding.UNDER_KEY,
}
"""These may sort, and say so where they stand: few keys, or leases of one instant."""


@pytest.fixture(scope="module")
def backlog(tmp_path_factory):
    """A connection to a file of 10,000 jobs, with the statistics that ANALYZE gives the planner."""
    from tessera.store.sqlite import SqliteFile
    from tessera.store.sqlite.connection import open_writer

    path = str(tmp_path_factory.mktemp("plans") / "work.db")
    handle = Handle(SqliteFile(path, synchronous="normal", ballast_bytes=0))
    for start in range(0, 10_000, 1_000):
        handle.add(*(f"job{number}" for number in range(start, start + 1_000)))
    handle.complete(handle.claim(n=500).jobs)
    handle.claim(n=200)
    handle.close()
    connection = open_writer(path, synchronous="normal", busy_timeout_ms=1_000, create=False)
    connection.execute("ANALYZE")
    yield connection
    connection.close()


def plan_of(connection, query: str) -> list[str]:
    values = VALUES if ":" in query else ["x"] * query.count("?")
    return [row[-1] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]


@pytest.mark.parametrize("query,indexes", SERVED, ids=[query.split("WHERE")[0][-40:] for query, _ in SERVED])
def test_the_index_that_is_named_serves_the_statement(backlog, query, indexes):
    plan = plan_of(backlog, query)
    for index in indexes:
        assert any(index in step for step in plan), plan


@pytest.mark.parametrize("query,indexes", [pair for pair in SERVED if pair[0] not in SORTED])
def test_what_has_an_order_is_read_in_it_and_not_sorted(backlog, query, indexes):
    assert not [step for step in plan_of(backlog, query) if "TEMP B-TREE" in step]


def test_every_statement_that_finds_jobs_has_a_plan_that_is_tested():
    modules = (source, reads, finding)
    queries = {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str) and "WHERE" in value and not name.startswith("_")
    }
    tested = {query for query, _ in SERVED}
    small = {source.META, reads.COUNTS, reads.QUEUES_WITH_SCHEDULED, reads.BLOB, migrations.HAS_BOOKS}
    assert {name for name, query in queries.items() if query not in tested | small} == set()
