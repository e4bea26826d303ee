"""The operator's face: ``app.jobs`` and ``app.queues``, in both colours and on each store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tessera import State, Tessera
from tessera.engine.redriving import Redriven
from tessera.model.changes import Group, PutRecord
from tessera.model.errors import InvalidArgument, NotFound, WrongState
from tessera.model.outcomes import Aborted
from tests.client.colours import Colour, claim, complete, end, take


def kind(app: Tessera, name: str = "work", **options: Any) -> Any:
    def work(n: int = 0) -> int:
        return n

    return app.job(kind=name, **options)(work)


def numbers(colour: Colour, **which: Any) -> list[int]:
    """The jobs that a list finds, by their argument."""
    found = colour.call(colour.app.jobs, "list", limit=200, **which).jobs
    return [colour.call(colour.app.jobs, "get", job.key, reveal=True).payload["n"] for job in found]


# Reading ----------------------------------------------------------------------------------------------------


def test_a_job_is_found_by_whatever_names_it(colour: Colour):
    handle = colour.call(kind(colour.app).with_options(id="order-1"), "enqueue", 7)
    jobs = colour.app.jobs
    views = [
        colour.call(jobs, "get", name)
        for name in (handle, handle.key, "order-1", colour.call(handle, "get").key)
    ]
    assert {view.id for view in views} == {"order-1"}
    assert colour.call(jobs, "handle", "order-1") == handle


@pytest.mark.parametrize("verb", ["get", "handle", "cancel", "retry", "promote", "edit", "delete", "explain"])
def test_an_unknown_job_is_said_to_be_unknown(colour: Colour, verb: str):
    with pytest.raises(NotFound, match="no job 'nothing' in this store"):
        colour.call(colour.app.jobs, verb, "nothing")


def test_payloads_and_results_are_shown_only_to_who_asks(colour: Colour):
    """INV-35."""
    handle = colour.call(kind(colour.app), "enqueue", 7)
    complete(colour.app, take(colour.app), 9)
    plain = colour.call(colour.app.jobs, "get", handle)
    shown = colour.call(colour.app.jobs, "get", handle, reveal=True)
    listed = colour.call(colour.app.jobs, "list").jobs[0]
    assert (shown.payload, shown.result) == ({"n": 7}, 9)
    assert {plain.payload, plain.result, listed.payload, listed.result} == {msgspec.UNSET}


@pytest.mark.capability("P7")
def test_a_list_holds_what_every_filter_lets_through(colour: Colour):
    app = colour.app
    work, other = kind(app), kind(app, "other")
    for bound, n in (
        (work.with_options(queue="a", tags=["eu", "vip"], tenant="acme"), 1),
        (work.with_options(queue="a", tags=["eu"]), 2),
        (work.with_options(queue="b", delay=60), 3),
        (other.with_options(queue="b", tags=["us"]), 4),
    ):
        colour.call(bound, "enqueue", n)
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [4, 3, 2, 1]),
        ({"queue": "a"}, [2, 1]),
        ({"queue": ["a", "b"]}, [4, 3, 2, 1]),
        ({"queue": "none"}, []),
        ({"state": "scheduled"}, [3]),
        ({"state": ["scheduled", State.AVAILABLE]}, [4, 3, 2, 1]),
        ({"kind": "other"}, [4]),
        ({"tags_all": ["eu"]}, [2, 1]),
        ({"tags_all": ["eu", "vip"]}, [1]),
        ({"tags_any": ["vip", "us"]}, [4, 1]),
        ({"tenant": "acme"}, [1]),
        ({"tenant": ""}, [4, 3, 2]),
        ({"queue": "a", "tags_any": ["vip", "us"]}, [1]),
    ]
    for which, found in cases:
        assert numbers(colour, **which) == found, which


def test_a_list_by_reason_finds_how_jobs_died(colour: Colour):
    work = kind(colour.app)
    for n in range(2):
        colour.call(work, "enqueue", n)
        end(colour.app, take(colour.app), Aborted("no account" if n else "bad"))
    assert numbers(colour, reason="aborted: no") == [1]


def test_pages_follow_one_another_without_gap_or_repeat(colour: Colour):
    work = kind(colour.app)
    handles = colour.call(colour.app, "enqueue_many", [work.job(n) for n in range(7)])
    seen: list[str] = []
    cursor = ""
    sizes = []
    while True:
        page = colour.call(colour.app.jobs, "list", limit=3, cursor=cursor)
        seen += [job.key for job in page.jobs]
        sizes.append(len(page.jobs))
        cursor = page.cursor
        if not cursor:
            break
    assert seen == [colour.call(handle, "get").key for handle in reversed(handles)]
    assert sizes[:2] == [3, 3]
    assert sum(sizes) == 7


@pytest.mark.parametrize(
    "which, argument",
    [
        ({"state": "ready"}, "state"),
        ({"state": ["completed", "ready"]}, "state"),
        ({"cursor": "xyz"}, "cursor"),
        ({"limit": 0}, "limit"),
        ({"limit": 201}, "limit"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused_and_the_argument_named(
    colour: Colour, which: dict[str, Any], argument: str
):
    with pytest.raises(InvalidArgument) as refused:
        colour.call(colour.app.jobs, "list", **which)
    assert refused.value.argument == argument


def test_a_list_of_the_children_of_an_unknown_job_is_an_error(colour: Colour):
    with pytest.raises(NotFound):
        colour.call(colour.app.jobs, "list", parent="nobody")


def test_the_children_of_a_job_can_be_listed(colour: Colour):
    handle = colour.call(kind(colour.app), "enqueue", 1)
    assert colour.call(colour.app.jobs, "list", parent=handle).jobs == ()


# Acting -----------------------------------------------------------------------------------------------------


@pytest.mark.capability("R6")
def test_retry_answers_with_the_job_that_will_run(colour: Colour):
    handle = colour.call(kind(colour.app), "enqueue", 7)
    end(colour.app, take(colour.app), Aborted("no"))
    assert colour.call(colour.app.jobs, "retry", handle) == handle
    complete(colour.app, take(colour.app), 7)
    again = colour.call(colour.app.jobs, "retry", handle)
    assert again != handle
    assert colour.call(again, "get").origin == handle.id
    complete(colour.app, take(colour.app), 8)
    assert (colour.call(again, "result"), colour.call(handle, "result")) == (8, 7)


@pytest.mark.capability("P10")
def test_promote_lets_a_pending_job_go(colour: Colour):
    handle = colour.call(kind(colour.app).with_options(pending=True), "enqueue")
    assert colour.call(handle, "get").state is State.PENDING
    assert colour.call(colour.app.jobs, "promote", handle) == handle
    assert colour.call(handle, "get").state is State.AVAILABLE
    with pytest.raises(WrongState):
        colour.call(colour.app.jobs, "promote", handle)


def test_edit_changes_a_job_that_waits(colour: Colour):
    handle = colour.call(kind(colour.app).with_options(delay=60), "enqueue")
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    edit = colour.app.jobs
    assert (
        colour.call(edit, "edit", handle, priority=3, tags=["eu", "eu"], max_attempts=2, run_at=due) == handle
    )
    job = colour.call(handle, "get")
    assert (job.priority, job.tags, job.max_attempts, job.due_at) == (3, ("eu",), 2, due)
    colour.call(edit, "edit", handle, delay=0)
    assert colour.call(handle, "get").state is State.AVAILABLE


@pytest.mark.parametrize(
    "changes, argument",
    [
        ({"priority": 32_768}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"tags": "eu"}, "tags"),
        ({"tags": ["a b"]}, "tags"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at"),
        ({"delay": -1}, "delay"),
        ({"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "run_at"),
    ],
)
def test_an_edit_that_makes_no_sense_is_refused(colour: Colour, changes: dict[str, Any], argument: str):
    handle = colour.call(kind(colour.app).with_options(delay=60), "enqueue")
    before = colour.call(handle, "get")
    with pytest.raises(InvalidArgument) as refused:
        colour.call(colour.app.jobs, "edit", handle, **changes)
    assert refused.value.argument == argument
    assert colour.call(handle, "get") == before


def test_delete_removes_the_row_and_a_running_one_only_by_force(colour: Colour):
    handle = colour.call(kind(colour.app), "enqueue")
    take(colour.app)
    with pytest.raises(WrongState, match="cancel it first, or force"):
        colour.call(colour.app.jobs, "delete", handle)
    assert colour.call(colour.app.jobs, "delete", handle, force=True) is None
    with pytest.raises(NotFound):
        colour.call(handle, "get")


def test_cancel_by_any_name(colour: Colour):
    colour.call(kind(colour.app).with_options(id="order-1"), "enqueue")
    assert colour.call(colour.app.jobs, "cancel", "order-1", reason="no need", by="ada") is State.CANCELLED
    assert colour.call(colour.app.jobs, "get", "order-1").reason == "no need"


@pytest.mark.capability("A13")
def test_explain_tells_why_a_job_does_not_run(colour: Colour):
    handle = colour.call(kind(colour.app), "enqueue")
    [cause] = colour.call(colour.app.jobs, "explain", handle).causes
    assert (cause.code, cause.clears) == ("no_worker", "by a deploy")


@pytest.mark.capability("R6")
def test_redrive_brings_back_the_dead_of_a_filter(colour: Colour):
    work = kind(colour.app)
    for n, tags in ((0, ["eu"]), (1, ["us"]), (2, ["eu"])):
        colour.call(work.with_options(tags=tags), "enqueue", n)
        end(colour.app, take(colour.app), Aborted("no"))
    redrive = colour.app.jobs
    assert colour.call(redrive, "redrive", tags_any=["eu"], dry_run=True) == Redriven(2, 0)
    assert colour.call(redrive, "redrive", tags_any=["eu"], limit=1) == Redriven(1, 1)
    assert numbers(colour, state="available") == [2]
    assert colour.call(redrive, "redrive", queue="default", kind="work", reason="aborted") == Redriven(2, 2)


# Queues -----------------------------------------------------------------------------------------------------


@pytest.mark.capability("A14")
def test_a_pause_holds_at_once_for_everybody_and_until_it_is_undone(colour: Colour, app: Tessera):
    handle = colour.call(kind(app), "enqueue")
    assert claim(app, "other") == []
    colour.call(app.queues, "pause", "default")
    assert claim(app) == []
    assert [cause.code for cause in colour.call(app.jobs, "explain", handle).causes] == ["queue_paused"]
    assert [(q.name, q.paused) for q in colour.call(app.queues, "list")] == [("default", True)]
    colour.call(app.queues, "resume", "default")
    assert len(claim(app)) == 1


def test_queues_are_listed_with_exact_counts(colour: Colour):
    """INV-15."""
    work = kind(colour.app)
    colour.call(colour.app, "enqueue_many", [work.job(n) for n in range(3)])
    colour.call(work.with_options(queue="later", delay=60), "enqueue")
    complete(colour.app, take(colour.app))
    found = {q.name: (q.counts, q.unfinished) for q in colour.call(colour.app.queues, "list")}
    assert found == {
        "default": ({State.AVAILABLE: 2, State.COMPLETED: 1}, 2),
        "later": ({State.SCHEDULED: 1}, 1),
    }


def test_a_purge_removes_what_waits_or_what_is_named(colour: Colour):
    work = kind(colour.app)
    colour.call(colour.app, "enqueue_many", [work.job(n) for n in range(4)])
    complete(colour.app, take(colour.app))
    take(colour.app)
    purge = colour.app.queues
    assert colour.call(purge, "purge", "default", dry_run=True) == 2
    assert colour.call(purge, "purge", "default", state="running") == 0
    assert colour.call(purge, "purge", "default") == 2
    assert colour.call(purge, "purge", "default", state=["completed"], by="ada") == 1
    assert [job.state for job in colour.call(colour.app.jobs, "list").jobs] == [State.RUNNING]
    with pytest.raises(InvalidArgument, match="there are: pending"):
        colour.call(purge, "purge", "default", state="done")


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_queue_that_cannot_be_is_refused(colour: Colour, verb: str):
    with pytest.raises(InvalidArgument, match="queue"):
        colour.call(colour.app.queues, verb, "No Queue")


def test_a_record_of_a_worker_shows_in_its_queues(app: Tessera):
    info = b'{"incarnation":"w","queues":["mail"],"kinds":["work"]}'
    app._run(lambda store: store.commit([Group(changes=(PutRecord("~worker", "w", info),))]))
    assert [(q.name, q.workers) for q in app.queues.list()] == [("mail", 1)]
