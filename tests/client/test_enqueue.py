"""Enqueueing through the application's face, in both colours and on each store."""

from __future__ import annotations

import asyncio
import sqlite3
import warnings
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tessera import Ceiling, Dependency, Rate, Retention, Retry, State, Tessera, Unique
from tessera.model.errors import IdConflict, InvalidArgument, InvalidMember, TooLarge, Unsupported
from tests.client.colours import Colour, claim, complete, run, take


def declare(app: Tessera) -> Any:
    @app.job(queue="mail", retry=Retry(max_attempts=5), tags=["outgoing"])
    def send(to: str, subject: str = "hello", *, copies: int = 1) -> str:
        """Send a mail."""
        return f"{subject} to {to}"

    return send


@pytest.mark.capability("P1")
def test_a_call_of_enqueue_is_a_stored_job(colour: Colour):
    """INV-1."""
    send = declare(colour.app)
    handle = colour.call(send, "enqueue", "ada@example.org", subject="hi")
    job = colour.call(handle, "get")
    assert (job.kind, job.queue, job.state) == ("send", "mail", State.AVAILABLE)
    assert (job.tags, job.max_attempts) == (("outgoing",), 5)
    assert job.payload == {"to": "ada@example.org", "subject": "hi", "copies": 1}
    assert handle.created


@pytest.mark.capability("P1")
@pytest.mark.parametrize(
    "args, kwargs, argument",
    [
        ((), {}, "to"),
        ((5,), {}, "to"),
        (("a", "b", "c"), {}, ""),
        (("a",), {"copys": 2}, "copys"),
        (("a",), {"copies": "2"}, "copies"),
        (("a",), {"copies": True}, "copies"),
    ],
)
def test_wrong_arguments_are_refused_before_any_store_is_touched(
    tmp_path: Path, args: tuple[Any, ...], kwargs: dict[str, Any], argument: str
):
    """INV-33."""
    app = Tessera(f"sqlite:///{tmp_path}/nowhere/work.db")
    send = declare(app)
    for build in (send.enqueue, send.job, lambda *a, **k: asyncio.run(send.aenqueue(*a, **k))):
        with pytest.raises(InvalidArgument) as refused:
            build(*args, **kwargs)
        assert argument in refused.value.argument


@pytest.mark.capability("P1")
def test_what_is_changed_after_the_enqueue_is_not_changed_in_the_job(app: Tessera):
    @app.job
    def count(lines: list[int]) -> int:
        return len(lines)

    lines = [1, 2]
    request = count.job(lines)
    lines.append(3)
    [handle] = app.enqueue_many([request])
    assert handle.get().payload == {"lines": [1, 2]}


def test_too_large_a_payload_is_refused_when_the_job_is_built(app: Tessera):
    """INV-33."""
    with pytest.raises(TooLarge, match="payload"):
        declare(app).job("x" * (1024 * 1024))


def test_options_reach_the_row(colour: Colour):
    send = declare(colour.app)
    due = datetime.now(UTC) + timedelta(hours=1)
    handle = colour.call(
        send.with_options(run_at=due, priority=5, tags=["eu"], tenant="acme", id="order-1").with_options(
            max_crashes=7
        ),
        "enqueue",
        "ada",
    )
    job = colour.call(handle, "get")
    assert (job.state, job.priority, job.tags, job.tenant, job.id) == (
        State.SCHEDULED,
        5,
        ("eu",),
        "acme",
        "order-1",
    )
    assert abs(job.due_at - due) <= timedelta(milliseconds=1)
    assert handle.id == "order-1"


@pytest.mark.parametrize("options", [{"queue": "Mail"}, {"priority": 10**6}, {"retries": 3}])
def test_bad_options_are_refused_where_they_are_given(app: Tessera, options: dict[str, Any]):
    with pytest.raises(InvalidArgument):
        declare(app).with_options(**options)
    with pytest.raises(InvalidArgument):
        app.job(**options)(lambda: None)


# Ids and unique keys ----------------------------------------------------------------------------------------


@pytest.mark.capability("P5")
def test_the_same_id_leads_to_the_same_job(colour: Colour):
    """INV-3."""
    send = declare(colour.app).with_options(id="order-17")
    first, second = (colour.call(send, "enqueue", "ada") for _ in range(2))
    assert first == second
    assert (first.created, second.created) == (True, False)
    assert hash(first) == hash(second)
    with pytest.raises(IdConflict, match="another payload"):
        colour.call(send, "enqueue", "bob")


@pytest.mark.capability("P12")
def test_the_second_of_a_unique_key_is_a_handle_on_the_first(colour: Colour):
    """INV-17: a handle by which the job can be found, not one with the id that was refused."""
    send = declare(colour.app).with_options(unique=Unique(by=["to"]))
    first = colour.call(send.with_options(id="first"), "enqueue", "ada", "one")
    second = colour.call(send.with_options(id="second"), "enqueue", "ada", "two")
    assert (second, second.created, second.id) == (first, False, "first")
    assert colour.call(colour.app.jobs, "get", second.id).key == colour.call(first, "get").key
    assert colour.call(send, "enqueue", "bob").created


