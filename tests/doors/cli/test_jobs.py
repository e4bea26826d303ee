"""``tessera jobs``: what is shown, what is done, and what is refused."""

from datetime import timedelta

import pytest

from tessera import Retry
from tessera.model.outcomes import Aborted, Completed, Failed
from tests.doors.cli.conftest import claim, end


def test_list_shows_the_newest_job_first(run, greet):
    first, second = greet(queue="mail"), greet(priority=5)
    assert [row[:5] for row in run("jobs", "list").rows] == [
        [second.id, "available", "greet", "default", "5"],
        [first.id, "available", "greet", "mail", "0"],
    ]


def test_list_says_that_there_is_nothing_on_stderr(run):
    answer = run("jobs", "list")
    assert (answer.status, answer.out, answer.err) == (0, "", "no such jobs\n")


@pytest.mark.parametrize(
    "filters, found",
    [
        (["--queue", "mail"], {"a"}),
        (["--queue", "mail", "--queue", "default"], {"a", "b", "c"}),
        (["--state", "scheduled"], {"c"}),
        (["--kind", "other"], set()),
        (["--tenant", "acme"], {"b"}),
        (["--reason", "x"], set()),
    ],
)
def test_list_filters(run, greet, filters, found):
    greet(id="a", queue="mail")
    greet(id="b", tenant="acme")
    greet(id="c", delay=60)
    assert {job["id"] for job in run("jobs", "list", "--json", *filters).json["jobs"]} == found


@pytest.mark.capability("P7")
def test_list_filters_by_all_tags_and_by_any_tag(run, greet):
    greet(id="both", tags=["eu", "vip"])
    greet(id="one", tags=["eu"])
    greet(id="none")

    def ids(*filters):
        return {job["id"] for job in run("jobs", "list", "--json", *filters).json["jobs"]}

    assert ids("--tags-all", "eu,vip") == {"both"}
    assert ids("--tags-any", "eu,vip") == {"both", "one"}


def test_list_goes_on_from_its_cursor(run, greet):
    for _ in range(5):
        greet()
    first = run("jobs", "list", "--json", "--limit", "3").json
    second = run("jobs", "list", "--json", "--limit", "3", "--cursor", first["cursor"]).json
    assert (len(first["jobs"]), len(second["jobs"]), second["cursor"]) == (3, 2, "")
    assert len({job["id"] for page in (first, second) for job in page["jobs"]}) == 5


def test_list_tells_a_person_how_to_go_on(run, greet):
    greet()
    greet()
    assert "there is more: --cursor " in run("jobs", "list", "--limit", "1").err


def test_list_shows_children_of_a_job_that_is_not_there_as_not_found(run):
    assert run("jobs", "list", "--parent", "nobody").status == 3


def test_show_hides_the_payload_unless_it_is_asked_for(run, greet):
    greet(id="x")
    hidden, shown = (
        run("jobs", "show", "x", "--json").json,
        run("jobs", "show", "x", "--json", "--reveal").json,
    )
    assert "payload" not in hidden
    assert shown["payload"] == {"name": "Ada"}
    assert "Ada" not in run("jobs", "show", "x").out
    assert '{"name":"Ada"}' in run("jobs", "show", "x", "--reveal").out


def test_show_lists_the_ends_of_attempts(run, greet, app):
    greet(id="x")
    end(app, Failed("Traceback ...\nValueError: no such city"))
    out = run("jobs", "show", "x").out
    assert "failed" in out
    assert "ValueError: no such city" in out


def test_show_makes_control_characters_visible(run, greet, app):
    greet(id="x")
    end(app, Failed("\x1b[31mred\x07"))
    out = run("jobs", "show", "x").out
    assert "\x1b" not in out
    assert r"\x1b[31mred\x07" in out


def test_show_of_an_unknown_job_is_not_found(run):
    answer = run("jobs", "show", "nobody", "--json")
    assert (answer.status, answer.out, answer.error["code"]) == (3, "", "not_found")


@pytest.mark.capability("R6")
def test_retry_starts_a_dead_job_afresh(run, greet, app):
    handle = greet(id="x")
    end(app, Aborted("no"))
    assert handle.get().state == "dead"
    assert run("jobs", "retry", "x").out == "x  retried\n"
    assert (handle.get().state, handle.get().failures) == ("available", 0)


