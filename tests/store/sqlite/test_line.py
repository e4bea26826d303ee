"""Who waits together is written together, in one transaction; a bad verb fails alone."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tessera.model.changes import Done, EditJob, Edits, Group, Held, PublishBlob, PutRecord
from tessera.model.errors import StoreClosed
from tessera.model.policy import POLICY_SPACE, Policy
from tessera.store.protocol import run_blocking
from tessera.store.sqlite import SqliteStore
from tessera.store.sqlite.driver import BATCH_LIMIT, Batch, Crew, Line, Ticket
from tests.store.sqlite.rig import adding, completing, key_of, wanting


class Sizes:
    """How many verbs each transaction held. While ``gate`` is closed the leader does not begin."""

    def __init__(self, handle, monkeypatch) -> None:
        self.sizes: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        line = handle.file.life().line
        run = line._run

        def counted(batch) -> None:
            self.began.set()
            assert self.gate.wait(10)
            if not batch[0].alone:
                self.sizes.append(len(batch))
            run(batch)

        monkeypatch.setattr(line, "_run", counted)
        self.line = line

    def hold(self) -> None:
        self.gate.clear()
        self.began.clear()

    def wait_for(self, count: int) -> None:
        """Until so many verbs stand in the line."""
        ticked = threading.Event()
        for _ in range(1_000):
            if len(self.line._waiting) >= count:
                return
            ticked.wait(0.005)
        raise AssertionError(f"{len(self.line._waiting)} of {count} wait")


@pytest.fixture
def sizes(handle, monkeypatch) -> Sizes:
    return Sizes(handle, monkeypatch)


def answering(batch: Batch) -> None:
    """A writer that says yes to everything."""
    for ticket in batch:
        ticket.answer(True)


def in_threads(*calls) -> list[threading.Thread]:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def test_threads_that_wait_share_one_transaction(handle, sizes):
    sizes.hold()
    threads = in_threads(lambda: handle.add("first"))
    assert sizes.began.wait(10)
    threads += in_threads(*(lambda n=n: handle.add(f"job{n}") for n in range(20)))
    sizes.wait_for(20)
    sizes.gate.set()
    for thread in threads:
        thread.join(10)
    assert sizes.sizes == [1, 20]
    assert len(handle.names()) == 21
    assert handle.verify() == []


def test_tasks_that_wait_share_one_transaction_and_one_hop(handle, sizes):
    store = SqliteStore(handle.file, blocking=False)

    async def main() -> None:
        await store.open()
        await asyncio.gather(*(store.commit(adding(f"job{n}")) for n in range(100)))
        await store.close()

    asyncio.run(main())
    assert sum(sizes.sizes) == 100
    assert len(sizes.sizes) <= 10
    assert len(handle.names()) == 100


def test_both_colours_stand_in_one_line(handle, sizes):
    store = SqliteStore(handle.file, blocking=False)

    async def main() -> None:
        await store.open()
        assert sizes.line.hold(1)
        tasks = [asyncio.ensure_future(store.commit(adding(f"task{n}"))) for n in range(5)]
        threads = in_threads(*(lambda n=n: handle.add(f"thread{n}") for n in range(5)))
        await asyncio.get_running_loop().run_in_executor(None, sizes.wait_for, 10)
        sizes.line.resume()
        await asyncio.gather(*tasks)
        for thread in threads:
            thread.join(10)
        await store.close()

    asyncio.run(main())
    assert sizes.sizes == [10]
    assert len(handle.names()) == 10


def held_batch(sizes, handle, *verbs):
    """Run these store calls so that they meet in one transaction; their answers or errors in order."""
    outcomes: dict[int, object] = {}

    def call(number, verb) -> None:
        try:
            outcomes[number] = run_blocking(verb())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcomes[number] = error

    sizes.hold()
    threads = in_threads(lambda: handle.add("opener"))
    assert sizes.began.wait(10)
    for number, verb in enumerate(verbs):
        threads += in_threads(lambda number=number, verb=verb: call(number, verb))
        sizes.wait_for(number + 1)
    sizes.gate.set()
    for thread in threads:
        thread.join(10)
    assert sizes.sizes == [1, len(verbs)]
    return [outcomes[number] for number in range(len(verbs))]


def test_a_verb_that_raises_does_not_fail_its_neighbours(handle, sizes):
    store = handle.store
    too_big = Group(changes=(EditJob(key_of("opener"), Edits(failures=2**70)),))
    first, bad, last = held_batch(
        sizes,
        handle,
        lambda: store.commit(adding("a")),
        lambda: store.commit([too_big, *adding("never")]),
        lambda: store.commit(adding("b")),
    )
    assert first == last == [Done()]
    assert isinstance(bad, OverflowError)
    assert handle.names() == ["opener", "b", "a"]
    assert handle.verify() == []


def test_a_claim_sees_what_stood_before_it_in_the_line(handle, sizes):
    store = handle.store
    _, claimed, again = held_batch(
        sizes,
        handle,
        lambda: store.commit(adding("a")),
        lambda: store.claim(wanting(n=5)),
        lambda: store.claim(wanting(n=5)),
    )
    assert {job.id for job in claimed.jobs} == {key_of("opener"), key_of("a")}
    assert again.jobs == ()


def test_a_policy_written_in_the_same_transaction_makes_a_claim_plan_again(handle, sizes):
    store = handle.store
    _, claimed = held_batch(
        sizes,
        handle,
        lambda: store.commit([Group(changes=(PutRecord(POLICY_SPACE, "queue/q", b"{}"),))]),
        lambda: store.claim(wanting(policy=Policy())),
    )
    assert claimed.replan
    assert claimed.policy_version == 1


def test_an_upload_is_published_once_also_within_one_transaction(handle, sizes):
    store = handle.store
    run_blocking(store.stage("u", 0, b"abc"))
    sizes.sizes.clear()
    publish = [Group(changes=(PublishBlob("u", b"s" * 32, 3),))]
    first, second = held_batch(sizes, handle, lambda: store.commit(publish), lambda: store.commit(publish))
    assert first == [Done()]
    assert second[0].why == "0 of 3 bytes are staged"


def test_a_stale_finish_beside_good_ones_is_refused_alone(handle, sizes):
    store = handle.store
    handle.add("a", "b")
    [a, b] = handle.claim(n=2).jobs
    sizes.sizes.clear()
    first, stale, last = held_batch(
        sizes,
        handle,
        lambda: store.commit(completing([a])),
        lambda: store.commit([Group((Held(b.id, b.fence - 1),))]),
        lambda: store.commit(completing([b])),
    )
    assert first == last == [Done()]
    assert "another lease" in stale[0].why


def test_a_cancelled_task_leaves_the_line_before_its_turn(handle, sizes):
    store = SqliteStore(handle.file, blocking=False)

    async def main() -> None:
        await store.open()
        sizes.hold()
        first = asyncio.ensure_future(store.commit(adding("first")))
        await asyncio.get_running_loop().run_in_executor(None, sizes.began.wait, 10)
        second = asyncio.ensure_future(store.commit(adding("second")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        sizes.gate.set()
        assert await first == [Done()]
        assert await store.commit(adding("third")) == [Done()]
        await store.close()

    asyncio.run(main())
    assert handle.names() == ["third", "first"]


def test_a_long_line_is_served_in_bounded_transactions():
    seen: list[int] = []

    def run(batch: Batch) -> None:
        seen.append(len(batch))
        answering(batch)

    line = Line(run, Crew("none", 1))
    assert line.hold(1)
    threads = in_threads(*(lambda: line.run(Ticket(lambda _: None)) for _ in range(BATCH_LIMIT + 10)))
    while len(line._waiting) < BATCH_LIMIT + 10:
        threading.Event().wait(0.01)
    line.resume()
    for thread in threads:
        thread.join(10)
    assert sorted(seen) == [10, BATCH_LIMIT]


def test_an_interrupted_leader_leaves_the_others_to_the_next():
    done: list[int] = []

    def press_ctrl_c(_) -> None:
        raise KeyboardInterrupt

    def run(batch: Batch) -> None:
        for ticket in batch:
            ticket.answer(ticket.verb(None))

    line = Line(run, Crew("none", 1))
    assert line.hold(1)
    errors = []

    def interrupted() -> None:
        try:
            line.run(Ticket(press_ctrl_c))
        except KeyboardInterrupt as error:
            errors.append(error)

    threads = in_threads(interrupted)
    while not line._waiting:
        threading.Event().wait(0.01)
    threads += in_threads(*(lambda n=n: line.run(Ticket(lambda _: done.append(n))) for n in range(3)))
    while len(line._waiting) < 4:
        threading.Event().wait(0.01)
    line.resume()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert len(errors) == 1
    assert sorted(done) == [0, 1, 2]


def test_an_error_of_the_line_itself_reaches_every_caller():
    def run(batch: Batch) -> None:
        raise ZeroDivisionError

    line = Line(run, Crew("none", 1))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            line.run(Ticket(lambda _: None))


def test_who_cannot_hold_the_line_in_time_leaves_it():
    line = Line(answering, Crew("none", 1))
    assert line.hold(1)
    assert not line.hold(0.01)
    line.resume()
    assert line.run(Ticket(lambda _: None)) is True


def test_after_its_last_verb_a_line_takes_no_more():
    line = Line(answering, Crew("none", 1))
    assert line.run(Ticket(lambda _: None), is_last=True) is True
    with pytest.raises(StoreClosed):
        line.run(Ticket(lambda _: None))


def test_a_stopped_crew_takes_no_more():
    crew = Crew("none", 1)
    crew.stop()
    with pytest.raises(StoreClosed):
        crew.put(lambda: None)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_closed_handle_raises_and_may_be_opened_again(handle, blocking):
    store = SqliteStore(handle.file, blocking=blocking)

    async def main() -> None:
        await store.open()
        await store.close()
        with pytest.raises(StoreClosed):
            await store.commit(adding("a"))
        with pytest.raises(StoreClosed):
            await store.count_jobs()
        await store.open()
        assert await store.commit(adding("a")) == [Done()]
        await store.close()

    if blocking:
        run_blocking(main())
    else:
        asyncio.run(main())


def test_closing_the_file_closes_every_handle(handle):
    handle.file.close()
    with pytest.raises(StoreClosed):
        handle.add("a")
    with pytest.raises(StoreClosed):
        handle.names()
    handle.file.close()
