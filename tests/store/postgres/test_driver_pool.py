"""Connections are shared by threads, left alone by forked children, and keep nothing of a session."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable

import pytest
from psycopg.pq import ExecStatus

from tessera.store.postgres import pool as pools
from tessera.store.postgres.driver import Connection, Rows
from tessera.store.postgres.errors import Unprepared
from tessera.store.protocol import run_blocking
from tests.servers.run import pgbouncer_url
from tests.store.postgres.driver_rig import Flyer, in_threads

THREADS = 20
FLIGHTS = 25


def test_twenty_threads_share_four_connections(blocking_flyer: Flyer):
    flyer = blocking_flyer

    def work(number: int) -> None:
        for n in range(FLIGHTS):
            k = number * FLIGHTS + n
            assert flyer.flight(flyer.put(k), ("SELECT $1", [k])) == [[], [(k,)]]

    in_threads(THREADS, work)
    assert flyer.keys() == list(range(THREADS * FLIGHTS))
    assert 1 <= len(flyer.my_backends()) <= flyer.server.connections == 4


def test_two_hundred_tasks_share_four_connections(async_flyer: Flyer):
    flyer = async_flyer

    async def work(k: int) -> None:
        async with flyer.driver.transaction() as transaction:
            await transaction.flight([flyer.put(k)])
            await transaction.flight([], last=True)

    async def all_of_them() -> None:
        await asyncio.gather(*map(work, range(200)))

    flyer.run(all_of_them())
    assert flyer.keys() == list(range(200))
    assert 1 <= len(flyer.my_backends()) <= flyer.server.connections == 4


def test_a_thread_that_finds_the_last_idle_connection_taken_opens_one(blocking_flyer: Flyer, monkeypatch):
    """The other thread is faster by exactly the moment between a look and a grasp."""
    flyer = blocking_flyer
    flyer.flight(("SELECT 1", []))
    is_dead = pools._is_dead
    found: list[list[Rows]] = []

    def look(connection: Connection) -> bool:
        if not found:
            found.append(flyer.flight(("SELECT 2", [])))  # while one is taken and none is idle
        return is_dead(connection)

    monkeypatch.setattr(pools, "_is_dead", look)
    assert flyer.flight(("SELECT 3", [])) == [[(3,)]]
    assert found == [[[(2,)]]]


def in_a_child(work: Callable[[], None]) -> None:
    """Run in a forked child, to a good end there."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the child ends here and says so
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_opens_connections_of_its_own_and_leaves_the_parents_open(blocking_flyer: Flyer):
    flyer = blocking_flyer

    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            [[(mine,)]] = await transaction.flight([("SELECT pg_backend_pid()", [])])
            in_a_child(lambda: child(mine))
            assert await transaction.flight([("SELECT pg_backend_pid()", []), flyer.put(1)]) == [
                [(mine,)],
                [],
            ]
            await transaction.flight([], last=True)

    def child(parents: int) -> None:
        assert idle != parents
        for k in range(2, 12):
            [[(pid,)], _] = flyer.flight(("SELECT pg_backend_pid()", []), flyer.put(k))
            assert pid not in (idle, parents)
        flyer.driver.end()
        flyer.run(flyer.driver.close())

    async def second() -> int:
        async with flyer.driver.transaction() as transaction:
            await transaction.flight([("SELECT 1", [])])
            [[(pid,)]] = await flyer.driver.flight([("SELECT pg_backend_pid()", [])])
            return pid

    idle = flyer.run(second())  # two connections are open now; the one that came back last is used first
    flyer.driver._pool.free.sort(key=lambda connection: connection.info.backend_pid == idle, reverse=True)
    flyer.run(work())
    assert flyer.keys() == list(range(1, 12))
    assert idle in flyer.my_backends()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_many_threads_of_a_forked_child_share_one_pool(blocking_flyer: Flyer):
    flyer = blocking_flyer
    flyer.flight(("SELECT 1", []))

    def child() -> None:
        in_threads(THREADS, lambda k: flyer.flight(flyer.put(k)))
        assert len(flyer.driver._pool.free) <= flyer.server.connections
        flyer.driver.end()

    in_a_child(child)
    assert flyer.keys() == list(range(THREADS))


