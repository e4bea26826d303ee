"""``tessera migrate``: forwards by itself, back only if a person says so."""

from pathlib import Path

import pytest

from tessera import Tessera
from tessera.store.sql import schemafiles
from tessera.store.sqlite import file, migrations

pytestmark = pytest.mark.capability("F22")


def test_a_current_store_has_nothing_to_do(run):
    answer = run("migrate", "--json")
    assert (answer.status, answer.json) == (0, {"steps": [], "dry_run": False})


def test_a_store_that_is_not_there_is_made(bare, url):
    assert bare("--url", url, "migrate").status == 0
    with Tessera(url) as app:
        assert app.queues.list() == []


def test_a_dry_run_makes_no_store(bare, url, tmp_path):
    assert bare("--url", url, "migrate", "--dry-run").status == 5
    assert list(tmp_path.glob("work.db*")) == []


def test_down_needs_yes_where_nobody_can_be_asked(run, app, greet):
    greet(id="x")
    app.close()
    assert run("migrate", "down").status == 2
    assert app.jobs.get("x").kind == "greet"


def test_down_dry_run_only_says_what_would_be_done(run, app, greet):
    greet(id="x")
    app.close()
    answer = run("migrate", "down", "--dry-run")
    assert answer.status == 0
    assert "would take" in answer.out
    assert "back" in answer.out
    assert app.jobs.get("x").kind == "greet"


def test_down_and_up_leave_an_empty_store(run, app, greet):
    greet(id="x")
    app.close()
    down = run("migrate", "down", "--to", "0", "--yes", "--json")
    assert len(down.json["steps"]) >= 1
    app.close()
    assert run("migrate").status == 0
    assert run("jobs", "show", "x").status == 3


def test_the_wrong_direction_is_a_wrong_usage(run):
    assert run("migrate", "up", "--to", "0").status == 2
    assert run("migrate", "down", "--to", "99").status == 2


def test_a_version_that_does_not_exist_is_refused(run):
    answer = run("migrate", "--to", "99", "--json")
    assert (answer.status, answer.error["code"]) == (1, "invalid_argument")


def test_a_schema_that_is_too_old_to_be_opened_is_brought_forward(
    bare, url, app, greet, monkeypatch, tmp_path
):
    def run(*args):
        return bare("--url", url, *args)

    greet(id="x")
    app.close()
    newer = tmp_path / "schema"
    newer.mkdir()
    released = Path(migrations.__file__).parent / "schema"
    for step in released.glob("*.sql"):
        (newer / step.name).write_bytes(step.read_bytes())
    number = len(list(newer.iterdir())) + 1
    (newer / f"{number:04}_note.sql").write_text(
        "-- pre\nALTER TABLE tessera_slot ADD COLUMN note TEXT;\n-- post\n-- down\n"
        "ALTER TABLE tessera_slot DROP COLUMN note;\n"
    )
    monkeypatch.setattr(file, "our_steps", lambda: schemafiles.steps_of(newer))
    assert run("jobs", "show", "x", "--json").error["code"] == "schema_too_old"
    assert run("migrate", "--dry-run", "--json").json["steps"] == [f"{number:04}_note"]
    assert run("migrate", "--json").json["steps"] == [f"{number:04}_note"]
    assert run("jobs", "show", "x").status == 0
