"""A flight is all or nothing, in both colours, whatever happens to it; no connection is lost by it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tessera.model.errors import InvalidArgument, StoreBusy, StoreError, StoreUnavailable
from tessera.store.postgres import driver as drivers
from tessera.store.postgres.driver import Driver, Rows
from tessera.store.postgres.errors import Retry, Unasserted
from tests.store.postgres.driver_rig import Flyer


def test_a_flight_brings_the_rows_of_each_statement(flyer: Flyer):
    found = flyer.flight(
        flyer.put(1, "a"), (f"SELECT k, v FROM {flyer.table}", []), ("SELECT 1 WHERE false", [])
    )
    assert found == [[], [(1, "a")], []]
    assert flyer.flight(("SELECT true, NULL, $1::bytea", [b"\0\xff"])) == [[(True, None, b"\0\xff")]]
    assert flyer.flight() == []


REFUSED: dict[str, tuple[tuple[str, list[Any]], type[Exception]]] = {
    "a key that is taken": (("INSERT INTO {t} VALUES (1, '')", []), StoreError),
    "an assertion": (("SELECT 1 / $1", [0]), Unasserted),
    "no such table": (("SELECT * FROM {t}_gone", []), StoreError),
    "a syntax error": (("SELEC", []), StoreError),
    "no such parameter": (("SELECT $1::bigint, $2::bigint", [1]), StoreError),
    "NUL in a text": (("SELECT $1", ["a\0b"]), InvalidArgument),
    "half a surrogate pair": (("SELECT $1", ["\ud800"]), InvalidArgument),
    "a number that is too long": (("SELECT $1", [2**63]), InvalidArgument),
    "a number that is too long in an answer": (("SELECT $1 * 2", [2**62]), InvalidArgument),
    "a value of no known type": (("SELECT $1", [object()]), StoreError),
    "a lost race": (
        ("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'serialization_failure'; END $$", []),
        Retry,
    ),
}


@pytest.mark.parametrize("place", ["first", "in the middle", "last"])
@pytest.mark.parametrize("what", REFUSED)
def test_a_flight_with_a_refused_statement_leaves_nothing(flyer: Flyer, what: str, place: str):
    (text, parameters), error = REFUSED[what]
    flyer.flight(flyer.put(1))
    queries = [flyer.put(2), flyer.put(3)]
    queries.insert(
        {"first": 0, "in the middle": 1, "last": 2}[place], (text.format(t=flyer.table), parameters)
    )
    with pytest.raises(error):
        flyer.flight(*queries)
    assert flyer.keys() == [1]
    flyer.flight(flyer.put(4), flyer.put(5))
    assert flyer.keys() == [1, 4, 5]


@pytest.mark.parametrize("what", REFUSED)
def test_a_transaction_with_a_refused_statement_leaves_nothing(flyer: Flyer, what: str):
    (text, parameters), error = REFUSED[what]
    flyer.flight(flyer.put(1))

    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            await transaction.flight([flyer.put(2)])
            await transaction.flight([flyer.put(3), (text.format(t=flyer.table), parameters)], last=True)

    with pytest.raises(error):
        flyer.run(work())
    assert flyer.keys() == [1]
    flyer.flight(flyer.put(4))
    assert flyer.keys() == [1, 4]


def test_an_application_that_logs_psycopg_sees_nothing_of_a_refused_flight(flyer: Flyer, caplog):
    with pytest.raises(Unasserted):
        flyer.flight(flyer.put(1), ("SELECT 1 / $1", [0]), flyer.put(2), ("SELECT 1 / $1", [0]))
    assert caplog.records == []


def test_a_transaction_commits_with_its_last_flight(flyer: Flyer):
    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            assert await transaction.flight([flyer.put(1), ("SELECT 5", [])]) == [[], [(5,)]]
            assert flyer.keys() == []
            assert await transaction.flight([flyer.put(2)], last=True) == [[]]
            assert flyer.keys() == [1, 2]

    flyer.run(work())
    assert len(flyer.my_backends()) == 1


def test_one_flight_may_be_a_whole_transaction(flyer: Flyer):
    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            await transaction.flight([flyer.put(1)], last=True)

    flyer.run(work())
    assert flyer.keys() == [1]


def test_a_transaction_that_is_left_without_a_last_flight_leaves_nothing(flyer: Flyer):
    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            await transaction.flight([flyer.put(1)])

    flyer.run(work())
    assert flyer.keys() == []
    assert flyer.flight(flyer.put(1)) == [[]]


def test_a_transaction_that_is_left_by_an_error_leaves_nothing_and_gives_its_connection_back(flyer: Flyer):
    class Own(Exception):
        pass

    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            await transaction.flight([flyer.put(1)])
            raise Own

    for _ in range(2 * flyer.server.connections):
        with pytest.raises(Own):
            flyer.run(work())
    assert flyer.keys() == []
    assert len(flyer.my_backends()) == 1


def test_a_transaction_whose_error_was_swallowed_gives_a_clean_connection_back(flyer: Flyer):
    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            with pytest.raises(Unasserted):
                await transaction.flight([flyer.put(1), ("SELECT 1 / $1", [0])])

    flyer.run(work())
    flyer.flight(flyer.put(2))
    assert flyer.keys() == [2]


def test_a_transaction_sees_what_was_committed_while_it_waited_whatever_the_default_is(flyer: Flyer):
    async def level(driver: Driver) -> Rows:
        async with driver.transaction() as transaction:
            [found] = await transaction.flight([("SHOW transaction_isolation", [])])
            return found

    with flyer.other(options="-cdefault_transaction_isolation=serializable") as other:
        assert other.flight(("SHOW transaction_isolation", [])) == [[("serializable",)]]
        assert other.run(level(other.driver)) == [("read committed",)]


def test_no_connection_is_opened_before_the_first_flight_and_none_stays_after_a_close(flyer: Flyer):
    assert flyer.my_backends() == []
    flyer.flight(("SELECT 1", []))
    assert len(flyer.my_backends()) == 1
    flyer.run(flyer.driver.close())
    flyer.until_no_backend()


def test_a_flight_after_the_close_keeps_no_connection(flyer: Flyer):
    flyer.run(flyer.driver.close())
    assert flyer.flight(("SELECT 1", [])) == [[(1,)]]
    flyer.until_no_backend()


def test_a_connection_in_use_at_the_end_is_closed_when_it_comes_back(flyer: Flyer):
    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            await transaction.flight([flyer.put(1)])
            flyer.driver.end()
            await transaction.flight([], last=True)

    flyer.run(work())
    assert flyer.keys() == [1]
    flyer.until_no_backend()


def test_a_lock_that_is_waited_for_too_long_is_busy(flyer: Flyer):
    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            wait = [("SET LOCAL lock_timeout = '20ms'", []), flyer.wait_for_key(11)]
            await transaction.flight([flyer.put(1), *wait], last=True)

    with flyer.key_held(11), pytest.raises(StoreBusy, match="held up"):
        flyer.run(work())
    assert flyer.keys() == []


def test_a_standby_says_that_it_only_reads(flyer: Flyer):
    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            await transaction.flight([("SET TRANSACTION READ ONLY", []), flyer.put(1)], last=True)

    with pytest.raises(StoreUnavailable, match="only reads"):
        flyer.run(work())


@pytest.mark.parametrize(
    "text, words",
    [
        ("SELECT * FROM tessera_test_nowhere.t", "run: tessera migrate"),
        ("INSERT INTO pg_catalog.pg_authid VALUES ('1')", "PostgreSQL refused"),
    ],
)
def test_what_is_refused_says_what_to_do(flyer: Flyer, text: str, words: str):
    with pytest.raises(StoreError, match=words):
        flyer.flight((text, []))


def test_a_user_without_rights_is_told_so(flyer: Flyer):
    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            await transaction.flight([("SET LOCAL ROLE pg_monitor", []), flyer.put(1)], last=True)

    with pytest.raises(StoreError, match="the database user may not do this: permission denied"):
        flyer.run(work())


def test_when_all_connections_are_in_use_for_long_the_store_is_busy(flyer: Flyer, monkeypatch):
    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            await transaction.flight([flyer.put(1)])
            monkeypatch.setattr(drivers, "WAIT_SECONDS", 0.02)
            with pytest.raises(StoreBusy, match="all 1 connections to PostgreSQL were in use"):
                await flyer.driver.flight([("SELECT 1", [])])

    with flyer.other(connections=1) as flyer:
        flyer.run(work())
        assert flyer.flight(("SELECT 1", [])) == [[(1,)]]


def test_a_cancelled_flight_leaves_nothing_and_its_connection_is_given_up(async_flyer: Flyer):
    flyer = async_flyer

    async def work() -> None:
        queries = [flyer.put(1), flyer.wait_for_key(12), flyer.put(2)]
        task = asyncio.create_task(flyer.driver.flight(queries))
        await asyncio.to_thread(flyer.until_waiting, 12)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with flyer.key_held(12):
        for _ in range(2 * flyer.server.connections):
            flyer.run(work())
    flyer.until_no_backend()
    assert flyer.keys() == []
    flyer.flight(flyer.put(3))
    assert flyer.keys() == [3]


def test_a_cancelled_transaction_leaves_nothing(async_flyer: Flyer):
    flyer = async_flyer

    async def work() -> None:
        begun = asyncio.Event()

        async def hold() -> None:
            async with flyer.driver.transaction() as transaction:
                await transaction.flight([flyer.put(1)])
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hold())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    flyer.run(work())
    flyer.until_no_backend()
    assert flyer.keys() == []


def test_a_cancelled_flight_that_is_still_being_sent_leaves_nothing(async_flyer: Flyer):
    """Half of it may be with the server already: what leaves the pipeline must not commit that half."""
    flyer = async_flyer
    queries = [flyer.put(n, "x" * 100_000) for n in range(100)]

    async def work(turns: int) -> bool:
        task = asyncio.create_task(flyer.driver.flight(queries))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return False
        return True

    for turns in range(0, 60, 3):
        if flyer.run(work(turns)):
            assert len(flyer.keys()) == 100
        else:
            flyer.until_no_backend()
            assert len(flyer.keys()) in (0, 100)
        flyer.onlooker.execute(f"TRUNCATE {flyer.table}")
