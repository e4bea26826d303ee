"""``tessera maintain``, and what ``tessera doctor`` says of tables, indexes and connections."""

from __future__ import annotations

import psycopg
import pytest

from tessera.doors.cli.condition import facts_of, worries
from tessera.model.condition import Condition, Connections, IndexUse, OldestReader, TableUse
from tests.servers import schemas

MIB = 1 << 20
CONNECTIONS = Connections(blocking=5, worker=13, used=10, allowed=97)
FINE = Condition(
    tables=(TableUse("job", 3 * MIB, 1_000, 10),),
    indexes=(IndexUse("job_ready", "job", 20 * MIB, 15 * MIB),),
    oldest=None,
    connections=CONNECTIONS,
    unfolded=7,
)


def with_(**parts) -> Condition:
    return Condition(**{name: getattr(FINE, name) for name in FINE.__struct_fields__} | parts)


def test_facts_have_units():
    facts = facts_of(FINE)
    assert facts["tables"] == ["job: 3.0 MiB, 1,000 rows, 10 dead"]
    assert facts["indexes"] == ["job_ready: 20.0 MiB, 1.3 times its fresh size"]
    assert facts["connections in use, of those allowed"] == "10 of 97"
    assert facts["oldest transaction"] == ""


@pytest.mark.parametrize(
    "parts, words",
    [
        ({}, None),
        ({"indexes": (IndexUse("i", "job", 40 * MIB, 20 * MIB),)}, r"i \(2.0 times.*maintain --indexes"),
        ({"indexes": (IndexUse("i", "job", 15 * MIB, MIB),)}, None),
        ({"indexes": (IndexUse("i", "job", 40 * MIB, 0),)}, None),
        ({"indexes": (IndexUse("i", "job", 8, 8, is_valid=False),)}, "invalid indexes.*: i; tessera migrate"),
        ({"tables": (TableUse("job", MIB, 5, 100_001),)}, "table job holds 100,001 dead rows"),
        ({"tables": (TableUse("job", MIB, 200_000, 100_001),)}, None),
        (
            {"oldest": OldestReader("session", "ada psql", 7, 12_000, 300, "SELECT\n  1")},
            r"because of a session ada psql \(pid 7\), open for 300 s, 12,000 transactions ago: SELECT 1",
        ),
        ({"oldest": OldestReader("session", "ada", 7, 12_000, 299, "")}, None),
        ({"connections": Connections(5, 13, 85, 97)}, "85 of 97 connections are in use"),
        ({"connections": Connections(5, 13, 84, 97)}, None),
    ],
)
def test_an_operator_is_told_what_needs_a_look_and_what_to_do(parts, words):
    import re

    found = worries(with_(**parts))
    assert bool(found) == (words is not None)
    assert words is None or re.search(words, found[0])


@pytest.fixture
def servers_run(bare):
    url = schemas.real_url()
    return lambda *args: bare("--url", url, *args)


@pytest.mark.store("postgresql")
@pytest.mark.capability("F15")
def test_upkeep_is_done_on_an_operators_word(servers_run):
    schema = schemas.schema_of_this_process("real")
    connection = schemas.connection_of_this_process()
    connection.execute(f"INSERT INTO {schema}.count_delta VALUES ('q', 2, 1), ('q', 2, -1)")
    answer = servers_run("maintain", "--indexes", "--json")
    assert (answer.status, answer.json) == (0, {"rebuilt": []})
    assert connection.execute(f"SELECT count(*) FROM {schema}.count_delta").fetchone() == (0,)
    query = "SELECT count(*) FROM pg_inherits WHERE inhparent = %s::regclass"
    [(partitions,)] = connection.execute(query, (f"{schema}.done",)).fetchall()
    assert partitions > 2


@pytest.mark.store("postgresql")
def test_doctor_tells_tables_indexes_and_connections(servers_run):
    with psycopg.connect(schemas.direct_url()) as other:
        other.execute(f"SELECT * FROM {schemas.schema_of_this_process('real')}.meta")
        told = servers_run("doctor", "--json").json["upkeep"]
        assert told["connections that a worker opens at most"] == 13
        assert told["indexes"]
    assert "\nupkeep:\n" in servers_run("doctor").out


def test_a_store_without_upkeep_says_so(bare, tmp_path):
    url = f"sqlite:///{tmp_path}/work.db"
    bare("--url", url, "migrate")
    assert bare("--url", url, "doctor", "--json").json["upkeep"] == {}
    answer = bare("--url", url, "maintain", "--json")
    assert (answer.status, answer.error["code"]) == (1, "unsupported")
