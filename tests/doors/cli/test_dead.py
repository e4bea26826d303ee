"""``tessera dead``: the dead letter, and the way back."""

import pytest

from tessera.model.outcomes import Aborted
from tests.doors.cli.conftest import end


@pytest.fixture
def dead(app, greet):
    """Three dead jobs: two of mail, one of reports."""
    handles = [
        greet(id="m1", queue="mail", tags=["eu"]),
        greet(id="m2", queue="mail"),
        greet(id="r1", queue="reports"),
    ]
    end(app, Aborted("mailbox gone"), queue="mail", times=2)
    end(app, Aborted("no data"), queue="reports")
    return {handle.id: handle for handle in handles}


def states(dead):
    return {name: str(handle.get().state) for name, handle in dead.items()}


@pytest.mark.capability("R5")
def test_list_shows_dead_jobs_only_with_their_reason(run, dead, greet):
    greet(id="lives")
    found = run("dead", "list", "--json").json["jobs"]
    assert {job["id"] for job in found} == {"m1", "m2", "r1"}
    assert "mailbox gone" in run("dead", "list").out


@pytest.mark.parametrize(
    "filters, found",
    [
        (["--queue", "mail"], {"m1", "m2"}),
        (["--tags-any", "eu"], {"m1"}),
        (["--kind", "other"], set()),
    ],
)
def test_list_filters(run, dead, filters, found):
    assert {job["id"] for job in run("dead", "list", "--json", *filters).json["jobs"]} == found


@pytest.mark.capability("R6")
def test_redrive_brings_back_what_the_filter_names(run, dead):
    answer = run("dead", "redrive", "--queue", "mail", "--json")
    assert answer.json == {"matched": 2, "redriven": 2, "refused": 0, "dry_run": False}
    assert states(dead) == {"m1": "available", "m2": "available", "r1": "dead"}


@pytest.mark.capability("R6")
def test_redrive_is_bounded_by_its_limit(run, dead):
    assert run("dead", "redrive", "--queue", "mail", "--limit", "1").out == "1 of 1 job(s) redriven\n"
    assert sorted(states(dead).values()) == ["available", "dead", "dead"]


@pytest.mark.capability("R6")
def test_redrive_dry_run_counts_and_changes_nothing(run, dead):
    assert run("dead", "redrive", "--dry-run").out == "3 job(s) would be redriven\n"
    assert set(states(dead).values()) == {"dead"}


def test_redrive_without_a_filter_asks(run, dead):
    assert run("dead", "redrive").status == 2
    assert set(states(dead).values()) == {"dead"}
    assert run("dead", "redrive", "--yes").status == 0
    assert set(states(dead).values()) == {"available"}


def test_the_question_of_redrive_names_the_count(run, dead):
    answer = run("dead", "redrive")
    assert "Start 3 dead and quarantined job(s) afresh?" in answer.err
    assert "Usage:" not in answer.err
