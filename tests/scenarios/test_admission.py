"""Which job a worker may start next."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from tessera import Ceiling, JobView, Rate, State, Tessera
from tessera.model.errors import ConfigError, InvalidArgument
from tests.scenarios import isolated
from tests.scenarios.rig import Client, filled, reaches, signalled, until, vanish, working

pytestmark = pytest.mark.asyncio


class Crowd:
    """Handlers of one kind that wait at a gate, and who was inside together."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.inside: list[Any] = []
        self.most: Tally[Any] = Tally()

    async def wait(self, name: Any) -> None:
        self.inside.append(name)
        for one, count in Tally(self.inside).items():
            self.most[one] = max(self.most[one], count)
        await self.gate.wait()
        self.inside.remove(name)


def started(job: JobView) -> datetime:
    """When the first run of the job began."""
    assert job.ends[0].started_at is not None
    return job.ends[0].started_at


async def are_inside(app: Tessera, crowd: Crowd, *names: Any) -> None:
    async def holds() -> bool:
        return sorted(crowd.inside) == sorted(names)

    await until(app, holds, f"{names} to run together, there are {crowd.inside}")


# Limits -----------------------------------------------------------------------------------------------------


async def test_a_rate_sets_aside_what_is_too_much_and_charges_no_attempt(app: Tessera, client: Client):
    """A1, save the kind of rate that follows the calendar, which is not built."""

    @app.job(rates=[Rate("api", 2, per=3600)])
    async def call(n: int) -> int:
        return n

    handles = [await client(call, "enqueue", n) for n in range(4)]
    async with working(app):
        for handle in handles[:2]:
            await reaches(app, handle, State.COMPLETED)  # a wait for its result could cost it its place
        for handle in handles[2:]:
            job = await reaches(app, handle, State.BLOCKED)
            assert (job.attempt, job.blocked_on) == (0, "api")


async def test_a_rate_lets_the_next_one_go_when_its_time_has_come(app: Tessera):
    @app.job(rates=[Rate("api", 1, per=0.2)])
    async def call(n: int) -> None: ...

    handles = [await call.aenqueue(n) for n in range(3)]
    async with working(app):
        for handle in handles:
            await handle.aresult(10)
    starts = sorted([started(await handle.aget()) for handle in handles])
    assert starts[2] - starts[0] >= timedelta(seconds=0.2)  # a bucket of 1, and 1 more each 0.2 s


@pytest.mark.capability("A2")
async def test_all_limits_of_a_job_have_room_or_none_is_charged(app: Tessera):
    crowd = Crowd()
    one, two = Ceiling("one", 1), Ceiling("two", 1)

    @app.job
    async def work(name: str) -> None:
        await crowd.wait(name)

    for policy in ([one], [two]):  # both counters are declared by a kind
        app.job(kind=f"uses-{policy[0].name}", ceilings=policy)(lambda: None)
    holder = await work.with_options(ceilings=[one]).aenqueue("holds one")
    async with working(app):
        await are_inside(app, crowd, "holds one")
        both = await work.with_options(ceilings=[two, one]).aenqueue("needs both")
        assert (await reaches(app, both, State.BLOCKED)).blocked_on == "one"
        # Were the half that had room charged, this one could not start.
        other = await work.with_options(ceilings=[two]).aenqueue("needs two")
        await are_inside(app, crowd, "holds one", "needs two")
        crowd.gate.set()
        for handle in (holder, other, both):
            await handle.aresult(10)


async def test_a_job_takes_as_many_units_as_it_costs_and_more_than_there_are_is_refused(
    app: Tessera, client: Client
):
    """A3, save the correction of an estimate afterwards, which is not built."""
    crowd = Crowd()

    @app.job(ceilings=[Ceiling("memory", 3, units="gigabytes")])
    async def load(gigabytes: int) -> None:
        await crowd.wait(gigabytes)

    with pytest.raises(InvalidArgument, match="needs 4 units and the counter never has more than 3"):
        await client(load, "enqueue", 4)
    big = await client(load, "enqueue", 2)
    async with working(app):
        await are_inside(app, crowd, 2)
        small = await client(load, "enqueue", 1)
        await are_inside(app, crowd, 1, 2)
        third = await client(load, "enqueue", 1)
        await reaches(app, third, State.BLOCKED)
        crowd.gate.set()
        for handle in (big, small, third):
            await handle.aresult(10)


async def test_a_ceiling_holds_for_each_key_over_kinds_and_workers(
    app: Tessera, sibling: Callable[[], Tessera]
):
    """A4, save keys by tenant, which are not built."""
    crowd = Crowd()
    ceiling = Ceiling("account", 2, by="args.account")

    def declare(on: Tessera) -> list[Any]:
        async def export(account: int) -> None:
            await crowd.wait(account)

        async def close(account: int) -> None:
            await crowd.wait(account)

        return [on.job(ceilings=[ceiling])(function) for function in (export, close)]

    export, close = declare(app)
    other = sibling()
    declare(other)
    handles = [await kind.aenqueue(account) for account in (1, 1, 1, 2) for kind in (export, close)]
    async with working(app), working(other):
        await are_inside(app, crowd, 1, 1, 2, 2)
        crowd.gate.set()
        for handle in handles:
            await handle.aresult(10)
    assert crowd.most == {1: 2, 2: 2}


