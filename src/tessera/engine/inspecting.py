"""Reading: explanations, queues, workers."""

from __future__ import annotations

from collections import Counter as Tally
from typing import Final

import msgspec

from tessera.engine.lookup import find_job
from tessera.engine.policies import Policies
from tessera.model.ids import show_id
from tessera.model.job import Job, extras_of
from tessera.model.queries import Filter, Page
from tessera.model.states import LIVE, State
from tessera.model.worker import WORKER_SPACE, WorkerInfo
from tessera.rules.explaining import Cause, CounterFact, Facts, explain
from tessera.store.protocol import Store

KINDS_LOOKED_AT: Final = 100_000
"""No store counts by kind: a look at the whole of a large backlog would take minutes."""


class Explanation(msgspec.Struct, frozen=True, gc=False):
    """Why a job is not running."""

    job: Job
    causes: tuple[Cause, ...]
    now: int


class QueueInfo(msgspec.Struct, frozen=True, gc=False):
    """A queue at this instant. Counts are exact."""

    name: str
    counts: dict[State, int]
    paused: bool
    workers: int

    @property
    def unfinished(self) -> int:
        """Jobs that still have something before them."""
        return sum(count for state, count in self.counts.items() if state in LIVE)


async def explain_job(store: Store, policies: Policies, reference: str | bytes) -> Explanation:
    """All reasons why the job does not run now. Raises NotFound."""
    job = await find_job(store, reference)
    due = await store.due(1, ())
    edges = await store.edges(job.id) if job.open else []
    parents = await store.get_jobs([parent for parent, _ in edges])
    waits_for = [
        (show_id(key), parent.state if parent else "gone", condition)
        for (key, condition), parent in zip(edges, parents, strict=True)
    ]
    counters = await store.counters([need.key for need in job.needs])
    facts = Facts(
        job=job,
        now=due.now,
        policy=await policies.reread(store),
        workers=await workers(store),
        counters=[CounterFact(*fact) for fact in counters],
        waits_for=waits_for,
    )
    return Explanation(job, tuple(explain(facts)), due.now)


async def workers(store: Store) -> list[WorkerInfo]:
    """Workers that were seen within half a minute."""
    records = await store.scan(WORKER_SPACE)
    return [msgspec.json.decode(record.value, type=WorkerInfo) for record in records if record.value]


async def queues(store: Store, policies: Policies) -> list[QueueInfo]:
    """All queues that hold jobs, have a policy, or are served."""
    policy = await policies.reread(store)
    serving = await workers(store)
    counts: dict[str, dict[State, int]] = {}
    for (queue, state), count in (await store.count_jobs()).items():
        counts.setdefault(queue, {})[state] = count
    names = {*counts, *policy.queues, *(queue for worker in serving for queue in worker.queues)}
    return [
        QueueInfo(
            name,
            counts.get(name, {}),
            bool(policy.queue(name).paused),
            sum(name in worker.queues for worker in serving),
        )
        for name in sorted(names)
    ]


async def children(store: Store, parent: Job) -> list[Job]:
    """The jobs that the last split of this job made, in the order given."""
    jobs: list[Job] = []
    page = Page(limit=200)
    while True:
        found = await store.find_jobs(Filter(parent=parent.id), page)
        jobs += found.jobs
        if not found.after:
            break
        page = Page(found.after, 200)
    extras = {job.id: extras_of(job) for job in jobs}
    last = max((extra.split for extra in extras.values()), default=0)
    return sorted((j for j in jobs if extras[j.id].split == last), key=lambda j: extras[j.id].child_no)


async def waiting_kinds(store: Store) -> dict[str, int]:
    """Kinds of the jobs that have not ended, with their number; of the newest ``KINDS_LOOKED_AT`` jobs where
    there are more.
    """
    waiting: Tally[str] = Tally()
    page = Page(limit=200)
    while True:
        found = await store.find_jobs(Filter(states=tuple(LIVE)), page)
        waiting.update(job.kind for job in found.jobs)
        if not found.after or waiting.total() >= KINDS_LOOKED_AT:
            return dict(waiting)
        page = Page(found.after, 200)
