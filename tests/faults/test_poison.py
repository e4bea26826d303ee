"""Handlers that take down whatever they run in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tessera import Tessera
from tessera.model.job import Job
from tessera.model.states import State
from tests.faults import work
from tests.faults.rig import QUIET, Process, Rig

pytestmark = [pytest.mark.store("sqlite"), pytest.mark.timeout(90)]

LEASE = 1.0
MAX_CRASHES = 3
NEIGHBOURS = 12


@pytest.fixture
def app(rig: Rig) -> Iterator[Tessera]:
    app = work.use(rig.url)
    yield app
    app.close()


@pytest.mark.capability("A10", "R1")
def test_poison_is_quarantined_after_its_crashes_and_its_neighbours_complete(rig: Rig, app: Tessera) -> None:
    """T-poison. INV-11, INV-12. In the worker's own process nothing holds an abort back: the worker is
    started again."""
    neighbours, poison = [], {}
    for kind in (work.poison_loop, work.poison_thread):
        for what in (*work.FATAL, *work.HARMLESS):
            neighbours += [work.neighbour.enqueue(ms=ms).id for ms in (300, 600)]
            poison[kind.name, what] = kind.enqueue(what=what).id
    fleet = Fleet(rig, 2)
    fleet.run_until_quiet()
    deaths = fleet.deaths
    again = work.poison_loop.enqueue(what="abort").id
    fleet.run_until_quiet()
    rig.stop(*fleet.workers)
    _, rows = rig.check()
    crashes_of_neighbours = [rows[job].crashes for job in neighbours]
    rig.report(
        worker_deaths=deaths,
        crashes_of_neighbours=sum(crashes_of_neighbours),
        most=max(crashes_of_neighbours),
    )
    found = [wrong for (_, what), job in poison.items() if (wrong := _wrong(rows[job], what))]
    found += [
        f"a neighbour is {rows[job].state}" for job in neighbours if rows[job].state is not State.COMPLETED
    ]
    assert not found, "\n".join(found)
    assert any(crashes_of_neighbours), "no neighbour was hit: this run shows nothing"
    assert 2 * len(work.FATAL) <= deaths <= MAX_CRASHES * len(work.FATAL) * 2
    assert (rows[again].state, rows[again].attempt) == (State.QUARANTINED, 0)
    assert fleet.deaths == deaths, "poison that is known took down a worker again"


@pytest.mark.capability("A10", "R1")
def test_poison_in_child_processes_takes_no_worker_down(rig: Rig, app: Tessera) -> None:
    """T-poison, isolated. INV-11, INV-12."""
    poison = {
        (kind.name, what): kind.enqueue(what=what).id
        for kind in (work.poison_apart, work.poison_aside)
        for what in (*work.FATAL, *work.HARMLESS)
    }
    neighbours = [work.neighbour_apart.enqueue(ms=50 + 10 * n).id for n in range(NEIGHBOURS)]
    worker = rig.worker(queues=["apart"], lease_seconds=5, concurrency=4)
    rig.drain()
    rig.stop(worker)
    _, rows = rig.check()
    found = [wrong for (_, what), job in poison.items() if (wrong := _wrong(rows[job], what))]
    found += [
        f"a neighbour is {rows[job].state} after {rows[job].crashes} crashes"
        for job in neighbours
        if (rows[job].state, rows[job].crashes) != (State.COMPLETED, 0)
    ]
    assert not found, "\n".join(found)


class Fleet:
    """Workers that are started again when they die."""

    def __init__(self, rig: Rig, size: int) -> None:
        self._rig = rig
        self.workers = [self._worker() for _ in range(size)]
        self.deaths = 0

    def run_until_quiet(self) -> None:
        """Replace the dead until every job has come to an end."""

        def is_quiet() -> bool:
            for place, worker in enumerate(self.workers):
                if not worker.is_alive:
                    self._rig.own.note("died", pid=worker.pid)
                    self.deaths += 1
                    self.workers[place] = self._worker()
            return all(state in QUIET for (_, state), n in self._rig.counts().items() if n)

        self._rig.until(is_quiet, "every job ends")

    def _worker(self) -> Process:
        return self._rig.worker(queues=["poison"], lease_seconds=LEASE, concurrency=8)


def _wrong(row: Job, what: str) -> str:
    """What is wrong with the end of a poisoned job; '' = nothing."""
    is_fatal = what in work.FATAL
    expected = (State.QUARANTINED, MAX_CRASHES) if is_fatal else (State.DEAD, 2)
    counted = row.crashes if is_fatal else row.failures
    if (row.state, counted) == expected and (is_fatal or row.reason == "attempts_used"):
        return ""
    ends = [f"{end.end}: {end.error.splitlines()[-1] if end.error else ''}" for end in row.ends]
    return f"{row.kind} {what} is {row.state} with {row.crashes} crashes and {row.failures} failures: {ends}"
