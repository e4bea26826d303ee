"""Opening, closing, waiting for something to happen, and working inside the caller's own transaction."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tessera.model.changes import AtVersion, Done, Edge, Edits, Group, Held, MoveJob, PutRecord, Refused
from tessera.model.errors import ForeignStore, NotInTransaction, StoreClosed, Unsupported
from tessera.model.job import Keep
from tessera.model.policy import POLICY_SPACE, Ceiling
from tessera.model.states import State
from tessera.store.protocol import Notifies
from tests.conformance.callers import caller_of
from tests.conformance.rig import Rig, add, key_of, name_of
from tests.offered import skip_unless_offered

PROMPTLY = 20.0
"""Seconds that a wake-up may take before a wait gives up: only a lost one takes so long."""


def test_a_closed_store_says_so_and_opens_again_with_all_it_had(rig: Rig):
    rig.do(add("a"))
    rig.run(rig.store.open())
    rig.run(rig.store.close())
    rig.run(rig.store.close())
    for verb in (
        rig.store.get_jobs([key_of("a")]),
        rig.store.commit([]),
        rig.store.due(1),
        rig.store.verify(),
    ):
        with pytest.raises(StoreClosed):
            rig.run(verb)
    rig.run(rig.store.open())
    assert rig.claim_names() == ["a"]


def test_a_store_knows_its_installation_and_its_schema(rig: Rig):
    assert len(rig.store.installation) == 16
    stored, written = rig.run(rig.store.schema())
    assert stored == written
    assert rig.run(rig.store.migrate(dry_run=True)) == []


# wait -------------------------------------------------------------------------------------------------------


def woken_by(rig: Rig, act: Callable[[], object]) -> bool:
    """Whether what another thread does to the store ends a wait, whichever of the two begins first."""
    assert isinstance(rig.store, Notifies)
    thread = threading.Thread(target=act)
    thread.start()
    try:
        return rig.run(rig.store.wait(PROMPTLY))
    finally:
        thread.join()


@pytest.mark.capability("F4")
@pytest.mark.parametrize("what", ["enqueue", "resume", "free unit"])
def test_a_sleeper_is_woken_when_a_job_may_have_become_claimable(rig: Rig, neighbour: Rig, what: str):
    """INV-28."""
    job = None
    if what == "free unit":
        rig.declare({"c": Ceiling(1)})
        rig.do(add("a", needs="c"), add("b", needs="c"))
        job = rig.take(n=2)

    def act() -> None:
        if job is not None:
            neighbour.do(MoveJob(job.id, State.COMPLETED))
        elif what == "enqueue":
            neighbour.do(add("a"))
        else:
            neighbour.do(PutRecord(POLICY_SPACE, "queue/q", b'{"paused":false}'))

    assert woken_by(rig, act)


@pytest.mark.capability("P24")
@pytest.mark.parametrize("kept", [True, False])
def test_a_sleeper_is_woken_when_a_watched_job_ends(rig: Rig, neighbour: Rig, kept: bool):
    job = rig.start("a", watched=True, keep=Keep() if kept else Keep(completed=0))
    assert woken_by(rig, lambda: neighbour.do(MoveJob(job.id, State.COMPLETED, edits=Edits(result=b"1"))))


def test_a_wait_in_which_nothing_happens_ends_by_itself(rig: Rig):
    assert isinstance(rig.store, Notifies)
    rig.run(rig.store.wait(0.01))


def test_threads_that_share_a_handle_are_never_handed_the_same_job(rig: Rig, neighbour: Rig):
    """INV-5, INV-7, INV-15: each is claimed and completed once, whatever else is written meanwhile."""
    rig.do(*(add(f"j{number:03}", needs="c") for number in range(120)))

    def work(number: int) -> list[str]:
        done: list[str] = []
        while jobs := neighbour.claim(n=3, holder=f"h{number}"):
            for job in jobs:
                neighbour.complete(job)
                done.append(name_of(job.id))
            neighbour.do(add(f"more{number}-{len(done)}", "other"))
        return done

    with ThreadPoolExecutor(4) as threads:
        done = [name for names in threads.map(work, range(4)) for name in names]
    assert sorted(done) == [f"j{number:03}" for number in range(120)]
    assert rig.counts()["q", State.COMPLETED] == 120


# joined -----------------------------------------------------------------------------------------------------


@pytest.fixture
def caller(rig: Rig):
    """A connection of the application to the database that the store lies in."""
    skip_unless_offered(rig.store.name, "P3")
    caller = caller_of(rig)
    yield caller
    caller.close()


@pytest.mark.capability("P3")
def test_a_job_of_the_callers_transaction_is_there_iff_it_was_committed(rig: Rig, caller):
    """INV-4: with a committed control, since rolled back and never stored look alike."""
    caller.execute("BEGIN")
    caller.execute("INSERT INTO orders VALUES (1)")
    caller.run(caller.joined().commit([Group((), (add("control"),))]))
    assert rig.find("control") is None, "nobody sees it before the commit"
    caller.execute("COMMIT")
    assert rig.state("control") is State.AVAILABLE

    caller.execute("BEGIN")
    caller.execute("INSERT INTO orders VALUES (2)")
    store = caller.joined()
    caller.run(store.commit([Group((), (add("lost"), PutRecord("notes", "n", b"1")))]))
    [seen] = caller.run(store.get_jobs([key_of("lost")]))
    assert seen is not None
    caller.execute("ROLLBACK")
    assert rig.find("lost") is None
    assert rig.record("notes", "n") is None
    assert caller.execute("SELECT n FROM orders") == [(1,)]
    assert rig.claim_names(n=9) == ["control"]


@pytest.mark.capability("P3")
def test_a_refused_group_leaves_the_callers_transaction_as_it_was(rig: Rig, caller):
    """INV-4, INV-33."""
    rig.do(add("taken", slots=("u:x",)))
    caller.execute("BEGIN")
    caller.execute("INSERT INTO orders VALUES (1)")
    stale = Group((AtVersion("notes", "n", 7),), (add("a"),))
    unique = Group((), (add("b", slots=("u:x",)),))
    answers = caller.run(caller.joined().commit([stale, unique]))
    assert [type(answer) for answer in answers] == [Refused, Refused]
    assert caller.in_transaction
    caller.execute("COMMIT")
    assert (rig.find("a"), rig.find("b")) == (None, None)
    assert caller.execute("SELECT n FROM orders") == [(1,)]


@pytest.mark.capability("P3")
def test_what_a_worker_finishes_in_the_callers_transaction_is_finished_iff_it_was_committed(rig: Rig, caller):
    """INV-4, INV-6: with counters, keys and a dependant."""
    rig.declare({"c": Ceiling(1)})
    rig.do(add("a", needs="c", slots=("u:x",)), add("child", after=[Edge(key_of("a"), key_of("child"))]))
    job = rig.take()
    group = Group((Held(job.id, job.fence, "completed"),), (MoveJob(job.id, State.COMPLETED),))
    for end in ("ROLLBACK", "COMMIT"):
        caller.execute("BEGIN")
        assert caller.run(caller.joined().commit([group])) == [Done()]
        assert rig.state("child") is State.PENDING
        caller.execute(end)
    assert rig.states("a", "child") == [State.COMPLETED, State.AVAILABLE]
    assert rig.counter("c") == (0, 0)
    rig.do(add("b", slots=("u:x",)))


def test_a_connection_without_an_open_transaction_cannot_be_joined(rig: Rig, caller):
    with pytest.raises(NotInTransaction):
        caller.run(caller.joined().commit([Group((), (add("a"),))]))
    assert rig.find("a") is None


def test_a_connection_to_another_database_cannot_be_joined(rig: Rig, caller, tmp_path):
    with closing(caller.to_another_database(tmp_path)) as other:
        other.execute("BEGIN")
        with pytest.raises(ForeignStore):
            other.run(other.joined().commit([Group((), (add("a"),))]))


def test_what_is_no_connection_cannot_be_joined(rig: Rig, caller):
    caller.connection, connection = object(), caller.connection
    with pytest.raises(Unsupported):
        caller.joined()
    caller.connection = connection
