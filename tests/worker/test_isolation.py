"""Handlers in child processes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tessera.model.changes import Edits, Group, MoveJob
from tessera.model.errors import StoreUnavailable
from tessera.model.job import extras_of
from tessera.model.states import State
from tessera.worker import isolation
from tests.shape.source_rules import ROOT
from tests.worker import isolated
from tests.worker.rig import Rig, logged, seconds

pytestmark = [pytest.mark.asyncio, pytest.mark.capability("H21")]


async def run(rig: Rig, name: str, state: State = State.COMPLETED, **payload: Any):
    """One job in a child process, to its end."""
    rig.kind(getattr(isolated, name), isolation="process")
    async with rig.working():
        job = await rig.enqueue(name, {"terms": {}}, **payload)
        await rig.ends(job, state)
    return rig.job(job)


def alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("name", ["double", "adouble"])
async def test_a_handler_runs_in_a_child_process(rig, name):
    job = await run(rig, name, n=21)
    assert job.result == b"42"


async def test_a_child_is_kept_warm_for_the_next_job(rig):
    rig.kind(isolated.pid, isolation="process")
    async with rig.working(concurrency=1):
        jobs = await rig.enqueue_many(3, "pid")
        for job in jobs:
            await rig.ends(job)
    pids = {rig.result(job) for job in jobs}
    assert len(pids) == 1
    assert os.getpid() not in pids


async def test_no_child_outlives_the_worker(rig):
    rig.kind(isolated.pid, isolation="process")
    async with rig.working():
        job = await rig.enqueue("pid")
        await rig.ends(job)
    assert not alive(rig.result(job))


async def test_a_handler_that_raises_fails_with_its_traceback(rig):
    job = await run(rig, "fails", State.SCHEDULED)
    assert (job.failures, job.crashes) == (1, 0)
    assert "ValueError: no such page" in job.ends[-1].error
    assert "in fails" in job.ends[-1].error


async def test_sys_exit_in_a_handler_is_a_failure(rig):
    job = await run(rig, "quits", State.SCHEDULED)
    assert (job.failures, job.crashes) == (1, 0)
    assert "SystemExit" in job.ends[-1].error


async def test_a_child_that_leaves_without_a_word_is_a_failure_with_its_status(rig):
    job = await run(rig, "exits_hard", State.SCHEDULED)
    assert (job.failures, job.crashes) == (1, 0)
    assert "status 3" in job.ends[-1].error


@pytest.mark.parametrize("name, signal", [("segfaults", "SIGSEGV"), ("is_killed", "SIGKILL")])
async def test_a_child_that_dies_by_a_signal_is_a_crash(rig, name, signal):
    job = await run(rig, name, State.SCHEDULED)
    assert (job.failures, job.crashes) == (0, 1)
    assert job.ends[-1].end == "crashed"
    assert signal in job.ends[-1].error


async def test_the_last_crash_quarantines_the_job(rig):
    rig.kind(isolated.is_killed, isolation="process")
    async with rig.working():
        job = await rig.ends(await rig.enqueue("is_killed", {"max_crashes": 1}), State.QUARANTINED)
    assert job.reason == "crashes_used"


async def test_control_works_from_a_child(rig):
    job = await run(rig, "snoozes", State.SCHEDULED)
    assert job.snoozes == 1


async def test_a_result_that_cannot_be_stored_aborts_the_job(rig):
    job = await run(rig, "unserialisable", State.DEAD)
    assert job.reason.startswith("aborted: ")


async def test_a_payload_that_does_not_fit_is_undecodable(rig):
    job = await run(rig, "double", State.DEAD, n="many")
    assert job.reason == "undecodable"


async def test_a_handler_that_cannot_be_found_fails(rig):
    def local() -> None: ...

    rig.kind(local, isolation="process")
    async with rig.working():
        job = await rig.ends(await rig.enqueue("local", {"terms": {}}), State.SCHEDULED)
    assert "AttributeError" in job.ends[-1].error


@pytest.mark.capability("H14")
async def test_what_a_handler_prints_goes_to_the_jobs_log(rig):
    job = await run(rig, "prints")
    lines = rig.log(job.id)
    assert {"to stdout", "to stderr", "from a program", "no newline at the end"} <= set(lines)
    assert any(line.endswith("INFO to the log") for line in lines)


async def test_output_without_end_is_cut(rig):
    job = await run(rig, "says_much", lines=300)
    lines = rig.log(job.id)
    assert len(lines) == 200
    assert lines[-1].startswith("299 x")
    assert max(map(len, lines)) == 2_000


@pytest.mark.capability("H12")
async def test_progress_and_output_come_through(rig):
    extras = extras_of(await run(rig, "reports"))
    assert extras.progress is not None
    assert (extras.progress.current, extras.progress.total, extras.progress.message) == (3, 10, "page 3")
    assert extras.output == b'{"pages":[1,2,3]}'


@pytest.mark.capability("H7")
async def test_a_timeout_ends_the_process_and_is_a_failure(rig, tmp_path):
    rig.kind(isolated.waits, isolation="process")
    async with rig.working():
        job = await rig.enqueue("waits", {"terms": {"timeout_ms": 1_500}}, started=str(tmp_path / "started"))
        row = await rig.ends(job, State.SCHEDULED)
    assert (row.failures, row.crashes, row.ends[-1].end) == (1, 0, "timed_out")


@pytest.mark.parametrize("name", ["waits", "awaits"])
async def test_cancel_reaches_a_child(rig, tmp_path, name):
    rig.kind(getattr(isolated, name), isolation="process")
    started = tmp_path / "started"
    async with rig.working(cancel_grace_seconds=20):
        job = await rig.enqueue(name, started=str(started))
        await rig.until(started.exists)
        await rig.cancel(job)
        await rig.ends(job, State.CANCELLED)


async def test_a_child_sees_ctx_cancelled_and_may_finish(rig, tmp_path):
    rig.kind(isolated.looks, isolation="process")
    started = tmp_path / "started"
    async with rig.working(cancel_grace_seconds=20):
        job = await rig.enqueue("looks", started=str(started))
        await rig.until(started.exists)
        await rig.cancel(job)
        await rig.ends(job)
    assert rig.result(job) == "saw it"


async def test_a_child_that_is_deaf_is_killed_with_all_it_started(rig, tmp_path):
    rig.kind(isolated.is_deaf, isolation="process")
    started, program = tmp_path / "started", tmp_path / "child"
    async with rig.working(cancel_grace_seconds=0.2):
        job = await rig.enqueue("is_deaf", started=str(started), child=str(program))
        await rig.until(lambda: started.exists() and started.read_text())
        await rig.cancel(job)
        await rig.ends(job, State.CANCELLED)
        await rig.until(lambda: not alive(int(started.read_text())) and not alive(int(program.read_text())))


@pytest.mark.capability("H10")
async def test_a_stop_releases_what_a_child_runs_uncharged(rig, tmp_path):
    rig.kind(isolated.is_deaf, isolation="process")
    started, program = tmp_path / "started", tmp_path / "child"
    async with rig.working(cancel_grace_seconds=0.2, grace_seconds=0):
        job = await rig.enqueue("is_deaf", started=str(started), child=str(program))
        await rig.until(lambda: started.exists() and started.read_text())
    row = rig.job(job)
    assert (row.state, row.failures, row.crashes) == (State.AVAILABLE, 0, 0)
    assert row.ends[-1].end == "released"
    assert not alive(int(started.read_text()))


@pytest.mark.capability("R3")
async def test_a_lost_lease_kills_the_child_at_once(rig, tmp_path):
    rig.kind(isolated.is_deaf, isolation="process")
    started, program = tmp_path / "started", tmp_path / "child"
    async with rig.working(cancel_grace_seconds=60, lease_seconds=0.6, grace_seconds=0) as worker:

        async def refuse(groups, call):
            raise StoreUnavailable

        job = await rig.enqueue("is_deaf", started=str(started), child=str(program))
        await rig.until(lambda: started.exists() and started.read_text())
        rig.renewer_store.on_commit = refuse
        await rig.until(lambda: not alive(int(started.read_text())))
        await rig.until(lambda: worker.stats.fenced)
        rig.renewer_store.on_commit = None
    assert rig.job(job).last_end != "released"


@pytest.mark.capability("H17")
async def test_a_child_can_enqueue(rig):
    job = await run(rig, "enqueues")
    assert rig.result(job.id) == "child-1"
    [(by, kind, args, kwargs, options)] = rig.services.enqueued
    assert (by.id, kind, args, kwargs, options) == (job.id, "other", (1,), {"to": "ada"}, {"delay": 5})


async def test_a_coroutine_in_a_child_can_enqueue_and_extend(rig):
    job = await run(rig, "aenqueues")
    assert rig.result(job.id) == "child-1"


async def test_a_child_hears_that_a_call_failed(rig):
    async def refuse(*_: object) -> object:
        raise LookupError("no such kind")

    rig.services.enqueue_from = refuse
    job = await run(rig, "enqueues", State.SCHEDULED)
    assert "LookupError: no such kind" in job.ends[-1].error


async def test_a_child_can_read_the_results_of_children(rig):
    rig.kind(isolated.joins, isolation="process")

    async def child(n: int) -> int:
        return n

    rig.kind(child)
    async with rig.working():
        parent = rig.add("joins", {"held": True})
        children = [rig.add("child", {"parent": parent.job.id}, n=n) for n in (1, 2)]
        await rig.store.commit([Group(changes=(parent, *children))])
        for each in children:
            await rig.ends(each.job.id)
        await rig.store.commit(
            [Group(changes=(MoveJob(parent.job.id, State.AVAILABLE, edits=Edits(held=False)),))]
        )
        await rig.until(lambda: rig.job(parent.job.id).is_final)
    assert rig.result(parent.job.id) == [1, 2]


async def test_a_child_cannot_split_and_is_told_so(rig):
    job = await run(rig, "splits", State.SCHEDULED)
    assert "isolated handler" in job.ends[-1].error


async def test_a_child_knows_its_job(rig):
    rig.kind(isolated.knows, isolation="process")
    async with rig.working():
        job = await rig.enqueue("knows", {"given_id": "order-17", "terms": {"timeout_ms": 60_000}})
        await rig.ends(job)
    assert rig.result(job) == {"id": "order-17", "attempt": 1, "queue": "default", "has_deadline": True}


async def test_a_child_that_does_not_start_is_a_failure(rig, monkeypatch):
    rig.kind(isolated.double, isolation="process")
    monkeypatch.setattr(isolation, "COMMAND", ("-c", "import time; time.sleep(60)"))
    async with rig.working(ready_seconds=0.2):
        job = await rig.ends(await rig.enqueue("double", {"terms": {}}, n=1), State.SCHEDULED)
    assert "did not start" in job.ends[-1].error


async def test_a_child_that_breaks_the_protocol_is_killed(rig, monkeypatch, caplog):
    rig.kind(isolated.double, isolation="process")
    monkeypatch.setattr(
        isolation, "COMMAND", ("-c", "print('\\x7f' * 100, flush=True); import time; time.sleep(60)")
    )
    async with rig.working():
        job = await rig.ends(await rig.enqueue("double", {"terms": {}}, n=1), State.SCHEDULED)
        await logged(caplog, "broke the protocol", rig)
    assert "did not start" in job.ends[-1].error


async def test_a_child_ends_by_itself_when_its_worker_is_gone(rig, tmp_path):
    """What a worker killed by SIGKILL leaves behind: pipes that end."""
    rig.kind(isolated.is_deaf, isolation="process")
    started, program = tmp_path / "started", tmp_path / "child"
    async with rig.working(cancel_grace_seconds=0.2, grace_seconds=0) as worker:
        await rig.enqueue("is_deaf", started=str(started), child=str(program))
        await rig.until(lambda: started.exists() and started.read_text())
        [child] = worker._parts.executor.children._all
        child._process.stdin.close()
        await rig.until(lambda: not alive(int(started.read_text())) and not alive(int(program.read_text())))


SCRIPT = """
import asyncio
from tests.worker.rig import Rig

