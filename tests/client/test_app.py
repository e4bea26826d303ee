"""The application itself: what it declares, which store it opens, and how long it holds it."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tessera import Retry, State, Tessera
from tessera.engine import policies
from tessera.model.errors import ConfigError, DuplicateKind, InvalidArgument
from tessera.model.ids import JobId
from tessera.model.policy import KindPolicy, QueuePolicy
from tessera.model.states import EventLevel
from tessera.store.protocol import Store
from tests.client.colours import Colour, complete, take


def work(n: int = 0) -> int:
    """Some work."""
    return n


# Declaring --------------------------------------------------------------------------------------------------


def test_a_declared_function_is_still_that_function():
    app = Tessera("memory://")
    kind = app.job(work)
    assert (kind(3), kind(n=4)) == (3, 4)
    assert (kind.name, kind.__doc__, kind.__wrapped__) == ("work", "Some work.", work)
    assert repr(kind) == "JobKind('work')"
    assert kind.reference == f"{__name__}:work"
    assert app.kinds == {"work": kind}


def test_the_bare_decorator_and_the_one_with_options_declare_alike():
    app = Tessera("memory://")
    bare, with_options = app.job(work), app.job(kind="other", queue="mail")(work)
    assert (bare.options.queue, with_options.options.queue, with_options.name) == ("default", "mail", "other")


def test_two_functions_of_one_kind_are_refused_and_both_named():
    app = Tessera("memory://")
    app.job(work)
    with pytest.raises(
        DuplicateKind, match=r"'work' is declared by .*:work and by .*:work; give one of them kind="
    ):
        app.job(work)


@pytest.mark.parametrize(
    "options, argument",
    [
        ({"kind": "a b"}, "kind"),
        ({"isolation": "thread"}, "isolation"),
        ({"id": "order-1"}, "id"),
        ({"run_at": None}, "run_at"),
        ({"depends_on": []}, "depends_on"),
        ({"connection": None}, "connection"),
        ({"quue": "a"}, "quue"),
    ],
)
def test_what_makes_no_sense_for_a_kind_is_refused(options: dict[str, Any], argument: str):
    app = Tessera("memory://")
    with pytest.raises(InvalidArgument) as refused:
        app.job(**options)(work)
    assert refused.value.argument == argument
    assert app.kinds == {}


def test_a_function_without_a_name_needs_a_kind():
    app = Tessera("memory://")
    with pytest.raises(InvalidArgument, match="kind"):
        app.job(lambda: None)
    assert app.job(kind="named")(lambda: None).name == "named"


def test_a_declaration_is_stored_once_and_read_by_all(colour: Colour):
    app = colour.app
    app.job(kind="send", queue="mail", priority=4, retry=Retry(max_attempts=3), max_crashes=1)(work)
    app.queue("mail", weights={"acme": 2.0}, events="full")
    colour.call(app, "declare")
    policy = app._run(lambda store: policies.Policies().current(store))
    assert policy.queue("mail") == QueuePolicy(weights={"acme": 2.0}, events=EventLevel.FULL)
    kind: KindPolicy = policy.kinds["send"]
    assert (kind.queue, kind.priority, kind.max_attempts, kind.max_crashes) == ("mail", 4, 3, 1)
    colour.call(app, "declare")
    assert app._run(lambda store: store.policy_version()) == policy.version


@pytest.mark.parametrize(
    "name, fields",
    [
        ("Mail", {}),
        ("mail", {"weights": {"a\0": 1.0}}),
        ("mail", {"weights": {"a": 0}}),
        ("mail", {"weights": {"a": 1_001}}),
        ("mail", {"events": "loud"}),
    ],
)
def test_a_queue_that_makes_no_sense_is_refused(name: str, fields: dict[str, Any]):
    with pytest.raises(InvalidArgument):
        Tessera("memory://").queue(name, **fields)


def test_a_queue_says_what_is_logged_of_its_jobs(app: Tessera):
    app.queue("loud", events="full")
    app.declare()
    kind = app.job(work)
    levels = {}
    for queue in ("loud", "quiet"):
        handle = kind.with_options(queue=queue).enqueue()
        [job] = app._run(partial(_rows, handle.key))
        levels[queue] = job.events
    assert levels == {"loud": EventLevel.FULL, "quiet": EventLevel.ODD}


async def _rows(key: JobId, store: Store) -> list[Any]:
    return list(await store.get_jobs([key]))


# Which store ------------------------------------------------------------------------------------------------


def test_the_argument_then_the_environment_then_a_file_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert Tessera().url == "sqlite:///tessera.db"
    monkeypatch.setenv("TESSERA_URL", "memory://")
    assert Tessera().url == "memory://"
    assert Tessera("sqlite:///mine.db").url == "sqlite:///mine.db"
    assert list(tmp_path.iterdir()) == []


def test_a_url_that_leads_nowhere_is_told_at_the_first_call_that_needs_it():
    app = Tessera("nowhere://")
    kind = app.job(work)
    with pytest.raises(ConfigError, match="is no store URL"):
        kind.enqueue()


# How long ---------------------------------------------------------------------------------------------------


def test_a_closed_application_opens_anew(tmp_path: Path):
    app = Tessera(f"sqlite:///{tmp_path}/work.db?synchronous=normal")
    handle = app.job(work).enqueue(1)
    app.close()
    app.close()
    assert handle.get().state is State.AVAILABLE
    app.close()


def test_what_was_known_of_a_store_is_forgotten_with_it():
    """The next store of the same URL may be another one."""
    app = Tessera("memory://")
    kind = app.job(work)
    app.queues.pause("default")
    kind.enqueue()
    app.close()
    app.queues.resume("default")  # the new store is at the version the old one was at
    kind.enqueue()
    assert take(app).kind == "work"
    assert app.queues.list()[0].counts == {State.RUNNING: 1}


def test_an_application_that_was_never_used_closes_too():
    with Tessera("memory://"):
        pass

    async def main() -> None:
        async with Tessera("memory://"):
            pass

    asyncio.run(main())


def test_both_colours_see_the_same_jobs(app: Tessera):
    kind = app.job(work)
    first = kind.enqueue(1)

    async def main() -> list[int]:
        second = await kind.aenqueue(2)
        listed = await app.jobs.alist()
        assert second.key in {bytes.fromhex(job.key.replace("-", "")) for job in listed.jobs}
        assert (await first.aget()).state is State.AVAILABLE
        views = [await app.jobs.aget(job.key, reveal=True) for job in listed.jobs]
        return sorted(view.payload["n"] for view in views)

    assert asyncio.run(main()) == [1, 2]
    assert len(app.jobs.list().jobs) == 2


def test_each_event_loop_has_a_handle_of_its_own_and_those_of_closed_loops_are_forgotten(app: Tessera):
    kind = app.job(work)

    async def enqueue(n: int) -> None:
        await kind.aenqueue(n)

    for n in range(3):
        asyncio.run(enqueue(n))
    assert len(app._async_stores) == 1
    assert len(app.jobs.list().jobs) == 3


def test_many_first_calls_at_once_open_one_handle(app: Tessera):
    kind = app.job(work)

    async def main() -> int:
        await asyncio.gather(*(kind.aenqueue(n) for n in range(20)))
        return len(app._async_stores)

    assert asyncio.run(main()) == 1
    assert len(app.jobs.list().jobs) == 20


def test_threads_share_the_blocking_face(app: Tessera):
    kind = app.job(work)
    start = threading.Barrier(4)
    errors: list[Exception] = []

    def enqueue() -> None:
        try:
            start.wait(10)
            for n in range(10):
                kind.enqueue(n)
        except Exception as error:  # noqa: BLE001  whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=enqueue) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(app.jobs.list(limit=200).jobs) == 40


def test_two_applications_on_one_store_see_each_others_jobs(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/work.db?synchronous=normal"
    with Tessera(url) as producer, Tessera(url) as consumer:
        kind = producer.job(kind="send")(work)
        consumer.job(kind="send")(work)
        handle = kind.with_options(id="order-1").enqueue(5)
        complete(consumer, take(consumer), 6)
        assert handle.result(timeout=10) == 6
        assert consumer.jobs.handle("order-1").result() == 6


def test_two_memory_applications_have_nothing_in_common():
    one, two = Tessera("memory://"), Tessera("memory://")
    one.job(work).enqueue()
    assert two.jobs.list().jobs == ()
