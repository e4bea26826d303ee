"""Many processes on one file: none sees half a commit, none is missed, none runs what another runs."""

from __future__ import annotations

import asyncio
from time import monotonic

from tessera.store.protocol import run_blocking
from tessera.store.sqlite import SqliteStore
from tessera.store.sqlite.driver import Watch
from tests.store.sqlite.rig import child, hear, output_of, tell

ADDER = """
import sys
from tests.store.sqlite.rig import *
handle = Handle(SqliteFile(sys.argv[1], ballast_bytes=0))
print("open", flush=True)
for line in sys.stdin:
    handle.add(line.strip())
    print("added", flush=True)
handle.close()
"""
DRAINER = """
import sys
from tests.store.sqlite.rig import *
handle = Handle(SqliteFile(sys.argv[1], synchronous="normal", ballast_bytes=0))
sys.stdin.readline()
seen = []
while True:
    jobs = handle.claim(n=7, holder=sys.argv[2]).jobs
    if not jobs:
        break
    handle.complete(jobs)
    seen += [job.id.rstrip(b"\\0").decode() for job in jobs]
handle.close()
print(*seen)
"""


def test_a_job_of_another_process_wakes_whoever_waits_in_both_colours(path, handle):
    other = child(ADDER, path)
    assert hear(other) == "open"
    assert not run_blocking(handle.store.wait(0.1))
    tell(other, "a")
    began = monotonic()
    assert run_blocking(handle.store.wait(10))
    assert monotonic() - began < 5
    assert hear(other) == "added"
    assert [job.id for job in handle.claim().jobs]

    async def main() -> None:
        store = SqliteStore(handle.file, blocking=False)
        await store.open()
        waiting = asyncio.ensure_future(store.wait(10))
        await asyncio.sleep(0)
        tell(other, "b")
        assert await waiting
        await store.close()

    asyncio.run(main())
    assert hear(other) == "added"
    output_of(other)


def test_what_was_written_between_a_claim_and_the_wait_ends_the_wait(path, handle):
    other = child(ADDER, path)
    assert hear(other) == "open"
    assert handle.claim().jobs == ()
    tell(other, "a")
    assert hear(other) == "added"
    assert run_blocking(handle.store.wait(10))
    output_of(other)


def test_a_neighbour_in_this_process_wakes_whoever_waits(handle):
    assert handle.claim().jobs == ()
    handle.add("a")
    assert run_blocking(handle.store.wait(10))
    assert not run_blocking(handle.store.wait(0.02))


def test_a_commit_that_gives_nobody_work_wakes_nobody(handle):
    handle.add("a")
    jobs = handle.claim().jobs
    handle.complete(jobs)
    assert not run_blocking(handle.store.wait(0.05))


def test_processes_that_drain_one_queue_share_it_without_an_overlap(path, handle):
    names = [f"job{number}" for number in range(600)]
    handle.add(*names)
    others = [child(DRAINER, path, f"holder{n}") for n in range(3)]
    for other in others:
        tell(other, "go")
    done = [output_of(other).split() for other in others]
    assert sorted(name for names_of_one in done for name in names_of_one) == sorted(names)
    assert handle.claim().jobs == ()
    assert handle.verify() == []


def test_a_watch_that_saw_nothing_for_long_looks_more_rarely(monkeypatch):
    monkeypatch.setattr(Watch, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(Watch, "SLOW_SECONDS", 60.0)
    looks: list[int] = []

    def look() -> bool:
        looks.append(1)
        return False

    watch = Watch(look)
    with watch:
        pass
    watch.stop()
    assert looks == []
