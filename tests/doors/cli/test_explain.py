"""``tessera explain``: every cause in words and as data."""

import pytest

from tessera.model.outcomes import Aborted, Completed
from tests.doors.cli.conftest import claim, end


@pytest.mark.capability("U2")
def test_a_job_that_nobody_serves_says_so(run, greet):
    greet(id="x", queue="mail")
    found = run("explain", "x", "--json").json
    assert (found["job"], found["kind"], found["queue"], found["state"]) == (
        "x",
        "greet",
        "mail",
        "available",
    )
    assert [(cause["code"], cause["clears"]) for cause in found["causes"]] == [("no_worker", "by a deploy")]
    assert "no live worker serves the queue 'mail'; clears by a deploy" in run("explain", "x").out


@pytest.mark.capability("U2")
def test_a_paused_queue_is_named(run, greet):
    greet(id="x")
    run("queues", "pause", "default")
    assert "paused" in run("explain", "x").out


@pytest.mark.capability("U2")
def test_a_scheduled_job_says_when(run, greet):
    greet(id="x", delay=3600)
    [cause] = run("explain", "x", "--json").json["causes"]
    assert (cause["code"], cause["clears"]) == ("scheduled", "by time")
    assert cause["at"] > run("explain", "x", "--json").json["now"]


def test_a_running_job_names_its_holder(run, greet, app):
    greet(id="x")
    claim(app)
    assert "attempt 1 by a-test" in run("explain", "x").out


def test_a_dead_job_names_its_reason(run, greet, app):
    greet(id="x")
    end(app, Aborted("no such city"))
    assert "no such city" in run("explain", "x").out


def test_a_completed_job_is_done(run, greet, app):
    greet(id="x")
    end(app, Completed(b"null"))
    assert "it is done" in run("explain", "x").out


def test_an_unknown_job_is_not_found(run):
    assert run("explain", "nobody").status == 3


@pytest.mark.parametrize(
    "before, advice",
    [
        ([], "tessera worker MODULE:APP"),
        (["queues", "pause", "default"], "tessera queues resume default"),
        (["jobs", "cancel", "x"], "tessera jobs retry x"),
    ],
)
def test_it_says_what_to_type(run, greet, before, advice):
    greet(id="x")
    if before:
        run(*before)
    assert advice in run("explain", "x").out
    assert advice not in run("explain", "x", "--json").out
