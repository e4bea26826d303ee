"""``tessera migrate`` on PostgreSQL: two releases side by side, SQL for those who run it by hand."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from tessera import Tessera
from tessera.model.changes import Group, PutRecord
from tessera.model.worker import WORKER_SPACE, WorkerInfo
from tessera.store.postgres import migrations
from tessera.store.sql import schemafiles
from tests.store.postgres.schema_rig import RELEASED, Place, next_steps

pytestmark = [pytest.mark.store("postgresql"), pytest.mark.capability("F22")]

N = len(RELEASED)
NOTE = f"{N + 1:04}_note"


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place("cli", blocking=True)
    yield place
    place.end()


@pytest.fixture
def url(place: Place) -> str:
    return f"{place.url}&schema={place.name}"


@pytest.fixture
def run(bare, url):
    return lambda *args, **more: bare("--url", url, *args, **more)


@pytest.fixture
def release(monkeypatch):
    """Lets the command line be of this release or of the next."""
    return lambda steps: monkeypatch.setattr(migrations, "our_steps", lambda: steps)


def test_a_dry_run_prints_the_sql_and_makes_nothing(run, place):
    answer = run("migrate", "--dry-run")
    assert answer.status == 0
    assert f'CREATE TABLE "{place.name}".job (' in answer.out
    assert answer.err == "would take: 0001_core\n"
    assert place.contents() == {}
    told = run("migrate", "--dry-run", "--json").json
    assert (told["steps"], told["sql"]) == (["0001_core"], answer.out)


def test_the_printed_sql_run_by_hand_is_adopted(run, place):
    for statement in schemafiles._statements(run("migrate", "--dry-run").out):
        place.sql.execute(statement)
    assert run("migrate", "adopt", "--json").json["steps"] == ["0001_core"]
    assert run("queues", "list").status == 0
    assert run("migrate", "adopt").err == "nothing to do: the schema is where it should be\n"


def test_what_is_not_as_printed_is_refused_with_the_difference(run, place):
    run("migrate")
    place.sql.execute(f"DROP TABLE {place.name}.migration; DROP INDEX {place.name}.job_ready")
    answer = run("migrate", "adopt", "--json")
    assert (answer.status, answer.error["code"]) == (1, "store_error")
    assert "index job_ready is missing" in answer.error["message"]


def test_up_and_contract_and_down(run, place, release):
    assert run("migrate", "--json").json["steps"] == ["0001_core"]
    release(next_steps())
    assert run("queues", "list", "--json").error["code"] == "schema_too_old"
    assert "CONCURRENTLY" in run("migrate", "--dry-run").out
    assert run("migrate", "--json").json["steps"] == [NOTE]
    release(RELEASED)
    assert run("queues", "list").status == 0
    release(next_steps())
    assert "SET DEFAULT" in run("migrate", "contract", "--dry-run").out
    assert run("migrate", "contract", "--json").json["steps"] == [f"{NOTE} (contract)"]
    release(RELEASED)
    assert run("queues", "list", "--json").error["code"] == "schema_too_new"
    release(next_steps())
    assert run("migrate", "down").status == 2
    assert run("migrate", "down", "--yes", "--json").json["steps"] == [f"{NOTE} (back)"]
    release(RELEASED)
    assert run("queues", "list").status == 0


def test_contract_asks_while_workers_of_another_release_live(run, url, release):
    run("migrate")
    release(next_steps())
    run("migrate")
    with Tessera(url) as app:
        info = WorkerInfo("abc", name="w1", host="h", pid=7, started_at=1, version="0.0.1")
        put = PutRecord(WORKER_SPACE, "abc", msgspec.json.encode(info))
        app._run(lambda store: store.commit([Group(changes=(put,))]))
    answer = run("migrate", "contract")
    assert answer.status == 2
    assert "w1 (0.0.1)" in answer.err
    assert run("migrate", "contract", "--yes", "--json").json["steps"] == [f"{NOTE} (contract)"]


def test_a_version_is_for_up_and_down_alone(run):
    assert run("migrate", "contract", "--to", "1").status == 2
    assert run("migrate", "adopt", "--to", "1").status == 2


@pytest.mark.parametrize("direction", ["contract", "adopt"])
def test_a_store_with_a_schema_in_one_part_says_so(bare, tmp_path, direction):
    url = f"sqlite:///{tmp_path}/work.db"
    bare("--url", url, "migrate")
    answer = bare("--url", url, "migrate", direction, "--json")
    assert (answer.status, answer.error["code"]) == (1, "unsupported")
