"""A server, or a connection, that goes away: what is said, and that the next flight gets through."""

from __future__ import annotations

import pytest

from tessera.model.errors import OutcomeUnknown, StoreUnavailable
from tessera.store.postgres.driver import Query, Rows
from tests.servers.postgres import PrivatePostgres, is_installed
from tests.servers.programs import free_port
from tests.store.postgres.driver_rig import Flyer


def test_a_connection_ended_between_two_flights_is_noticed_before_the_second(flyer: Flyer):
    for k in range(3):
        flyer.flight(flyer.put(k))
        [pid] = flyer.my_backends()
        flyer.end_backend(pid)
    assert flyer.flight(flyer.put(3)) == [[]]
    assert flyer.keys() == [0, 1, 2, 3]


def test_a_connection_ended_between_two_transactions_is_noticed_before_the_second(flyer: Flyer):
    async def work(k: int) -> None:
        async with flyer.driver.transaction() as transaction:
            await transaction.flight([flyer.put(k)])
            await transaction.flight([], last=True)

    for k in range(3):
        flyer.run(work(k))
        [pid] = flyer.my_backends()
        flyer.end_backend(pid)
    assert flyer.keys() == [0, 1, 2]


def lost_in_flight(flyer: Flyer, *queries: Query) -> list[Rows]:
    """Fly, and end the server's side while the flight waits for key 21."""
    with flyer.key_held(21):
        return flyer.meanwhile(
            flyer.driver.flight(queries), lambda: flyer.end_backend(flyer.until_waiting(21))
        )


def test_a_write_lost_in_flight_has_an_unknown_outcome(flyer: Flyer):
    with pytest.raises(OutcomeUnknown, match="was lost before the reply came"):
        lost_in_flight(flyer, flyer.put(1), flyer.wait_for_key(21), flyer.put(2))
    assert flyer.keys() == []
    flyer.flight(flyer.put(3))
    assert flyer.keys() == [3]


def test_a_question_lost_in_flight_has_no_outcome_that_could_be_unknown(flyer: Flyer):
    with pytest.raises(StoreUnavailable):
        lost_in_flight(flyer, flyer.wait_for_key(21))
    with pytest.raises(StoreUnavailable):
        lost_in_flight(flyer, ("\n  SELECT\n1", []), flyer.wait_for_key(21))


@pytest.mark.parametrize("last", [False, True])
def test_a_transaction_lost_in_flight_is_unknown_only_if_it_was_about_to_commit(flyer: Flyer, last: bool):
    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            await transaction.flight([flyer.put(1)])
            await transaction.flight([flyer.wait_for_key(22)], last=last)

    error = OutcomeUnknown if last else StoreUnavailable
    with flyer.key_held(22), pytest.raises(error):
        flyer.meanwhile(work(), lambda: flyer.end_backend(flyer.until_waiting(22)))
    assert flyer.keys() == []
    flyer.flight(flyer.put(2))
    assert flyer.keys() == [2]


def test_a_transaction_lost_between_its_flights_has_committed_nothing(flyer: Flyer):
    async def work() -> None:
        async with flyer.driver.transaction() as transaction:
            [[(pid,)]] = await transaction.flight([("SELECT pg_backend_pid()", [])])
            flyer.end_backend(pid)
            await transaction.flight([flyer.put(1)])

    with pytest.raises(StoreUnavailable):
        flyer.run(work())
    flyer.flight(flyer.put(2))
    assert flyer.keys() == [2]


def test_losing_connections_again_and_again_uses_none_of_them_up(flyer: Flyer):
    for _ in range(2 * flyer.server.connections):
        with pytest.raises(OutcomeUnknown):
            lost_in_flight(flyer, flyer.put(1), flyer.wait_for_key(21))
    flyer.flight(flyer.put(1))
    assert len(flyer.my_backends()) == 1


def test_a_server_that_is_not_there_is_unavailable(flyer: Flyer):
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/nothing"
    with flyer.other(url) as other:
        for _ in range(2 * other.server.connections):
            with pytest.raises(StoreUnavailable, match="PostgreSQL does not answer: connection failed"):
                other.flight(other.put(1))


def test_a_database_that_is_not_there_is_named(flyer: Flyer):
    with (
        flyer.other(flyer.url_of("tessera_test_no_such_database")) as other,
        pytest.raises(StoreUnavailable, match='"tessera_test_no_such_database" does not exist'),
    ):
        other.flight(("SELECT 1", []))


@pytest.mark.skipif(not is_installed(), reason="no PostgreSQL is installed to start a second server of")
def test_a_server_that_came_back_is_used_at_once(flyer: Flyer):
    with PrivatePostgres(fsync="off") as server, flyer.other(server.url) as other:
        other.flight(("CREATE TABLE t (k bigint)", []))
        for mode in ("fast", "immediate"):
            for k in range(3):
                other.flight(("INSERT INTO t VALUES ($1)", [k]))
            server.stop(mode)
            with pytest.raises(StoreUnavailable):
                other.flight(("INSERT INTO t VALUES ($1)", [9]))
            server.start()
            other.flight(("INSERT INTO t VALUES ($1)", [3]))
        assert other.flight(("SELECT count(*), max(k) FROM t", [])) == [[(8, 3)]]
