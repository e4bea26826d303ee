"""``tessera enqueue``: with the application's code, and without it."""

import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from tessera import Ceiling, Rate, Retention, Retry
from tessera.doors.cli.enqueueing import enqueue
from tessera.engine.lookup import find_job
from tessera.model.job import NEVER, Keep, Need, terms_of
from tessera.model.outcomes import Completed
from tessera.options import Options
from tests.doors.cli.conftest import end

CODE = """
import enum
from tessera import Retry, Tessera

app = Tessera({url!r})

@app.job(queue="mail", retry=Retry(max_attempts=4))
def send(to: str, copies: int = 1, zip: str = "", raw: bytes = b"") -> str: ...
"""


@pytest.fixture
def row(app):
    """The stored row of a job."""
    return lambda job: app._run(lambda store: find_job(store, job))


@pytest.fixture
def coded(run, url, tmp_path, request):
    """Calls enqueue with the code of an application."""
    module = f"shop_{abs(hash(request.node.name))}"
    (tmp_path / f"{module}.py").write_text(CODE.format(url=url), encoding="utf-8")
    return lambda *args: run("enqueue", *args, "--app", f"{module}:app")


def arguments(row):
    return msgspec.json.decode(row.payload)


# ------------------------------------------------------------------ without code


def test_the_printed_line_is_the_id(run, app):
    answer = run("enqueue", "send", "to=ada")
    assert app.jobs.get(answer.out.strip()).kind == "send"


def test_arguments_are_stored_as_given(run, row):
    values = ["n=3", "ok=true", "who=Ada", "none=null", "list=[1,2]", "zip=01234", "eq=a=b", "nan=NaN"]
    job = row(run("enqueue", "send", *values).out.strip())
    assert arguments(job) == {
        "n": 3,
        "ok": True,
        "who": "Ada",
        "none": None,
        "list": [1, 2],
        "zip": "01234",
        "eq": "a=b",
        "nan": "NaN",
    }


def test_arguments_may_be_one_json_object(run, row):
    job = row(run("enqueue", "send", "--args", '{"to": "ada", "n": [1]}').out.strip())
    assert arguments(job) == {"to": "ada", "n": [1]}


@pytest.mark.parametrize("args", ["[1]", "nonsense", "3"])
def test_arguments_that_are_no_object_are_refused(run, args):
    answer = run("enqueue", "send", "--args", args, "--json")
    assert (answer.status, answer.error["code"]) == (1, "invalid_argument")


@pytest.mark.parametrize("values", [["ada"], ["=ada"], ["to=a", "to=b"], ["to=a", "--args", "{}"]])
def test_arguments_in_another_form_are_a_wrong_usage(run, values):
    assert run("enqueue", "send", *values).status == 2


def test_the_kinds_stored_defaults_apply(run, row, app):
    retry = Retry(max_attempts=7, base=2, factor=3, cap=60, jitter=0.25, delays=[1, 5], max_duration=600)
    limits = {"ceilings": [Ceiling("account", 2, by="to")], "rates": [Rate("smtp", 10, per=60)]}
    keep = Retention(completed=0, dead=3600, cancelled=None)

    @app.job(queue="mail", priority=3, retry=retry, timeout=9, max_crashes=1, retention=keep, **limits)
    def send(to: str) -> None: ...

    app.declare()
    by_code = row(send.enqueue(to="ada").key)
    without = row(run("enqueue", "send", "to=ada").out.strip())
    for name in ("queue", "priority", "max_attempts", "max_crashes", "needs", "keep", "body", "payload"):
        assert getattr(without, name) == getattr(by_code, name), name
    assert without.needs == (Need("account/ada", 1), Need("smtp", 1))
    assert without.keep == Keep(0, 3_600_000, NEVER)


def test_an_undeclared_kind_is_stored_with_a_warning_that_names_the_nearest(run, app):
    @app.job
    def send() -> None: ...

    app.declare()
    answer = run("enqueue", "sand", "--json")
    assert answer.status == 0
    told = "no worker has declared the kind 'sand' in this store yet; did you mean 'send'?"
    assert json.loads(answer.err) == {"warning": {"message": told}}
    assert app.jobs.get(answer.json["id"]).kind == "sand"