def in_the_script(n: int) -> int:
    return n + 1

async def main() -> None:
    rig = Rig()
    await rig.store.open()
    rig.kind(in_the_script, isolation="process")
    async with rig.working():
        job = await rig.enqueue("in_the_script", n=41)
        await rig.ends(job)
    print(rig.result(job))

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_a_handler_of_the_main_script_is_found(tmp_path):
    script = tmp_path / "work.py"
    script.write_text(SCRIPT)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
    )
    async with seconds(30, "the script to end"):
        out, _ = await process.communicate()
    assert out.strip() == b"42"


async def test_a_child_sees_stop_while_its_handler_is_being_imported(rig, tmp_path, monkeypatch):
    """SIGTERM comes before there is a handler to interrupt; the handler then does not begin."""
    module = tmp_path / "slow_to_import.py"
    begun, went_on = tmp_path / "begun", tmp_path / "went_on"
    module.write_text(
        "import time\nfrom pathlib import Path\n"
        f"Path({str(begun)!r}).touch()\ntime.sleep(2.5)\n"
        f"def late() -> None:\n    Path({str(went_on)!r}).touch()\n"
    )

    def late() -> None: ...

    late.__module__, late.__qualname__ = "slow_to_import", "late"
    rig.kind(late, isolation="process")
    monkeypatch.syspath_prepend(str(tmp_path))
    async with rig.working(cancel_grace_seconds=20):
        job = await rig.enqueue("late")
        await rig.until(begun.exists)
        await rig.cancel(job)
        await rig.ends(job, State.CANCELLED)
    assert not went_on.exists()