async def test_a_vanished_worker_gives_its_place_back_when_its_lease_is_over(app: Tessera):
    @app.job(ceilings=[Ceiling("account", 1)])
    async def work(n: int) -> int:
        return n

    await app.adeclare()
    lost = await work.aenqueue(1)
    await vanish(app)
    waits = await work.aenqueue(2)
    async with working(app):
        assert await waits.aresult(10) == 2
        assert (await reaches(app, lost, State.SCHEDULED)).crashes == 1


# Order ------------------------------------------------------------------------------------------------------


async def ran(app: Tessera, queues: dict[str, int], settings: dict[str, Any]) -> list[str]:
    """The queues of the jobs in the order in which one slot ran them."""
    order: list[str] = []

    @app.job
    async def mark(queue: str) -> None:
        order.append(queue)

    jobs = [
        mark.with_options(queue=queue).job(queue) for queue, count in queues.items() for _ in range(count)
    ]
    await app.aenqueue_many(jobs)
    async with working(app, concurrency=1, prefetch=0, **settings):
        await filled(app, order, len(jobs))
    return order


@pytest.mark.capability("A7")
async def test_weights_share_a_worker_and_an_empty_queue_gives_its_share_away(app: Tessera):
    order = await ran(app, {"critical": 12, "low": 12}, {"queues": {"low": 1, "critical": 3, "empty": 9}})
    assert Tally(order[:16]) == {"critical": 12, "low": 4}
    for start in range(0, 16, 4):  # smoothly, in every round and not only on the whole
        assert Tally(order[start : start + 4]) == {"critical": 3, "low": 1}
    assert order[16:] == ["low"] * 8


@pytest.mark.capability("A8")
async def test_strict_order_drains_the_first_queue_before_the_second(app: Tessera):
    order = await ran(app, {"b": 4, "a": 4}, {"queues": ["a", "b"], "mode": "strict"})
    assert order == ["a"] * 4 + ["b"] * 4


@pytest.mark.capability("A8")
async def test_strict_order_is_a_mode_of_its_own_and_takes_no_weights(app: Tessera):
    with pytest.raises(ConfigError, match="strict order has no use for"):
        app.worker(queues={"a": 2, "b": 1}, mode="strict")


async def test_a_tenant_with_few_jobs_does_not_wait_for_one_with_many(app: Tessera):
    """A6, save the automatic rule for noisy tenants, which is not built."""
    order: list[str] = []

    @app.job
    async def mark(who: str) -> None:
        order.append(who)

    jobs = [mark.with_options(tenant=who).job(who) for who in ["noisy"] * 30 + ["quiet"] * 3]
    handles = await app.aenqueue_many(jobs)
    async with working(app, concurrency=1, prefetch=0):
        for handle in handles:
            await handle.aresult(10)
    assert max(place for place, who in enumerate(order) if who == "quiet") < 8


# Prefetch ---------------------------------------------------------------------------------------------------


@pytest.mark.capability("A9")
async def test_without_prefetch_nothing_is_claimed_that_cannot_start(app: Tessera):
    crowd = Crowd()

    @app.job
    async def work(n: int) -> None:
        await crowd.wait(n)

    handles = [await work.aenqueue(n) for n in range(4)]
    async with working(app, concurrency=2, prefetch=0) as worker:
        await are_inside(app, crowd, 0, 1)
        assert worker.buffered == 0
        assert [(await handle.aget()).state for handle in handles[2:]] == [State.AVAILABLE] * 2
        crowd.gate.set()
        for handle in handles:
            await handle.aresult(10)


@pytest.mark.capability("A9")
async def test_by_default_a_worker_holds_ahead_what_it_does_in_a_second_and_nothing_of_slow_work(
    app: Tessera,
):
    ahead: list[int] = []
    crowd = Crowd()

    @app.job
    async def quick() -> None:
        ahead.append(worker.buffered)

    @app.job(queue="slow")
    async def slow(n: int) -> None:
        await crowd.wait(n)

    handles = await app.aenqueue_many([quick.job() for _ in range(600)])
    async with working(app, concurrency=2, queues=["default"]) as worker:
        for handle in handles:
            await handle.aresult(20)
    assert 0 < max(ahead) <= 500
    late = [await slow.aenqueue(n) for n in range(5)]
    async with working(app, concurrency=2, queues=["slow"], grace_seconds=0) as worker:
        await are_inside(app, crowd, 0, 1)
        assert worker.buffered == 0
    assert (await late[4].aget()).attempt == 0


