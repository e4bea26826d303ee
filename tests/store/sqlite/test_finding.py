"""Every filter finds in SQLite, through whatever index, what a walk over all rows finds in memory."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tessera.model.changes import AddJob, After, EditJob, Edits, Group, Held, MoveJob, PutRecord
from tessera.model.ids import JobId
from tessera.model.job import End, Job, Need
from tessera.model.policy import POLICY_SPACE, Ceiling, Policy
from tessera.model.queries import ClaimRequest, Filter, Page, Want
from tessera.model.states import State
from tessera.store import filters
from tessera.store.memory import MemoryStore, World
from tessera.store.protocol import Store, run_blocking
from tessera.store.sqlite import SqliteFile, SqliteStore, finding
from tests.store.sqlite.rig import Clock

POLICY = Policy(version=1, counters={"c": Ceiling(2)})
PARENT = JobId(b"p" * 16)


def fill(store: Store) -> None:
    """The same 700 jobs in ten states, by one seed."""
    chance = random.Random(7)
    run_blocking(store.open())
    run_blocking(store.commit([Group(changes=(PutRecord(POLICY_SPACE, "counter/c", b"{}"),))]))
    groups = []
    for number in range(700):
        job = Job(
            id=JobId(number.to_bytes(2, "big") * 8),
            kind=chance.choice(["mail", "pdf"]),
            queue=chance.choice(["big"] * 8 + ["small", "other"]),
            tenant=chance.choice(["", "eu"]),
            tags=tuple(chance.sample(["a", "b", "c"], chance.choice([0, 0, 1, 2]))),
            needs=(Need("c"),) if chance.random() < 0.05 else (),
            parent=PARENT if chance.random() < 0.1 else None,
            held=chance.random() < 0.05,
        )
        groups.append(Group(changes=(AddJob(job, After(60_000 if chance.random() < 0.1 else 0)),)))
    run_blocking(store.commit(groups))
    for holder, n in (("one", 150), ("two", 150), ("one", 60)):
        wants = (Want("small", 9), Want("big", n))
        claimed = run_blocking(store.claim(ClaimRequest(holder, wants, n, 30_000, POLICY)))
        assert not claimed.replan
        run_blocking(store.commit([_ending(job, chance) for job in claimed.jobs]))


def _ending(job: Job, chance: random.Random) -> Group:
    to = chance.choice(
        [State.COMPLETED] * 3 + [State.DEAD, State.CANCELLED, State.QUARANTINED, State.WAITING, None, None]
    )
    guard = Held(job.id, job.fence)
    if to is None:
        return Group((guard,), (EditJob(job.id, Edits(cancel_requested=chance.random() < 0.3)),))
    end = End(job.attempt, "x", job.claimed_at, 0)
    return Group((guard,), (MoveJob(job.id, to, reason=chance.choice(["boom: 1", "lost"]), end=end),))


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    clock = Clock()
    file = SqliteFile(
        str(tmp_path_factory.mktemp("finding") / "work.db"),
        clock=clock,
        synchronous="normal",
        ballast_bytes=0,
    )
    memory, sqlite = MemoryStore(World(bytes(16), clock), blocking=True), SqliteStore(file, blocking=True)
    fill(memory)
    fill(sqlite)
    assert run_blocking(memory.count_jobs()) == run_blocking(sqlite.count_jobs())
    yield memory, sqlite
    assert run_blocking(sqlite.verify()) == []
    run_blocking(sqlite.close())


def found(store: Store, which: Filter, size: int) -> tuple[list[Job], int]:
    """All jobs of a filter, page by page, and how many rows were looked at."""
    jobs: list[Job] = []
    examined, after = 0, b""
    while True:
        page = run_blocking(store.find_jobs(which, Page(after, size)))
        assert len(page.jobs) <= size
        jobs += page.jobs
        examined += page.examined
        after = page.after
        if not after:
            return jobs, examined


STATES = [(), *((state,) for state in State), (State.DEAD, State.CANCELLED), (State.PENDING, State.BLOCKED),
          (State.RUNNING, State.DEAD), (State.AVAILABLE, State.SCHEDULED, State.COMPLETED)]  # fmt: skip
QUEUES = [(), ("big",), ("small",), ("small", "other"), ("none",)]
MORE = [
    Filter(kinds=("pdf",)),
    Filter(tenant="eu"),
    Filter(tags_all=("a",)),
    Filter(tags_all=("a", "b"), states=(State.AVAILABLE,)),
    Filter(tags_any=("b", "c")),
    Filter(tags_any=("none",)),
    Filter(parent=PARENT),
    Filter(parent=PARENT, states=(State.COMPLETED,)),
    Filter(holder="one"),
    Filter(holder="one", cancel_requested=True),
    Filter(holder="two", cancel_requested=False),
    Filter(cancel_requested=True),
    Filter(blocked_on="c"),
    Filter(reason="boom"),
    Filter(ids=tuple(JobId(n.to_bytes(2, "big") * 8) for n in (3, 3, 500, 699, 9_999))),
    Filter(ids=(JobId(b"\0\3" * 8),), queues=("none",)),
]


@pytest.mark.parametrize("states,queues", [*product(STATES, QUEUES)])
def test_queues_and_states_find_the_same_in_the_same_order(stores, states, queues):
    memory, sqlite = stores
    which = Filter(states=states, queues=queues)
    assert found(sqlite, which, 50)[0] == found(memory, which, 50)[0]


@pytest.mark.parametrize("which", MORE)
@pytest.mark.parametrize("size", [7, 200])
def test_other_filters_find_the_same_in_the_same_order(stores, which, size):
    memory, sqlite = stores
    assert found(sqlite, which, size)[0] == found(memory, which, size)[0]


@pytest.mark.parametrize(
    "which",
    [
        Filter(states=(State.PENDING,)),
        Filter(states=(State.QUARANTINED,), queues=("small",)),
        Filter(states=(State.DEAD,), queues=("small",)),
        Filter(states=(State.SCHEDULED,), queues=("other",)),
        Filter(states=(State.BLOCKED,)),
        Filter(parent=PARENT),
        Filter(tags_all=("c",)),
        Filter(holder="two"),
        Filter(blocked_on="c"),
    ],
)
def test_few_rows_among_many_are_found_without_looking_at_the_many(stores, which):
    _, sqlite = stores
    jobs, examined = found(sqlite, which, 200)
    assert jobs
    assert examined <= len(jobs)


def test_a_walk_stops_after_its_limit_says_how_far_it_came_and_can_go_on(stores, monkeypatch):
    _, sqlite = stores
    for module in (filters, finding):
        monkeypatch.setattr(module, "EXAMINED_LIMIT", 100)
    page = run_blocking(sqlite.find_jobs(Filter(kinds=("none",)), Page()))
    assert (page.jobs, page.examined) == ((), 100)
    assert page.after
    assert found(sqlite, Filter(kinds=("none",)), 50) == ([], 700)
