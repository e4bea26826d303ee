"""Partitions of the archive are made ahead and dropped, and nothing is lost, miscounted or held up by it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec
import psycopg
import pytest

from tessera.model.changes import MoveJob
from tessera.model.job import Keep
from tessera.model.states import EventLevel, State
from tessera.store.postgres import partitions
from tests.conformance.rig import Rig, add, key_of, sweep
from tests.servers import schemas
from tests.store.postgres.driver_rig import until
from tests.store.postgres.upkeep_rig import DAY, days, keep_partitions, rigged, rows, schema, sql

pytestmark = [pytest.mark.store("postgresql"), pytest.mark.capability("F14")]

QUIET = {"events": EventLevel.ODD}


@pytest.fixture(params=["direct", "pgbouncer"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rigged(pooled=request.param == "pgbouncer") as rig:
        yield rig


@pytest.fixture
def direct() -> Iterator[Rig]:
    with rigged(pooled=False) as rig:
        yield rig


@pytest.fixture
def other() -> Iterator[psycopg.Connection]:
    """Somebody else's session."""
    with psycopg.connect(schemas.direct_url()) as connection:
        yield connection


def end_one(rig: Rig, name: str, *, after_days: int = 1, to: State = State.COMPLETED, **fields) -> str:
    """Archive a job, to go after so many days; the partition of that day."""
    rig.start(name, **{**QUIET, "keep": Keep(completed=after_days * DAY, dead=after_days * DAY), **fields})
    rig.move(name, to)
    return partitions.name_of(rig.now // DAY + after_days)


@pytest.mark.parametrize(
    "day, name", [(0, "done_d19700101"), (20_788, "done_d20261201"), (19_782, "done_d20240229")]
)
def test_a_partition_is_named_by_its_day(day, name):
    assert (partitions.name_of(day), partitions.day_of(name)) == (name, day)


@pytest.mark.parametrize("name", ["done_never", "done_other", "done_d2026", "done_d20261201x", "d20261201"])
def test_other_tables_are_of_no_day(name):
    assert partitions.day_of(name) is None


def test_partitions_stand_ready_for_the_next_days(rig):
    today = rig.now // DAY
    names = [partitions.name_of(day) for day in range(today, today + partitions.DAYS_AHEAD)]
    assert keep_partitions(rig) == [f"{name} is made" for name in names]
    assert days() == names
    assert keep_partitions(rig) == []
    rig.advance(DAY)
    keep_partitions(rig)
    assert days() == [*names[1:], partitions.name_of(today + partitions.DAYS_AHEAD)]


def test_what_ended_quietly_goes_with_its_day_and_counts_and_log_know(rig):
    """INV-15: nothing is deleted row by row, and nothing vanishes unrecorded."""
    keep_partitions(rig)
    day = end_one(rig, "a")
    end_one(rig, "c")
    end_one(rig, "d")
    end_one(rig, "b", to=State.DEAD, queue="other")
    rig.do(add("live"))
    assert rows(day) == 4
    rig.advance(2 * DAY)
    assert rig.due().gone == ()
    assert f"{day} is dropped with 4 rows" in keep_partitions(rig)
    assert rig.counts() == {("q", State.AVAILABLE): 1}
    assert rig.find("a") is None
    told = {e.queue: msgspec.json.decode(e.data) for e in rig.events() if e.what == "evicted"}
    assert told == {"q": {"count": 3}, "other": {"count": 1}}
    assert rows("closing") == 0


def test_a_day_that_is_not_over_stays(direct):
    keep_partitions(direct)
    day = end_one(direct, "a")
    direct.advance(2 * DAY - direct.now % DAY - 1)
    keep_partitions(direct)
    assert day in days()
    direct.advance(1)
    keep_partitions(direct)
    assert day not in days()


def test_a_day_waits_for_those_whose_going_has_consequences(rig):
    """A key that an archived job holds is freed, its tags are forgotten."""
    keep_partitions(rig)
    day = end_one(rig, "a", slots=("id:a",), tags=("red",))
    end_one(rig, "b")
    rig.advance(2 * DAY)
    assert [line for line in keep_partitions(rig) if day in line] == [
        f"{day} waits: 1 rows with keys, tags, heirs or a full log go one by one before"
    ]
    assert rig.due().gone == (key_of("a"),)
    sweep(rig)
    keep_partitions(rig)
    assert day not in days()
    rig.do(add("c", slots=("id:a",)))


def test_a_redrive_out_of_a_partition_and_back_takes_the_day_it_ends_in(direct):
    keep_partitions(direct)
    end_one(direct, "a", after_days=2, to=State.DEAD)
    direct.do(MoveJob(key_of("a"), State.AVAILABLE))
    direct.advance(DAY)
    direct.take()
    direct.move("a", State.DEAD)
    assert rows(partitions.name_of(direct.now // DAY + 2)) == 1


# Longer retention -------------------------------------------------------------------------------------------


def test_days_of_a_long_retention_are_made_as_soon_as_one_row_shows_it(rig):
    keep_partitions(rig)
    day = end_one(rig, "a", after_days=20)
    assert rows("done_other") == 1
    assert f"{day} is made, 1 rows moved into it" in keep_partitions(rig)
    assert (rows("done_other"), rows(day)) == (0, 1)
    assert rig.state("a") is State.COMPLETED
    # From now on the day after the last is there before anybody needs it.
    rig.advance(DAY)
    later = end_one(rig, "b", after_days=20)
    assert rows(later) == 1
    keep_partitions(rig)
    assert partitions.name_of(rig.now // DAY + 21) in days()


def test_what_is_kept_longer_than_is_foreseen_goes_one_by_one(direct):
    end_one(direct, "a", after_days=partitions.DAYS_FORESEEN + 5)
    keep_partitions(direct)
    assert (rows("done_other"), len(days())) == (1, partitions.DAYS_AHEAD)
    direct.advance((partitions.DAYS_FORESEEN + 6) * DAY)
    sweep(direct)
    assert direct.counts() == {}


def test_what_is_kept_for_ever_makes_no_partition(direct):
    end_one(direct, "a", keep=Keep(completed=-1))
    keep_partitions(direct)
    assert (rows("done_never"), len(days())) == (1, partitions.DAYS_AHEAD)


def test_too_many_rows_to_move_stay_where_they_are_and_go_one_by_one(direct, monkeypatch):
    monkeypatch.setattr(partitions, "MOVED_AT_MOST", 1)
    day = end_one(direct, "a")
    end_one(direct, "b")
    assert any(line.startswith(f"{day} is not made: over 1 rows") for line in keep_partitions(direct))
    assert (day in days(), rows("done_other")) == (False, 2)
    direct.advance(2 * DAY)
    sweep(direct)
    assert direct.counts() == {}


def test_rows_move_whole_also_those_of_newer_code(direct):
    """A column that this release does not know moves with its row."""
    end_one(direct, "a", payload=b"p" * 5_000, result=b"r")
    before = direct.job("a")
    sql(f"ALTER TABLE {schema()}.done ADD COLUMN newer text")
    try:
        sql(f"UPDATE {schema()}.done SET newer = 'n'")
        keep_partitions(direct)
        assert rows("done_other") == 0
        assert direct.job("a") == before
        assert rows("done WHERE newer = 'n'") == 1
    finally:
        sql(f"ALTER TABLE {schema()}.done DROP COLUMN newer")


# Others meanwhile -------------------------------------------------------------------------------------------


def test_a_row_that_leaves_while_its_day_is_counted_is_not_counted_out(direct):
    """INV-15: the count is thrown away, and made again in the next round."""
    keep_partitions(direct)
    day = end_one(direct, "a", to=State.DEAD)
    end_one(direct, "b", to=State.DEAD)
    direct.advance(2 * DAY)
    site = direct.store._site
    driver = site.driver
    leave = [lambda: direct.do(MoveJob(key_of("a"), State.AVAILABLE))]

    class Meanwhile:
        """Others act when the day was counted, before anything is made of the count."""

        transaction = driver.transaction

        async def flight(self, queries):
            found = await driver.flight(queries)
            if day in queries[0][0] and "GROUP BY" in queries[0][0]:
                site.driver = driver
                leave.pop()()
            return found

    site.driver = Meanwhile()
    assert f"{day} waits: its rows changed while they were counted" in keep_partitions(direct)
    assert leave == []
    direct.check()
    assert f"{day} is dropped with 1 rows" in keep_partitions(direct)
    assert direct.counts() == {("q", State.AVAILABLE): 1}


def test_a_change_that_is_not_committed_yet_holds_the_closing_up(direct, other):
    keep_partitions(direct)
    day = end_one(direct, "a", to=State.DEAD)
    direct.advance(2 * DAY)
    other.execute(f"UPDATE {schema()}.done SET reason = 'x'")
    assert f"{day} waits: a lock was not to be had within 200 ms" in keep_partitions(direct)
    other.commit()
    keep_partitions(direct)
    assert direct.counts() == {}


def test_a_partition_that_somebody_reads_is_left_for_the_next_time(rig, other):
    """No claim and no finish waits behind a drop that waits."""
    keep_partitions(rig)
    day = end_one(rig, "a")
    rig.advance(2 * DAY)
    other.execute(f"SELECT * FROM {schema()}.{day}")
    assert f"{day} waits: a lock was not to be had within 200 ms" in keep_partitions(rig)
    assert rig.find("a") is not None
    rig.check()
    other.rollback()
    assert f"{day} is dropped with 1 rows" in keep_partitions(rig)


def test_a_partition_that_cannot_be_made_now_is_made_the_next_time(direct, other):
    other.execute(f"SELECT * FROM {schema()}.done_other")
    assert all(line.endswith("within 200 ms") for line in keep_partitions(direct))
    assert days() == []
    other.rollback()
    keep_partitions(direct)
    assert len(days()) == partitions.DAYS_AHEAD


def test_while_somebody_changes_the_tables_partitions_wait(direct, other):
    key = f'tessera "{schema()}"'
    other.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (key,))
    assert all("waits" in line for line in keep_partitions(direct))
    assert days() == []


def test_a_finish_that_waited_while_the_partition_of_its_day_was_made_goes_into_it(direct, other):
    """No write fails by what others do: the server refuses the row, and the commit begins again."""
    direct.start("a", **QUIET, keep=Keep(completed=DAY))
    number = direct.now // DAY + 1
    make = [
        f"CREATE TABLE {{p}} (LIKE {schema()}.done)",
        f"LOCK TABLE {schema()}.done_other",
        partitions.MAKE[-1],
    ]
    day = f"{schema()}.{partitions.name_of(number)}"
    for statement in make:
        text = statement.replace("{p}", day).replace("{s}", schema())
        other.execute(text.replace("{from}", str(number * DAY)).replace("{to}", str(number * DAY + DAY)))
    thread = threading.Thread(target=direct.move, args=("a", State.COMPLETED))
    thread.start()
    try:
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
        until(
            lambda: (
                schemas.connection_of_this_process().execute(query, (f"{schema()}.done_other",)).fetchone()
                != (0,)
            ),
            "it waits",
        )
        other.commit()
    finally:
        other.rollback()
        thread.join(20)
    assert (rows("done_other"), rows(partitions.name_of(number))) == (0, 1)
    assert direct.state("a") is State.COMPLETED


def test_a_tally_that_was_broken_off_is_taken_up_again(direct):
    """Whoever closed a day and died has left the trigger and the line; both are good."""
    keep_partitions(direct)
    day = end_one(direct, "a")
    direct.advance(2 * DAY)
    direct.run(partitions._watch(direct.store._site, direct.now // DAY - 1))
    assert rows("closing") == 1
    assert f"{day} is dropped with 1 rows" in keep_partitions(direct)
    direct.check()
    assert rows("closing") == 0
