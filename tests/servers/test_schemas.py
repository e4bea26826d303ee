"""Schemas of tests are nobody else's, and gone when their process is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import psycopg
import pytest

from tests.servers.schemas import connection_of_this_process, direct_url, durable_url
from tests.shape.source_rules import ROOT

pytestmark = [pytest.mark.store("postgresql"), pytest.mark.timeout(120)]

MAKING = """
import os, signal, sys
from tests.servers.schemas import connection_of_this_process, schema_name
name = schema_name()
connection_of_this_process().execute(f"CREATE SCHEMA {name}")
print(name, flush=True)
if "killed" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def looking(postgres_url: str) -> psycopg.Connection:
    return connection_of_this_process()


def made_by_another_process(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", MAKING, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


def exists(connection: psycopg.Connection, name: str) -> bool:
    query = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)"
    return connection.execute(query, (name,)).fetchone() == (True,)


def test_each_name_is_new(looking: psycopg.Connection, schema_name: Callable[[], str]):
    one, other = schema_name(), schema_name()
    assert one != other
    assert not exists(looking, one)
    looking.execute(f"CREATE SCHEMA {one}")
    assert exists(looking, one)


def test_a_schema_is_dropped_when_its_process_ends(looking: psycopg.Connection):
    name = made_by_another_process()
    assert name.startswith("tessera_test_")
    assert not exists(looking, name)


def test_what_a_killed_process_left_is_dropped_by_the_next(looking: psycopg.Connection):
    name = made_by_another_process("killed")
    assert exists(looking, name)
    made_by_another_process()
    assert not exists(looking, name)


def test_a_schema_that_somebody_still_works_in_keeps_nobody_waiting(looking: psycopg.Connection):
    name = made_by_another_process("killed")
    with psycopg.connect(direct_url()) as holder:
        holder.execute(f"CREATE TABLE {name}.held ()")
        holder.commit()
        holder.execute(f"LOCK TABLE {name}.held")
        assert made_by_another_process().startswith("tessera_test_")
        assert exists(looking, name)
    made_by_another_process()
    assert not exists(looking, name)


def test_commits_wait_for_the_disk_only_where_that_is_the_question(looking: psycopg.Connection):
    assert looking.execute("SHOW synchronous_commit").fetchone() == ("off",)
    assert "synchronous_commit" not in durable_url()
