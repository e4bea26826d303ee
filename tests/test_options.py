"""Every option with its good and its bad values, and how one lies over another."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_type_hints

import msgspec
import pytest

from tessera.model.changes import After
from tessera.model.errors import InvalidArgument
from tessera.model.job import NEVER, Keep, Need, Terms
from tessera.model.policy import Ceiling as CeilingPolicy
from tessera.model.policy import Rate as RatePolicy
from tessera.model.states import EventLevel
from tessera.options import (
    ONE_JOB_ONLY,
    Ceiling,
    Dependency,
    JobOptions,
    Options,
    Rate,
    Retention,
    Retry,
    Unique,
)
from tessera.rules.names import MAX_COUNTER_VALUE as MOST

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_893_499_200_000
CONNECTION = object()

GOOD: list[tuple[str, Any, str, Any]] = [
    # option, value, field, what is stored
    ("queue", "mail.high", "queue", "mail.high"),
    ("priority", -32_768, "priority", -32_768),
    ("priority", 32_767, "priority", 32_767),
    ("delay", 0, "due", After(0)),
    ("delay", 1.5, "due", After(1_500)),
    ("delay", 0.001, "due", After(1)),
    ("delay", timedelta(minutes=2), "due", After(120_000)),
    ("run_at", NOON, "due", NOON_MS),
    ("run_at", NOON.astimezone(timezone(timedelta(hours=5))), "due", NOON_MS),
    ("id", "order-17.a~b_c", "given_id", "order-17.a~b_c"),
    ("tags", ["eu", "vip", "eu"], "tags", ("eu", "vip")),
    ("tags", (), "tags", ()),
    ("tenant", "Ünïcode Ltd.", "tenant", "Ünïcode Ltd."),
    ("tenant", "", "tenant", ""),
    ("cost", 1_000_000, "cost", 1_000_000),
    ("unique", True, "unique", Unique()),
    ("unique", False, "unique", None),
    ("unique", None, "unique", None),
    ("unique", Unique(by=["a"]), "unique", Unique(by=["a"])),
    ("ceilings", [Ceiling("one", 1)], "ceilings", (Ceiling("one", 1),)),
    ("ceilings", Ceiling("one", 1), "ceilings", (Ceiling("one", 1),)),
    ("rates", (Rate("api", 5),), "rates", (Rate("api", 5),)),
    ("rates", Rate("api", 5), "rates", (Rate("api", 5),)),
    ("depends_on", ["order-1"], "depends_on", (Dependency(job="order-1"),)),
    ("depends_on", "order-1", "depends_on", (Dependency(job="order-1"),)),
    ("depends_on", [Dependency(job="a", on="ended")], "depends_on", (Dependency(job="a", on="ended"),)),
    ("retry", Retry(max_attempts=3), "retry", Retry(max_attempts=3)),
    ("max_crashes", 0, "max_crashes", 0),
    ("timeout", timedelta(seconds=90), "timeout_ms", 90_000),
    ("timeout", 0, "timeout_ms", 0),
    ("deadline", 60, "deadline", After(60_000)),
    ("deadline", NOON, "deadline", NOON_MS),
    ("expires", 0.25, "expires_ms", 250),
    ("retention", 60, "retention", Retention(completed=60, cancelled=60)),
    ("retention", None, "retention", Retention(completed=None, cancelled=None)),
    ("retention", Retention(dead=1), "retention", Retention(dead=1)),
    ("events", "full", "events", EventLevel.FULL),
    ("events", EventLevel.OFF, "events", EventLevel.OFF),
    ("pending", True, "pending", True),
    ("connection", CONNECTION, "connection", CONNECTION),
]

BAD: list[tuple[str, Any, str]] = [
    ("queue", "Mail", "lower-case"),
    ("queue", "", "1 to 64"),
    ("queue", 5, "1 to 64"),
    ("priority", 32_768, "between -32768 and 32767"),
    ("priority", -32_769, "between -32768 and 32767"),
    ("priority", 1.0, "whole number"),
    ("priority", True, "whole number"),
    ("priority", "high", "whole number"),
    ("delay", -1, "must not be negative"),
    ("delay", timedelta(seconds=-1), "must not be negative"),
    ("delay", 0.0001, "rounds to no milliseconds"),
    ("delay", "5", "seconds as a number"),
    ("delay", True, "seconds as a number"),
    ("delay", float("nan"), "must not be negative"),
    ("delay", float("inf"), "below 10^10"),
    ("run_at", datetime(2030, 1, 1), "naive"),
    ("run_at", NOON_MS, "aware datetime"),
    ("run_at", "2030-01-01T12:00:00Z", "aware datetime"),
    ("id", "", "1 to 128"),
    ("id", "a b", "1 to 128"),
    ("id", "-a", "letter or digit first"),
    ("id", "x" * 129, "1 to 128"),
    ("tags", "eu", "give a list"),
    ("tags", 5, "give a list"),
    ("tags", ["a,b"], "without space and comma"),
    ("tags", [5], "printable ASCII"),
    ("tags", [f"t{n}" for n in range(33)], "over the limit of 32"),
    ("tenant", "x" * 129, "at most 128"),
    ("tenant", "a\0b", "control characters"),
    ("cost", 0, "between 1 and 1000000"),
    ("unique", "account", "give True or a Unique"),
    ("unique", 1, "give True or a Unique"),
    ("ceilings", [Rate("api", 5)], "give Ceiling"),
    ("ceilings", Rate("api", 5), "give Ceiling"),
    ("ceilings", 5, "give a list"),
    ("ceilings", "one", "give a list"),
    ("ceilings", [Ceiling("one", 1), Ceiling("one", 2)], "names one counter twice"),
    ("rates", [Ceiling("one", 1)], "give Rate"),
    ("retry", 5, "give a Retry"),
    ("max_crashes", -1, "between 0 and 1000"),
    ("timeout", -1, "must not be negative"),
    ("deadline", 0, "the least is 0.001"),
    ("deadline", datetime(2030, 1, 1), "naive"),
    ("expires", 0, "the least is 0.001"),
    ("retention", -1, "must not be negative"),
    ("retention", "1 day", "seconds as a number"),
    ("events", "loud", "'full', 'odd' or 'off'"),
    ("pending", "false", "True or False"),
    ("pending", 1, "True or False"),
]


@pytest.mark.parametrize("option, value, field, stored", GOOD)
def test_a_good_value_is_stored_as_it_is_meant(option: str, value: Any, field: str, stored: Any):
    assert getattr(JobOptions().with_options({option: value}), field) == stored


@pytest.mark.parametrize("option, value, words", BAD)
def test_a_bad_value_is_refused_and_its_option_named(option: str, value: Any, words: str):
    with pytest.raises(InvalidArgument) as refused:
        JobOptions().with_options({option: value})
    assert refused.value.argument.startswith(option)
    assert words in refused.value.problem


def test_every_option_was_met_here_with_good_values_and_those_that_can_be_bad_with_bad_ones():
    names = set(get_type_hints(Options))
    assert {case[0] for case in GOOD} == names
    assert {case[0] for case in BAD} == names - {"connection", "depends_on"}
    assert names >= ONE_JOB_ONLY


@pytest.mark.parametrize(
    "name, nearest",
    [
        ("priorty", "priority"),
        ("Queue", "queue"),
        ("tag", "tags"),
        ("retries", "retry"),
        ("ceiling", "ceilings"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest(name: str, nearest: str):
    with pytest.raises(InvalidArgument, match=f"is no option; did you mean '{nearest}'") as refused:
        JobOptions().with_options({name: 1})
    assert refused.value.argument == name


def test_an_option_unlike_all_others_is_answered_with_the_list():
    with pytest.raises(InvalidArgument, match=r"there are: ceilings, connection, .*, unique"):
        JobOptions().with_options({"zzz": 1})


def test_a_delay_and_a_time_exclude_each_other():
    with pytest.raises(InvalidArgument, match="cannot be given together with delay"):
        JobOptions().with_options({"delay": 1, "run_at": NOON})


def test_a_later_layer_wins_option_by_option():
    first = JobOptions().with_options({"queue": "mail", "priority": 1, "delay": 5})
    second = first.with_options({"priority": 2, "run_at": NOON})
    assert (second.queue, second.priority, second.due) == ("mail", 2, NOON_MS)
    assert (first.priority, first.due) == (1, After(5_000))


# Retry, retention, unique, dependencies --------------------------------------------------------------------


@pytest.mark.capability("H5")
def test_the_default_retry_is_the_documented_one():
    assert Terms(**Retry().fields()) == Terms()
    assert Retry().max_attempts == 25


@pytest.mark.parametrize(
    "fields, argument",
    [
        ({"max_attempts": 0}, "retry.max_attempts"),
        ({"max_attempts": True}, "retry.max_attempts"),
        ({"max_attempts": 1_000_001}, "retry.max_attempts"),
        ({"base": -1}, "retry.base"),
        ({"base": "15"}, "retry.base"),
        ({"factor": 0.5}, "retry.factor"),
        ({"factor": 101}, "retry.factor"),
        ({"factor": "2"}, "retry.factor"),
        ({"factor": float("nan")}, "retry.factor"),
        ({"cap": -1}, "retry.cap"),
        ({"jitter": 1.1}, "retry.jitter"),
        ({"jitter": -0.1}, "retry.jitter"),
        ({"jitter": None}, "retry.jitter"),
        ({"jitter": True}, "retry.jitter"),
        ({"delays": 5}, "retry.delays"),
        ({"delays": [1, -1]}, "retry.delays"),
        ({"max_duration": 0}, "retry.max_duration"),
    ],
)
def test_a_bad_retry_is_refused_where_it_is_written(fields: dict[str, Any], argument: str):
    with pytest.raises(InvalidArgument) as refused:
        Retry(**fields)
    assert refused.value.argument == argument


def test_a_retry_is_stored_in_milliseconds():
    retry = Retry(
        base=timedelta(seconds=2), factor=3, cap=60, jitter=0, delays=[1, 0.5], max_duration=timedelta(days=1)
    )
    assert retry.fields() == {
        "backoff_base_ms": 2_000,
        "backoff_factor": 3.0,
        "backoff_cap_ms": 60_000,
        "backoff_jitter": 0.0,
        "backoff_delays_ms": (1_000, 500),
        "retry_for_ms": 86_400_000,
    }


@pytest.mark.capability("P11")
@pytest.mark.parametrize(
    "retention, keep",
    [
        (Retention(), Keep()),
        (Retention(completed=0), Keep(completed=0)),
        (Retention(completed=None, dead=60, cancelled=timedelta(hours=1)), Keep(NEVER, 60_000, 3_600_000)),
    ],
)
def test_nothing_is_not_for_ever(retention: Retention, keep: Keep):
    """0 deletes at once, None keeps for ever."""
    assert retention.keep() == keep


def test_a_bad_retention_names_its_part():
    with pytest.raises(InvalidArgument, match=r"retention.dead"):
        Retention(dead=-1)


@pytest.mark.parametrize("by", ["account", [1], [None], b"account"])
def test_what_is_unique_is_a_list_of_names(by: Any):
    """A string would be read letter by letter."""
    with pytest.raises(InvalidArgument, match=r"unique.by"):
        Unique(by=by)


@pytest.mark.parametrize("fields", [{"on": "failed"}, {"otherwise": "die"}])
def test_a_dependency_of_another_sort_is_refused(fields: dict[str, Any]):
    with pytest.raises(InvalidArgument, match="depends_on"):
        Dependency(job="a", **fields)


# Counters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Ceiling("a/b", 1),
        lambda: Ceiling("", 1),
        lambda: Ceiling("a", -1),
        lambda: Ceiling("a", 1.5),  # type: ignore[arg-type]
        lambda: Ceiling("a", 1, units=0),
        lambda: Rate("a:b", 1),
        lambda: Rate("a", -1),
        lambda: Rate("a", 1_000_001),
        lambda: Rate("a", 1, per=0),
        lambda: Rate("a", 1, per=timedelta(days=32)),
        lambda: Rate("a", 1, per=-1),
        lambda: Rate("a", 1, burst=-1),
        lambda: Rate("a", 5, burst=6, exact=True),
        lambda: Rate("a", 1, units=0),
    ],
)
def test_a_bad_counter_is_refused_where_it_is_written(make: Any):
    with pytest.raises(InvalidArgument):
        make()


def test_counters_declare_their_policies():
    options = JobOptions().with_options(
        {
            "ceilings": [Ceiling("one", 1)],
            "rates": [Rate("api", 5, per=timedelta(minutes=1), burst=2, exact=True)],
        }
    )
    assert options.counter_policies() == {"one": CeilingPolicy(1), "api": RatePolicy(5, 60_000, 2, True)}


@pytest.mark.parametrize(
    "counter, arguments, need",
    [
        (Ceiling("one", 3), {}, Need("one", 1)),
        (Ceiling("one", 3, units=2), {}, Need("one", 2)),
        (Ceiling("one", 3, by="account"), {"account": 7}, Need("one/7")),
        (Ceiling("one", 3, by="args.order.account"), {"order": {"account": "a/b"}}, Need("one/a/b")),
        (Rate("tokens", 5_000, units="count"), {"count": 1_200}, Need("tokens", 1_200)),
        (Rate("api", 5, burst=2, units=2), {}, Need("api", 2)),
        (Ceiling("shut", 0, units=5), {}, Need("shut", 5)),
        (
            Ceiling("one", 3, by="x"),
            {"x": "y" * MOST},
            Need("one/" + "y" * MOST),
        ),
    ],
)
def test_a_job_takes_units_under_the_value_of_its_arguments(
    counter: Ceiling | Rate, arguments: dict[str, Any], need: Need
):
    option = "ceilings" if isinstance(counter, Ceiling) else "rates"
    assert JobOptions().with_options({option: counter}).needs(arguments) == (need,)


@pytest.mark.capability("A3")
@pytest.mark.parametrize(
    "counter, arguments, words",
    [
        (Ceiling("one", 3, by="account"), {"other": 1}, "the arguments have no 'account'"),
        (Ceiling("one", 3, by="a"), {"a": "x" * (MOST + 1)}, "over 200 characters"),
        (Ceiling("one", 3, by="a"), {"a": "x\0"}, "NUL"),
        (Ceiling("one", 3, units="n"), {"n": 0}, "between 1 and"),
        (Ceiling("one", 3, units="n"), {"n": "2"}, "whole number"),
        (Ceiling("one", 3, units="n"), {"n": 4}, "needs 4 units and the counter never has more than 3"),
        (Rate("api", 5, units=6), {}, "never has more than 5"),
        (Rate("api", 5, burst=2, units=3), {}, "never has more than 2"),
        (Rate("api", 5, exact=True, units=2), {}, "never has more than 1"),
    ],
)
def test_a_job_that_could_never_run_is_refused_when_it_is_built(
    counter: Ceiling | Rate, arguments: dict[str, Any], words: str
):
    option = "ceilings" if isinstance(counter, Ceiling) else "rates"
    with pytest.raises(InvalidArgument, match=words) as refused:
        JobOptions().with_options({option: counter}).needs(arguments)
    assert refused.value.argument == counter.name


def test_the_terms_carry_the_timeout_and_the_retry():
    options = JobOptions().with_options({"timeout": 5, "retry": Retry(base=1)})
    assert msgspec.msgpack.decode(options.body, type=Terms) == Terms(timeout_ms=5_000, backoff_base_ms=1_000)
    assert options.body == JobOptions().with_options({"retry": Retry(base=1), "timeout": 5}).body
