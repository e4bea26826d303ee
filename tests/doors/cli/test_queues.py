"""``tessera queues``: counts, pause and purge."""

import asyncio

import pytest

from tests.doors.cli.conftest import claim


@pytest.mark.capability("W11")
def test_list_counts_exactly(run, greet, app):
    greet(queue="mail")
    greet(queue="mail", delay=60)
    greet()
    claim(app, "mail")
    found = {queue["name"]: queue for queue in run("queues", "list", "--json").json["queues"]}
    counts = {state: count for state, count in found["mail"]["counts"].items() if count}
    assert counts == {"running": 1, "scheduled": 1}
    assert found["default"]["counts"]["available"] == 1


def test_list_for_people_has_one_line_a_queue(run, greet):
    greet(queue="mail")
    greet(queue="reports")
    assert [row[0] for row in run("queues", "list").rows] == ["mail", "reports"]


@pytest.mark.capability("F9")
def test_pause_and_resume_hold_for_every_process(run, greet, app):
    greet(queue="mail")
    assert run("queues", "pause", "mail").status == 0
    assert [queue.paused for queue in app.queues.list()] == [True]
    assert run("queues", "list").rows[0][-1] == "yes"
    assert run("queues", "resume", "mail", "--json").json == {"queue": "mail", "paused": False}
    assert [queue.paused for queue in app.queues.list()] == [False]


def test_purge_needs_yes_where_nobody_can_be_asked(run, greet):
    handle = greet(queue="mail")
    answer = run("queues", "purge", "mail")
    assert answer.status == 2
    assert "Remove 1 job(s)" in answer.err
    assert handle.get().state == "available"


def test_purge_removes_what_waits_and_leaves_what_runs(run, greet, app):
    running = greet(queue="mail")
    claim(app, "mail")
    greet(queue="mail")
    greet(queue="mail", delay=60)
    answer = run("queues", "purge", "mail", "--yes", "--json")
    assert answer.json == {"queue": "mail", "removed": 2, "dry_run": False}
    assert running.get().state == "running"


def test_purge_can_be_narrowed_to_a_state(run, greet):
    stays = greet(queue="mail")
    greet(queue="mail", delay=60)
    assert run("queues", "purge", "mail", "--state", "scheduled", "--yes", "--json").json["removed"] == 1
    assert stays.get().state == "available"


def test_purge_dry_run_counts_and_removes_nothing(run, greet):
    handle = greet(queue="mail")
    assert run("queues", "purge", "mail", "--dry-run").out == "mail  1 job(s) would be removed\n"
    assert handle.get().state == "available"


def test_a_name_that_is_no_queue_is_refused(run):
    answer = run("queues", "pause", "Not A Queue", "--json")
    assert (answer.status, answer.error["code"]) == (1, "invalid_argument")


def test_watching_shows_the_queues_again_until_interrupted(run, greet, monkeypatch):
    greet(queue="mail")
    looks = []

    def interrupted_at_the_third(wait):
        looks.append(wait)
        wait.close()
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run", interrupted_at_the_third)
    answer = run("queues", "list", "--watch", "5", "--json")
    assert answer.status == 130
    assert answer.out.count('"name":"mail"') == 3


def test_states_without_a_job_in_any_queue_are_left_out(run, greet):
    greet(queue="mail")
    assert run("queues", "list").out.splitlines()[0].split() == ["queue", "available", "workers", "paused"]


def test_purge_of_nothing_asks_nothing(run):
    answer = run("queues", "purge", "mail")
    assert (answer.status, answer.out) == (0, "mail  nothing to remove\n")


def test_where_nobody_can_be_asked_the_usage_is_not_repeated(run, greet):
    greet(queue="mail")
    assert "Usage:" not in run("queues", "purge", "mail").err