def forgotten(flyer: Flyer) -> None:
    """The server forgets what was prepared, as it does when a pooler or an operator wants it so."""
    for _ in range(5):
        flyer.flight(("SELECT $1 + 1", [1]), flyer.put(len(flyer.keys())))
    [[(prepared,)]] = flyer.flight(("SELECT count(*) FROM pg_prepared_statements", []))
    assert prepared >= 2
    # By a cursor of psycopg's own, which does not learn of it.
    [connection] = flyer.driver._pool.free
    assert connection.pgconn.exec_(b"DEALLOCATE ALL").status == ExecStatus.COMMAND_OK


def test_a_flight_whose_prepared_statement_is_gone_is_sent_once_more(flyer: Flyer):
    forgotten(flyer)
    before = flyer.keys()
    assert flyer.flight(flyer.put(100), ("SELECT $1 + 1", [1])) == [[], [(2,)]]
    assert flyer.keys() == [*before, 100]
    assert not flyer.server.prepare
    for k in range(101, 110):
        flyer.flight(flyer.put(k))
    assert flyer.flight(("SELECT count(*) FROM pg_prepared_statements", [])) == [[(0,)]]


def test_a_transaction_whose_first_flight_finds_its_statement_gone_goes_on(flyer: Flyer):
    forgotten(flyer)
    before = flyer.keys()

    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            await transaction.flight([flyer.put(100), ("SELECT $1 + 1", [1])])
            await transaction.flight([flyer.put(101)], last=True)

    flyer.run(work())
    assert flyer.keys() == [*before, 100, 101]


def test_a_transaction_whose_later_flight_finds_its_statement_gone_is_to_be_begun_again(flyer: Flyer):
    forgotten(flyer)
    before = flyer.keys()

    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            await transaction.flight([(f"DELETE FROM {flyer.table}", [])])
            await transaction.flight([flyer.put(100)], last=True)

    with pytest.raises(Unprepared):
        flyer.run(work())
    assert flyer.keys() == before
    flyer.run(work())
    assert flyer.keys() == [100]


def test_a_name_that_another_client_has_taken_is_not_used(flyer: Flyer):
    flyer.flight(("SELECT 1", []))
    [connection] = flyer.driver._pool.free
    for n in range(20):
        connection.pgconn.exec_(f"PREPARE _pg3_{n} AS SELECT 99".encode())
    for k in range(10):
        flyer.flight(flyer.put(k), ("SELECT $1", [k]))
    assert flyer.keys() == list(range(10))
    assert not flyer.server.prepare


def test_behind_a_pooler_nothing_is_prepared_and_nobody_meets_anothers_session(flyer: Flyer):
    with flyer.other(pgbouncer_url(), connections=8) as pooled:

        async def work(k: int) -> None:
            async with pooled.driver.transaction() as transaction:
                [_, [(first,)]] = await transaction.flight([pooled.put(k), ("SELECT pg_backend_pid()", [])])
                [[(second,)]] = await transaction.flight([("SELECT pg_backend_pid()", [])], last=True)
                assert first == second
            for n in range(10):
                key = 1_000 + 10 * k + n
                assert await pooled.driver.flight([pooled.put(key), ("SELECT $1", [k])]) == [[], [(k,)]]

        async def all_of_them() -> None:
            await asyncio.gather(*map(work, range(30)))

        if pooled.blocking:
            in_threads(30, lambda k: run_blocking(work(k)))
        else:
            pooled.run(all_of_them())
        assert pooled.keys() == [*range(30), *range(1_000, 1_300)]
        assert not pooled.server.prepare


def test_nothing_is_set_for_a_session(flyer: Flyer):
    """What stays with a session would meet another client behind a pooler."""
    changed = "SELECT name FROM pg_settings WHERE source = 'session' ORDER BY name"
    flyer.flight(flyer.put(1), ("SELECT set_config('lock_timeout', '1s', true)", []))
    assert flyer.flight((changed, [])) == [[]]


def test_no_thread_is_started_by_flights(flyer: Flyer):
    before = threading.active_count()
    flyer.flight(flyer.put(1))
    assert threading.active_count() == before