def test_a_name_that_is_no_kind_is_refused(run):
    assert run("enqueue", "no kind", "--json").error["code"] == "invalid_argument"


# ------------------------------------------------------------------ with code


@pytest.mark.capability("P1")
def test_with_code_arguments_are_checked_before_anything_is_stored(coded, app):
    answer = coded("send", "to=ada", "copies=many", "--json")
    assert (answer.status, answer.error["code"]) == (1, "invalid_argument")
    assert answer.error["message"].startswith("copies:")
    assert app.jobs.list().jobs == ()


def test_with_code_the_kinds_options_and_defaults_apply(coded, row):
    job = row(coded("send", "to=ada").out.strip())
    assert (job.queue, job.max_attempts) == ("mail", 4)
    assert arguments(job) == {"to": "ada", "copies": 1, "zip": "", "raw": ""}


def test_with_code_text_that_looks_like_a_number_stays_text_where_text_is_wanted(coded, row):
    job = row(coded("send", "to=12", "zip=12345", "copies=2").out.strip())
    assert arguments(job) == {"to": "12", "copies": 2, "zip": "12345", "raw": ""}


def test_with_code_a_missing_argument_is_named(coded):
    assert "to: is missing" in coded("send").err


def test_with_code_an_unknown_kind_names_the_nearest(coded):
    answer = coded("sent", "to=ada")
    assert answer.status == 1
    assert "did you mean 'send'?" in answer.err


# ------------------------------------------------------------------ options


def test_the_options_are_those_of_with_options():
    own = {"kind", "values", "arguments", "wait"}
    shared = {"url", "app", "config", "json"}
    assert {p.name for p in enqueue.params} - own - shared == set(Options.__annotations__) - {"connection"}


@pytest.mark.capability("P9")
def test_delay_and_run_at_move_the_due_time(run, app):
    delayed = app.jobs.get(run("enqueue", "send", "--delay", "1h").out.strip())
    assert delayed.due_at - delayed.created_at == timedelta(hours=1)
    at = app.jobs.get(run("enqueue", "send", "--run-at", "2100-01-31T09:00:00Z").out.strip())
    assert at.due_at == datetime(2100, 1, 31, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    "options", [["--run-at", "2100-01-31T09:00:00"], ["--delay", "1", "--run-at", "2100-01-31T09:00:00Z"]]
)
def test_a_time_without_zone_and_two_times_are_refused(run, options):
    answer = run("enqueue", "send", "--json", *options)
    assert (answer.status, answer.error["code"]) == (1, "invalid_argument")


def test_what_is_no_time_is_a_wrong_usage(run):
    assert run("enqueue", "send", "--run-at", "tomorrow").status == 2
    assert run("enqueue", "send", "--delay", "soon").status == 2


@pytest.mark.capability("P5")
def test_a_repeated_id_is_answered_with_the_first_job(run):
    first = run("enqueue", "send", "to=ada", "--id", "order-1", "--json").json
    second = run("enqueue", "send", "to=ada", "--id", "order-1", "--json").json
    assert (first["created"], second["created"], second["id"]) == (True, False, "order-1")


@pytest.mark.capability("P5")
def test_a_repeated_id_with_other_content_is_refused(run):
    run("enqueue", "send", "to=ada", "--id", "order-1")
    answer = run("enqueue", "send", "to=bob", "--id", "order-1", "--json")
    assert (answer.status, answer.error["code"]) == (1, "id_conflict")


@pytest.mark.capability("P12")
@pytest.mark.parametrize("unique", ["true", "by=to", '{"by": ["to"]}'])
def test_unique_answers_with_the_live_job(run, unique):
    first = run("enqueue", "send", "to=ada", "--unique", unique, "--json").json
    second = run("enqueue", "send", "to=ada", "--unique", unique, "--json").json
    other = run("enqueue", "send", "to=bob", "--unique", unique, "--json").json
    assert (second["created"], second["id"]) == (False, first["id"])
    assert other["created"]