@pytest.mark.capability("A9")
async def test_what_was_claimed_ahead_is_leased_and_is_given_back_uncharged(app: Tessera):
    crowd = Crowd()

    @app.job
    async def work(n: int) -> None:
        await crowd.wait(n)

    handles = [await work.aenqueue(n) for n in range(4)]
    async with working(app, concurrency=1, prefetch=10, grace_seconds=0, lease_seconds=1) as worker:
        await are_inside(app, crowd, 0)
        first = [(await reaches(app, handle, State.RUNNING)).lease_until for handle in handles]

        async def are_renewed() -> bool:
            now = [(await handle.aget()).lease_until for handle in handles]
            return all(new > old for new, old in zip(now, first, strict=True))  # type: ignore[operator]

        await until(app, are_renewed, "the leases of what waits to be renewed too")
        assert worker.buffered == 3
    for handle in handles[1:]:
        job = await handle.aget()
        assert (job.state, job.attempt, job.failures, job.crashes) == (State.AVAILABLE, 0, 0, 0)


@pytest.mark.capability("A9")
async def test_a_job_under_a_limit_is_claimed_for_a_free_slot_only(app: Tessera):
    crowd = Crowd()

    @app.job(ceilings=[Ceiling("seats", 5)])
    async def work(n: int) -> None:
        await crowd.wait(n)

    handles = [await work.aenqueue(n) for n in range(3)]
    async with working(app, concurrency=1, prefetch=10) as worker:
        await are_inside(app, crowd, 0)
        assert worker.buffered == 0  # its unit would be kept from workers that have a slot
        assert (await handles[1].aget()).state is State.AVAILABLE
        crowd.gate.set()
        for handle in handles:
            await handle.aresult(10)


# Quarantine -------------------------------------------------------------------------------------------------


@pytest.mark.capability("A10")
async def test_a_payload_that_crashed_three_runs_is_set_apart_until_a_person_releases_it(app: Tessera):
    kills = app.job(isolation="process")(isolated.is_killed)
    first = await kills.aenqueue(n=1)
    async with working(app, concurrency=1):
        for crashes in (1, 2):
            assert (await reaches(app, first, State.SCHEDULED)).crashes == crashes
            await app.jobs.apromote(first)
        job = await reaches(app, first, State.QUARANTINED)
        assert (job.crashes, job.failures, job.reason) == (3, 0, "crashes_used")
        same = await kills.aenqueue(n=1)
        assert (await reaches(app, same, State.QUARANTINED)).attempt == 0
        other = await kills.aenqueue(n=2)
        assert (await reaches(app, other, State.SCHEDULED)).crashes == 1
        await app.jobs.aretry(same)
        assert (await reaches(app, same, State.SCHEDULED)).attempt == 1
    told = [event.what for event in await (await app._astore()).events(job=same.key)]
    assert told[0] == "quarantined"


# Empty polls ------------------------------------------------------------------------------------------------


class Watched:
    """A store handle that notes when it was asked for work, and says nothing by itself."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.claims: list[float] = []
        self.asked = asyncio.Event()

    def __getattr__(self, verb: str) -> Any:
        if verb == "wait":
            raise AttributeError(verb)
        return getattr(self._store, verb)

    async def claim(self, request: Any) -> Any:
        self.claims.append(asyncio.get_running_loop().time())
        self.asked.set()
        return await self._store.claim(request)

    async def asked_again(self) -> None:
        self.asked.clear()
        await signalled(self.asked, "another claim")

    @property
    def gaps(self) -> list[float]:
        return [later - sooner for sooner, later in zip(self.claims, self.claims[1:], strict=False)]


class WatchedBell(Watched):
    """The same, and it does say when something changed."""

    async def wait(self, seconds: float) -> bool:
        return bool(await self._store.wait(seconds))


async def watched(app: Tessera, kind: type[Watched]) -> tuple[Any, Watched]:
    """A worker, to be entered, and its store handle."""
    worker = working(app, sweep_seconds=60)
    handle = kind(await worker._open_store())

    async def opened() -> Any:
        return handle

    worker._open_store = opened
    return worker, handle


@pytest.mark.capability("A16")
async def test_where_nothing_notifies_empty_claims_come_ever_more_rarely(app: Tessera):
    @app.job
    async def work() -> None: ...

    worker, store = await watched(app, Watched)
    async with worker:
        while len(store.claims) < 8:
            await store.asked_again()
        gaps, full = store.gaps[:7], [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
        assert all(gap >= 0.74 * most for gap, most in zip(gaps, full, strict=True))
        assert any(
            gap < most for gap, most in zip(gaps, full, strict=True)
        )  # jitter: earlier than the full time
        await (await work.aenqueue()).aresult(10)
        found = len(store.claims)
        while len(store.claims) < found + 2:
            await store.asked_again()
        assert min(store.gaps[found - 1 :]) < 0.7  # from the beginning again


@pytest.mark.capability("A16")
async def test_a_notification_ends_the_rest_of_an_idle_worker(app: Tessera):
    @app.job
    async def work() -> None: ...

    worker, store = await watched(app, WatchedBell)
    async with worker:
        await store.asked_again()
        for _ in range(3):
            await store.asked_again()  # at rest again
            await (await work.aenqueue()).aresult(10)
    assert min(store.gaps) < 0.7  # an idle worker asks every 0.75 s at the soonest