@pytest.mark.capability("P12")
def test_a_bulk_call_that_skips_leads_to_the_holders_too(colour: Colour):
    send = declare(colour.app).with_options(unique=Unique(by=["to"]))
    first = colour.call(send.with_options(id="first"), "enqueue", "ada")
    handles = colour.call(
        colour.app,
        "enqueue_many",
        [send.job("bob"), send.with_options(id="x").job("ada")],
        on_conflict="skip",
    )
    assert [(h.created, h.id == "first") for h in handles] == [(True, False), (False, True)]
    assert handles[1] == first


@pytest.mark.capability("P12")
def test_all_arguments_make_the_key_unless_some_are_named(app: Tessera):
    send = declare(app).with_options(unique=True)
    assert send.enqueue("ada", "one").created
    assert send.enqueue("ada", "two").created
    assert not send.enqueue("ada", subject="one", copies=1).created


@pytest.mark.capability("P16")
def test_a_key_across_kinds_is_one_for_all_of_them(app: Tessera):
    """And the result of the other kind is read as that kind returns it."""

    @app.job(unique=Unique(by=["n"], across_kinds=True))
    def first(n: int) -> datetime:
        return datetime(2030, 1, n, tzinfo=UTC)

    @app.job(unique=Unique(by=["n"], across_kinds=True))
    def second(n: int) -> int:
        return n

    made = first.enqueue(1)
    met = second.enqueue(1)
    assert (met, met.created) == (made, False)
    run(app)
    assert met.result(timeout=5) == datetime(2030, 1, 1, tzinfo=UTC)


def test_a_unique_key_of_an_argument_that_is_not_there_is_refused(app: Tessera):
    with pytest.raises(InvalidArgument, match="the arguments have no 'account'"):
        declare(app).with_options(unique=Unique(by=["account"])).enqueue("ada")


# Many -------------------------------------------------------------------------------------------------------


@pytest.mark.capability("P2")
def test_many_jobs_are_one_atomic_call(colour: Colour):
    send = declare(colour.app)
    handles = colour.call(colour.app, "enqueue_many", [send.job(f"p{n}") for n in range(50)])
    assert [job.id for job in claim(colour.app, "mail", 50)] == [handle.key for handle in handles]


@pytest.mark.capability("P2")
def test_one_bad_member_stores_none_and_is_named(colour: Colour):
    send = declare(colour.app)
    colour.call(send.with_options(id="order-1"), "enqueue", "ada")
    jobs = [send.job("bob"), send.with_options(id="order-1").job("eve"), send.job("joe")]
    with pytest.raises(InvalidMember) as refused:
        colour.call(colour.app, "enqueue_many", jobs)
    assert (refused.value.index, refused.value.argument) == (1, "jobs[1]")
    assert len(colour.call(colour.app.jobs, "list").jobs) == 1


# Dependencies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["handle", "key", "id", "printed"])
def test_a_job_waits_for_another_that_is_named_in_any_way(colour: Colour, how: str):
    """INV-20."""
    send = declare(colour.app)
    first = colour.call(send.with_options(id="first"), "enqueue", "ada")
    name = {"handle": first, "key": first.key, "id": "first", "printed": colour.call(first, "get").key}[how]
    second = colour.call(send.with_options(depends_on=[name]), "enqueue", "bob")
    assert colour.call(second, "get").state is State.PENDING
    run(colour.app, "mail")
    assert colour.call(second, "get").state is State.AVAILABLE


@pytest.mark.parametrize("name", ["0123456789abcdef0123456789abcdef", "1b4e28ba-2fa1-41d2-883f-0016d3cca427"])
@pytest.mark.parametrize("bulk", [False, True])
def test_an_id_of_the_callers_own_may_look_like_a_key(app: Tessera, name: str, bulk: bool):
    send = declare(app)
    first = send.with_options(id=name).enqueue("ada")
    request = send.with_options(depends_on=[name]).job("bob")
    second = app.enqueue_many([request])[0] if bulk else send.with_options(depends_on=[name]).enqueue("bob")
    assert (first.get().state, second.get().open_edges) == (State.AVAILABLE, 1)
    assert app.jobs.get(name).key == first.get().key


def test_a_member_may_wait_for_one_before_it_by_its_id(app: Tessera):
    send = declare(app)
    handles = app.enqueue_many(
        [send.with_options(id="0" * 32).job("ada"), send.with_options(depends_on=["0" * 32]).job("bob")]
    )
    assert handles[1].get().open_edges == 1


@pytest.mark.parametrize("wrong", [5, None, "", b"", [Dependency(job=3.5)]])
def test_a_dependency_that_names_no_job_is_refused(app: Tessera, wrong: Any):
    with pytest.raises(InvalidArgument, match="depends_on"):
        declare(app).with_options(depends_on=wrong).enqueue("ada")


