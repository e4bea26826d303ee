"""Whatever a caller hands in is taken or refused with a typed error, and no value makes a row that nobody can
read again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import pytest

from tessera import (
    Ceiling,
    Dependency,
    Handle,
    Rate,
    Retention,
    Retry,
    Tessera,
    TesseraError,
    Unique,
    WorkerSettings,
)
from tessera.model.errors import ConfigError, InvalidArgument, InvalidMember
from tessera.options import Options
from tessera.store.protocol import run_blocking

ODD: list[Any] = [
    None, True, 0, -1, 1 << 63, 10**30, 10**400, 1.5, float("nan"), float("inf"), "", "x", "a\0b", "\ud800",
    "x" * 1_000_000, "'; DROP TABLE job;--", "../../etc/passwd", b"", b"x", b"\xff" * 16, [], ["x"], [None],
    ["\ud800"], [[]], {}, {"a": 1}, {1: 2}, object(), int, datetime(2020, 1, 1),
    datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), timedelta(-1), timedelta.max, 1 + 2j,
    Retry(), Unique(), Ceiling("c", 1),
]  # fmt: skip

LIST = ["queue", "state", "kind", "tags_all", "tags_any", "tenant", "parent", "reason", "cursor", "limit"]
REDRIVE = ["queue", "kind", "tags_any", "reason", "limit", "by"]
EDIT = ["priority", "tags", "run_at", "delay", "max_attempts", "by"]
VERBS = ["get", "handle", "cancel", "retry", "promote", "edit", "delete", "explain"]


class Word(StrEnum):
    MAIL = "mail"


class Text(str):
    """As a library may hand out."""

    __slots__ = ()


class Level(IntEnum):
    HIGH = 7


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/work.db?synchronous=normal"


@pytest.fixture
def work(app: Tessera) -> Any:
    @app.job
    def work(x: object = None) -> object:
        return x

    return work


def each_is_taken_or_refused(app: Tessera, call: Any) -> None:
    """Try all odd values, and then that all rows can be read and agree."""
    for value in ODD:
        try:
            call(value)
        except TesseraError:
            continue
    page = app.jobs.list(limit=200)
    while page.cursor:
        page = app.jobs.list(limit=200, cursor=page.cursor)
    assert run_blocking(app._store().verify()) == []


@pytest.mark.parametrize("option", sorted(Options.__annotations__))
def test_every_option(app: Tessera, work: Any, option: str):
    each_is_taken_or_refused(app, lambda value: work.with_options(**{option: value}).enqueue())


@pytest.mark.parametrize("field", LIST)
def test_every_filter_of_a_list(app: Tessera, work: Any, field: str):
    work.enqueue()
    each_is_taken_or_refused(app, lambda value: app.jobs.list(**{field: value}))


@pytest.mark.parametrize("field", REDRIVE)
def test_every_part_of_a_redrive(app: Tessera, work: Any, field: str):
    each_is_taken_or_refused(app, lambda value: app.jobs.redrive(**{field: value}))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_on_something_that_names_no_job(app: Tessera, work: Any, verb: str):
    each_is_taken_or_refused(app, getattr(app.jobs, verb))


@pytest.mark.parametrize("field", EDIT)
def test_every_part_of_an_edit(app: Tessera, work: Any, field: str):
    job = work.with_options(delay=60).enqueue()
    each_is_taken_or_refused(app, lambda value: app.jobs.edit(job, **{field: value}))


@pytest.mark.parametrize(
    "verb, field, options",
    [
        ("cancel", "reason", {}),
        ("cancel", "by", {}),
        ("delete", "by", {}),
        ("retry", "by", {"delay": 60}),
        ("promote", "by", {"pending": True}),
    ],
)
def test_every_word_about_an_act(app: Tessera, work: Any, verb: str, field: str, options: dict[str, Any]):
    def act(value: object) -> None:
        getattr(app.jobs, verb)(work.with_options(**options).enqueue(), **{field: value})

    each_is_taken_or_refused(app, act)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda value, f=f: {"retry": Retry(**{f: value})} for f in Retry.__dataclass_fields__),
        *(lambda value, f=f: {"retention": Retention(**{f: value})} for f in Retention.__dataclass_fields__),
        *(lambda value, f=f: {"unique": Unique(**{f: value})} for f in Unique.__dataclass_fields__),
        *(
            lambda value, f=f: {"ceilings": [Ceiling(**{"name": "c", "limit": 3, f: value})]}
            for f in Ceiling.__dataclass_fields__
        ),
        *(
            lambda value, f=f: {"rates": [Rate(**{"name": "r", "limit": 3, f: value})]}
            for f in Rate.__dataclass_fields__
        ),
        *(
            lambda value, f=f: {"depends_on": [Dependency(**{"job": "x", f: value})]}
            for f in Dependency.__dataclass_fields__
        ),
    ],
)
def test_every_field_of_an_option(app: Tessera, work: Any, make: Any):
    each_is_taken_or_refused(app, lambda value: work.with_options(**make(value)).enqueue(x=1))


def test_every_part_of_a_queue(app: Tessera, work: Any):
    each_is_taken_or_refused(app, app.queue)
    each_is_taken_or_refused(app, lambda value: app.queue("q", weights=value))
    each_is_taken_or_refused(app, lambda value: app.queue("q", weights={"a": value}))
    each_is_taken_or_refused(app, lambda value: app.queue("q", events=value))
    each_is_taken_or_refused(app, app.queues.pause)
    each_is_taken_or_refused(app, lambda value: app.queues.purge(value, dry_run=True))
    each_is_taken_or_refused(app, lambda value: app.queues.purge("q", state=value))


def test_every_list_of_jobs(app: Tessera, work: Any):
    each_is_taken_or_refused(app, app.enqueue_many)
    each_is_taken_or_refused(app, lambda value: app.enqueue_many([value]))
    with pytest.raises(InvalidMember, match=r"jobs\[1\]"):
        app.enqueue_many([work.job(), None])  # type: ignore[list-item]
    assert len(app.jobs.list().jobs) == 0


@pytest.mark.parametrize("value", [7, 1.5, b"x", ["x"], object()])
def test_every_url(value: Any):
    with pytest.raises(ConfigError, match="give a text"):
        Tessera(value).jobs.list()


def test_members_of_enumerations_are_the_texts_and_numbers_they_stand_for(app: Tessera, work: Any):
    handle: Handle[Any] = work.with_options(
        queue=Word.MAIL,
        tenant=Word.MAIL,
        tags=[Word.MAIL],
        id=Word.MAIL,
        priority=Level.HIGH,
        ceilings=[Ceiling(Word.MAIL, Level.HIGH)],
    ).enqueue(x=1)
    job = app.jobs.get(handle)
    assert (job.queue, job.tenant, job.tags, job.id, job.priority) == ("mail", "mail", ("mail",), "mail", 7)
    app.jobs.cancel(handle, reason=Text("mail"), by=Text("ada"))
    assert app.jobs.get(handle).reason == "mail"


def test_every_setting_of_a_worker(app: Tessera):
    for field in WorkerSettings.__dataclass_fields__:
        each_is_taken_or_refused(app, lambda value, field=field: app.worker(**{field: value}))


@pytest.mark.parametrize(
    "given, told",
    [
        ({"nonsense": 1}, "nonsense: is no setting of a worker; there are: queues, mode, concurrency"),
        ({"concurency": 1}, "concurency: is no setting of a worker; did you mean 'concurrency'?"),
        ({"lease": 30}, "did you mean 'lease_seconds'?"),
        ({"x" * 1_000_000: 1}, "is no setting of a worker"),
    ],
)
def test_a_setting_that_a_worker_has_not_is_refused_and_the_nearest_named(
    app: Tessera, given: dict[str, Any], told: str
):
    for make in (app.worker, app.run_worker):
        with pytest.raises(ConfigError) as refused:
            make(**given)
        assert told in str(refused.value)
        assert len(str(refused.value)) < 3_000


def test_all_that_is_wrong_with_a_worker_is_told_at_once(app: Tessera):
    with pytest.raises(ConfigError) as refused:
        app.worker(concurency=1, concurrency=0, lease_seconds=-1)
    names = [problem.partition(":")[0] for problem in refused.value.problems]
    assert names == ["concurency", "concurrency", "lease_seconds"]


def test_an_edit_refuses_what_is_no_number(app: Tessera, work: Any):
    """A True that was stored as the number of attempts once hid every job of the store."""
    job = work.with_options(delay=60).enqueue()
    for value in (True, 1.5, "1"):
        with pytest.raises(InvalidArgument, match="max_attempts"):
            app.jobs.edit(job, max_attempts=value)  # type: ignore[arg-type]
    assert app.jobs.list().jobs[0].id == job.id