def test_retry_of_a_completed_job_names_the_copy(run, greet, app):
    greet(id="x")
    end(app, Completed(b'"Hello"'))
    [copy] = run("jobs", "retry", "x", "--json").json["jobs"]
    assert app.jobs.get(copy["id"]).origin == app.jobs.get("x").key


def test_retry_of_a_running_job_is_refused(run, greet, app):
    greet(id="x")
    claim(app)
    answer = run("jobs", "retry", "x", "--json")
    assert (answer.status, answer.error["code"]) == (1, "wrong_state")


@pytest.mark.capability("P10")
def test_promote_lets_a_pending_job_go(run, greet):
    handle = greet(id="x", pending=True)
    assert run("jobs", "promote", "x").status == 0
    assert handle.get().state == "available"


def test_cancel_keeps_the_reason(run, greet):
    handle = greet(id="x")
    assert run("jobs", "cancel", "x", "--reason", "not needed").out == "x  cancelled\n"
    assert (handle.get().state, handle.get().reason) == ("cancelled", "not needed")


def test_cancel_asks_a_running_job_to_stop_and_with_hard_takes_its_lease(run, greet, app):
    handle = greet(id="x")
    claim(app)
    assert run("jobs", "cancel", "x").out == "x  asked to stop\n"
    assert (handle.get().state, handle.get().cancel_requested) == ("running", True)
    assert run("jobs", "cancel", "x", "--hard").out == "x  cancelled\n"
    assert handle.get().state == "cancelled"


def test_one_refused_job_does_not_keep_the_others_from_it(run, greet):
    a, b = greet(id="a"), greet(id="b")
    answer = run("jobs", "cancel", "a", "nobody", "b", "--json")
    assert answer.status == 3
    assert [job["id"] for job in answer.json["jobs"]] == ["a", "b"]
    assert (a.get().state, b.get().state) == ("cancelled", "cancelled")


def test_delete_needs_yes_where_nobody_can_be_asked(run, greet):
    handle = greet(id="x")
    assert run("jobs", "delete", "x").status == 2
    assert handle.get().state == "available"


def test_delete_removes_a_job(run, greet):
    greet(id="x")
    assert run("jobs", "delete", "x", "--yes").status == 0
    assert run("jobs", "show", "x").status == 3


def test_delete_of_a_running_job_needs_force(run, greet, app):
    greet(id="x")
    claim(app)
    assert run("jobs", "delete", "x", "--yes").status == 1
    assert run("jobs", "delete", "x", "--yes", "--force").status == 0


def test_edit_changes_a_waiting_job(run, greet):
    handle = greet(id="x", tags=["old"], delay=60)
    options = ["--priority", "7", "--tags", "eu,vip", "--delay", "1h", "--max-attempts", "2"]
    assert run("jobs", "edit", "x", *options).status == 0
    job = handle.get()
    assert (job.priority, job.tags, job.max_attempts) == (7, ("eu", "vip"), 2)
    assert job.due_at - job.created_at > timedelta(minutes=59)


def test_edit_can_remove_all_tags(run, greet):
    handle = greet(id="x", tags=["old"])
    assert run("jobs", "edit", "x", "--tags", "").status == 0
    assert handle.get().tags == ()


def test_edit_without_a_change_is_a_wrong_usage(run, greet):
    greet(id="x")
    assert run("jobs", "edit", "x").status == 2


def test_what_an_operator_did_is_logged_under_his_name(run, greet, app):
    greet(id="x")
    run("jobs", "cancel", "x")
    events = app._run(lambda store: store.events())
    assert "cli:ada" in {event.by for event in events}


def test_delete_of_an_unknown_job_is_not_found_before_it_asks(run):
    answer = run("jobs", "delete", "zz")
    assert answer.status == 3
    assert "for good?" not in answer.err


def test_list_shows_the_last_line_of_the_last_error(run, greet, app):
    greet(id="x", retry=Retry(max_attempts=1))
    end(app, Failed("Traceback ...\nConnectionError: bank is down"))
    assert "attempts_used: ConnectionError: bank is down" in run("jobs", "list").out


def test_show_says_what_it_hides(run, greet, app):
    greet(id="x")
    assert "(payload hidden; --reveal shows it)" in run("jobs", "show", "x").err
    end(app, Completed(b'"Hello"'))
    assert "(payload and result hidden; --reveal shows them)" in run("jobs", "show", "x").err
    assert "hidden" not in run("jobs", "show", "x", "--reveal").err