def test_an_unknown_dependency_is_refused(colour: Colour):
    with pytest.raises(InvalidArgument, match="no such parent job"):
        colour.call(declare(colour.app).with_options(depends_on=["nobody"]), "enqueue", "ada")


# Counters, retention, connections ---------------------------------------------------------------------------


@pytest.mark.capability("A4")
def test_declared_counters_hold_for_the_next_claim(colour: Colour):
    """INV-25."""

    @colour.app.job(ceilings=[Ceiling("account", 1, by="account")], rates=[Rate("api", 2, per=3_600)])
    def call(account: str) -> None: ...

    colour.call(colour.app, "declare")
    colour.call(colour.app, "enqueue_many", [call.job(account) for account in ("a", "a", "b", "c")])
    assert [msgspec.json.decode(job.payload)["account"] for job in claim(colour.app, n=9)] == ["a", "b"]


def test_two_kinds_that_declare_a_counter_otherwise_are_told_apart(app: Tessera):
    app.job(kind="one", ceilings=[Ceiling("api", 1)])(lambda: None)
    app.job(kind="two", ceilings=[Ceiling("api", 2)])(lambda: None)
    with pytest.raises(InvalidArgument, match="the kind 'two' declares this counter otherwise"):
        app.declare()


@pytest.mark.capability("P11")
def test_an_ephemeral_job_is_gone_when_it_is_done(app: Tessera):
    @app.job(retention=Retention(completed=0))
    def work() -> None: ...

    work.enqueue()
    complete(app, take(app))
    assert app.jobs.list().jobs == ()


def test_a_store_that_joins_no_transaction_says_so():
    app = Tessera("memory://")
    send = declare(app)
    with pytest.raises(Unsupported, match="the memory store does not offer"):
        send.with_options(connection=object()).enqueue("ada")
    with pytest.raises(Unsupported):
        app.enqueue_many([send.job("ada")], connection=object())


@pytest.mark.capability("P3")
@pytest.mark.parametrize("bulk", [False, True])
def test_a_job_in_the_callers_transaction_is_there_if_that_commits(tmp_path: Path, bulk: bool):
    """INV-4: one is rolled back, and beside it one is committed: else a test could not tell."""
    path = tmp_path / "work.db"
    with Tessera(f"sqlite:///{path}?synchronous=normal") as app, closing(sqlite3.connect(path)) as connection:
        send = declare(app)
        app.declare()
        for to, end in (("ada", connection.rollback), ("bob", connection.commit)):
            connection.execute("BEGIN IMMEDIATE")
            if bulk:
                app.enqueue_many([send.job(to)], connection=connection)
            else:
                send.with_options(connection=connection).enqueue(to)
            end()
        assert [app.jobs.get(job.key, reveal=True).payload["to"] for job in app.jobs.list().jobs] == ["bob"]


# Loops ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["enqueue", "enqueue_many"])
def test_a_blocking_call_inside_an_event_loop_works_and_warns_once_at_the_callers_line(
    app: Tessera, verb: str
):
    send = declare(app)

    def call() -> None:
        if verb == "enqueue":
            send.enqueue("ada")
        else:
            app.enqueue_many([send.job("ada")])

    async def main() -> None:
        call()
        call()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
    [warning] = caught
    assert f"await a{verb}()" in str(warning.message)
    assert (warning.category, warning.filename) == (RuntimeWarning, __file__)
    assert 1 < warning.lineno - call.__code__.co_firstlineno + 1 <= 5  # in ``call`` itself
    assert len(app.jobs.list().jobs) == 2


def test_a_blocking_call_outside_a_loop_warns_nobody(app: Tessera):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        declare(app).enqueue("ada")


@pytest.mark.parametrize("member", ["no request", "its own connection", "a counter without its argument"])
def test_a_member_of_a_bulk_call_that_cannot_be_stored_is_named(colour: Colour, member: str):
    """INV-33: whatever is wrong with it; and no member leaves the transaction of the others."""
    send = declare(colour.app)
    wrong: dict[str, Any] = {
        "no request": "send",
        "its own connection": send.with_options(connection=object()).job("b"),
        "a counter without its argument": send.with_options(ceilings=[Ceiling("c", 1, by="nobody")]).job("b"),
    }
    with pytest.raises(InvalidMember) as refused:
        colour.call(colour.app, "enqueue_many", [send.job("a"), wrong[member]])
    assert refused.value.index == 1
    assert colour.call(colour.app.jobs, "list").jobs == ()


def test_the_weights_of_the_code_hold_for_the_first_job_already(colour: Colour):
    send = declare(colour.app)
    colour.app.queue("mail", weights={"gold": 3})
    for to in ("a", "b", "c", "d"):
        colour.call(send.with_options(tenant="tin"), "enqueue", f"tin-{to}")
        colour.call(send.with_options(tenant="gold"), "enqueue", f"gold-{to}")
    order = [take(colour.app, "mail") for _ in range(4)]
    assert sum(job.tenant == "gold" for job in order) == 3
