"""A SQLite store behind plain calls, and jobs by their names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tessera.model.changes import AddJob, Answer, Done, Edits, Group, Held, MoveJob
from tessera.model.ids import JobId
from tessera.model.job import End, Job
from tessera.model.policy import Policy
from tessera.model.queries import Claimed, ClaimRequest, Filter, Page, Want
from tessera.model.states import State
from tessera.store.protocol import run_blocking
from tessera.store.sqlite import SqliteFile, SqliteStore

START = 1_800_000_000_000
ROOT = Path(__file__).resolve().parents[3]


class Clock:
    """Stands where the test puts it."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


def key_of(name: str) -> JobId:
    return JobId(name.encode().ljust(16, b"\0"))


def job_of(name: str, queue: str = "q", **fields) -> Job:
    return Job(**{"id": key_of(name), "kind": "work", "queue": queue} | fields)


def adding(*names: str, queue: str = "q", **fields) -> list[Group]:
    """One group a job."""
    return [Group(changes=(AddJob(job_of(name, queue, **fields)),)) for name in names]


def wanting(queue: str = "q", n: int = 1, holder: str = "h", policy: Policy | None = None) -> ClaimRequest:
    return ClaimRequest(holder, (Want(queue, n),), n, 30_000, policy or Policy())


def completing(jobs: Iterable[Job], result: bytes | None = None) -> list[Group]:
    """What a worker commits for jobs it has run."""
    return [
        Group(
            (Held(job.id, job.fence, "completed"),),
            (
                MoveJob(
                    job.id,
                    State.COMPLETED,
                    edits=Edits(result=result),
                    end=End(job.attempt, "completed", job.claimed_at, 0, job.holder),
                ),
            ),
        )
        for job in jobs
    ]


class Handle:
    """A blocking handle."""

    def __init__(self, file: SqliteFile) -> None:
        self.file = file
        self.store = SqliteStore(file, blocking=True)
        run_blocking(self.store.open())

    def add(self, *names: str, queue: str = "q", **fields) -> list[Answer]:
        return self.commit(adding(*names, queue=queue, **fields))

    def commit(self, groups: list[Group], request_id: str = "") -> list[Answer]:
        return run_blocking(self.store.commit(groups, request_id))

    def claim(self, queue: str = "q", n: int = 1, **more) -> Claimed:
        return run_blocking(self.store.claim(wanting(queue, n, **more)))

    def complete(self, jobs: Iterable[Job]) -> None:
        jobs = list(jobs)
        assert self.commit(completing(jobs)) == [Done()] * len(jobs)

    def job(self, name: str) -> Job | None:
        [job] = run_blocking(self.store.get_jobs([key_of(name)]))
        return job

    def names(self, which: Filter | None = None) -> list[str]:
        page = run_blocking(self.store.find_jobs(which or Filter(), Page(limit=200)))
        return [job.id.rstrip(b"\0").decode() for job in page.jobs]

    def verify(self) -> list[str]:
        return run_blocking(self.store.verify())

    def close(self) -> None:
        run_blocking(self.store.close())


def child(source: str, *arguments: str, **options) -> subprocess.Popen[str]:
    """Another process that runs this source with the rig at hand."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    return subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


def tell(process: subprocess.Popen[str], line: str) -> None:
    """Send a line to a child."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    """The next line that a child prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def output_of(process: subprocess.Popen[str]) -> str:
    """What a child printed. It must have ended well."""
    out, err = process.communicate(timeout=50)
    assert process.returncode == 0, out + err
    return out