def test_every_plain_option_arrives(run, row):
    options = (
        "--queue mail --priority -3 --tags eu,vip --tags new --tenant acme --cost 2 --max-crashes 5".split()
    )
    job = row(
        run("enqueue", "send", *options, "--events", "full", "--pending", "--timeout", "1m").out.strip()
    )
    assert (job.queue, job.priority, job.tags, job.tenant) == ("mail", -3, ("eu", "vip", "new"), "acme")
    assert (job.max_crashes, job.events, job.state, terms_of(job).timeout_ms) == (
        5,
        "full",
        "pending",
        60_000,
    )


def test_retry_and_retention_are_made_of_fields(run, row):
    options = ["--retry", "max_attempts=5,base=1m,factor=3", "--retention", "completed=1h,dead=never"]
    job = row(run("enqueue", "send", *options).out.strip())
    assert (job.max_attempts, terms_of(job).backoff_base_ms, terms_of(job).backoff_factor) == (5, 60_000, 3)
    assert (job.keep.completed, job.keep.dead) == (3_600_000, NEVER)


def test_retention_may_be_one_span(run, row):
    keep = row(run("enqueue", "send", "--retention", "7d").out.strip()).keep
    assert (keep.completed, keep.cancelled) == (604_800_000, 604_800_000)


def test_ceilings_and_rates_may_be_repeated(run, row):
    counters = (
        "--ceilings name=a,limit=2,by=to --ceilings name=b,limit=1 --rates name=c,limit=9,per=1m".split()
    )
    job = row(run("enqueue", "send", "to=ada", *counters).out.strip())
    assert job.needs == (Need("a/ada"), Need("b"), Need("c"))


def test_deadline_is_a_span_or_an_instant(run, row):
    span = row(run("enqueue", "send", "--deadline", "1h").out.strip())
    assert span.deadline - span.created_at == 3_600_000
    instant = row(run("enqueue", "send", "--deadline", "2100-01-01T00:00:00Z").out.strip())
    assert instant.deadline == 4_102_444_800_000


def test_depends_on_holds_the_job_back(run, app):
    first = run("enqueue", "send").out.strip()
    waiting = run("enqueue", "send", "--depends-on", first).out.strip()
    loose = run("enqueue", "send", "--depends-on", f"job={first},on=ended,otherwise=go").out.strip()
    assert {app.jobs.get(job).state for job in (waiting, loose)} == {"pending"}


@pytest.mark.parametrize(
    "options, told",
    [
        (["--retry", "attempts=5"], "retry: has no field 'attempts'"),
        (["--retry", "5"], "retry: is '5'; give FIELD=VALUE"),
        (["--retry", "{"], "retry: is no JSON"),
        (["--retry", "max_attempts=0"], "retry.max_attempts: is 0"),
        (["--ceilings", "limit=2"], "ceilings: cannot be made of"),
        (["--retention", "soon"], "retention: is 'soon'"),
        (["--priority", "99999"], "priority: is 99999"),
        (["--unique", "sometimes"], "unique: is 'sometimes'"),
        (["--depends-on", "nobody"], "depends_on: "),
    ],
)
def test_a_wrong_option_is_named(run, options, told):
    answer = run("enqueue", "send", *options, "--json")
    assert (answer.status, answer.error["code"]) == (1, "invalid_argument")
    assert told in answer.error["message"]


# ------------------------------------------------------------------ waiting for the result


@pytest.mark.capability("P24")
def test_wait_prints_the_result(run, app):
    first = run("enqueue", "send", "--id", "x").out.strip()
    end(app, Completed(b'{"sent":true}'))
    assert first == "x"
    assert run("enqueue", "send", "--id", "x", "--wait", "5").out == '{"sent":true}\n'


def test_wait_gives_up_after_its_time_and_the_job_goes_on(run, app):
    answer = run("enqueue", "send", "--id", "x", "--wait", "10ms", "--json")
    assert (answer.status, answer.error["code"]) == (1, "result_timeout")
    assert app.jobs.get("x").state == "available"


@pytest.mark.parametrize("value", ["\udcff", '"\\ud800"', "a\udcff=1"])
def test_text_that_cannot_be_stored_is_refused_in_words(run, value):
    given = value if "=" in value else f"x={value}"
    answer = run("enqueue", "greet", given)
    assert (answer.status, "surrogate" in answer.err) == (1, True)


def test_what_is_nested_too_deeply_to_be_json_is_text(run):
    assert run("enqueue", "greet", "name=" + "[" * 50_000).status == 0
