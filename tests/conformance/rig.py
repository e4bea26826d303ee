"""One store in one colour behind plain calls, and a clock that only the test moves.

So each promise is written once. The blocking colour is driven without an event loop, the async one on a loop
of its own; a test cannot tell which it has.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tessera.model.changes import (
    AddJob,
    After,
    Answer,
    AtVersion,
    Change,
    Count,
    Done,
    DropJob,
    DropRecord,
    Edits,
    FreeSlot,
    Group,
    Guard,
    Held,
    InState,
    Lapsed,
    MoveJob,
    Otherwise,
    PutRecord,
    Record,
    Refused,
    SettleEdges,
    Time,
)
from tessera.model.ids import JobId
from tessera.model.job import End, Job, Need
from tessera.model.policy import POLICY_SPACE, Ceiling, CounterPolicy, Policy, QueuePolicy
from tessera.model.queries import Claimed, ClaimRequest, Due, Event, Filter, Page, Want
from tessera.model.states import EventLevel, State
from tessera.store.protocol import Store, run_blocking

T = TypeVar("T")

START = 1_800_000_000_000
"""Where every test's clock begins, in milliseconds since the epoch."""
LEASE = 30_000
NOW = After(0)
NO_EDITS = Edits()
EVERYTHING = Filter()


class ManualClock:
    """Stands still until it is moved; may be set back, as the clock of a machine may."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, ms: int) -> None:
        self.now += ms


def key_of(name: str) -> JobId:
    """A readable key: names sort as their keys do."""
    raw = name.encode()
    assert len(raw) <= 16
    return JobId(raw.ljust(16, b"\0"))


def name_of(key: bytes) -> str:
    return key.rstrip(b"\0").decode()


def add(name: str, queue: str = "q", *, due: Time = NOW, expires: int = 0, after=(), **fields: Any) -> AddJob:
    """The change that stores a job of that name."""
    if isinstance(needs := fields.get("needs"), str):
        fields["needs"] = (Need(needs),)
    job = Job(**{"id": key_of(name), "kind": "work", "queue": queue, "events": EventLevel.FULL} | fields)
    return AddJob(job, due, expires, after=tuple(after))


def end_of(job: Job, end: str, error: str = "") -> End:
    return End(job.attempt, end, job.claimed_at, 0, job.holder, error)


class Rig:
    """See the module."""

    def __init__(self, store: Store, *, blocking: bool, clock: ManualClock, path: Path | None = None) -> None:
        self.store = store
        self.blocking = blocking
        self.clock = clock
        self.path = path
        self.policy = Policy()
        self._runner = None if blocking else asyncio.Runner()

    # Driving both colours -----------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return run_blocking(work) if self._runner is None else self._runner.run(work)

    def end(self) -> None:
        """Close the store and the loop."""
        self.run(self.store.close())
        if self._runner is not None:
            self._runner.close()

    # Changing -----------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.clock.now

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)

    def commit(self, *groups: Group, request_id: str = "") -> list[Answer]:
        return self.run(self.store.commit(groups, request_id))

    def ask(
        self, *changes: Change, given: Sequence[Guard] = (), otherwise: Otherwise | None = None
    ) -> Answer:
        """The answer to one group."""
        [answer] = self.commit(Group(tuple(given), changes, otherwise))
        return answer

    def do(self, *changes: Change, given: Sequence[Guard] = (), otherwise: Otherwise | None = None) -> Done:
        """One group that must be applied."""
        answer = self.ask(*changes, given=given, otherwise=otherwise)
        assert isinstance(answer, Done), answer
        return answer

    def refused(self, *changes: Change, given: Sequence[Guard] = ()) -> Refused:
        """One group that must be refused, and must leave no trace."""
        before = self.dump()
        answer = self.ask(*changes, given=given)
        assert isinstance(answer, Refused), answer
        assert self.dump() == before
        return answer

    def declare(
        self,
        counters: dict[str, CounterPolicy] | None = None,
        queues: dict[str, QueuePolicy] | None = None,
        quarantined: frozenset[bytes] | None = None,
    ) -> None:
        """Write a policy: what it says replaces what was said before about the same things."""
        self.do(PutRecord(POLICY_SPACE, "installation", b"{}"))
        policy = self.policy
        self.policy = Policy(
            self.run(self.store.policy_version()),
            policy.queues | (queues or {}),
            policy.counters | (counters or {}),
            {},
            policy.quarantined if quarantined is None else quarantined,
        )

    # Claiming and ending ------------------------------------------------------------------------------------

    def ask_claim(
        self,
        *queues: str,
        n: int = 1,
        holder: str = "h",
        lease: int = LEASE,
        policy: Policy | None = None,
        **more: Any,
    ) -> Claimed:
        wants = tuple(Want(queue, n) for queue in queues or ("q",))
        request = ClaimRequest(holder, wants, more.pop("limit", n), lease, policy or self.policy, **more)
        return self.run(self.store.claim(request))

    def claim(self, *queues: str, n: int = 1, **more: Any) -> list[Job]:
        claimed = self.ask_claim(*queues, n=n, **more)
        assert not claimed.replan
        return list(claimed.jobs)

    def claim_names(self, *queues: str, n: int = 1, **more: Any) -> list[str]:
        return [name_of(job.id) for job in self.claim(*queues, n=n, **more)]

    def take(self, *queues: str, **more: Any) -> Job:
        [job] = self.claim(*queues, **more)
        return job

    def wake(self) -> None:
        """Where counters belong to claims, a claim of whatever queue wakes who has room; elsewhere they are
        awake.
        """
        if self.store.name == "postgresql":
            assert self.claim("nobody's") == []

    def finish(self, job: Job, to: State = State.COMPLETED, end: str = "completed", **more: Any) -> Answer:
        """End a held job as a worker does: guarded by its fence."""
        move = MoveJob(job.id, to, end=end_of(job, end), **more)
        return self.ask(move, given=[Held(job.id, job.fence, end)])

    def complete(self, job: Job) -> None:
        assert self.finish(job) == Done()

    def start(self, name: str, queue: str = "q", **fields: Any) -> Job:
        """Store a job and claim it."""
        self.do(add(name, queue, **fields))
        job = self.take(queue)
        assert job.id == key_of(name)
        return job

    def bury(self, name: str, **fields: Any) -> None:
        """A job that is dead."""
        self.do(add(name, **fields), MoveJob(key_of(name), State.DEAD, reason="buried"))

    def move(self, name: str, to: State, edits: Edits = NO_EDITS, due: Time = NOW, **more: Any) -> None:
        self.do(MoveJob(key_of(name), to, due, edits, **more))

    # Reading ------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Job | None:
        [job] = self.run(self.store.get_jobs([key_of(name)]))
        return job

    def job(self, name: str) -> Job:
        job = self.find(name)
        assert job is not None, f"there is no job {name}"
        return job

    def state(self, name: str) -> State | None:
        job = self.find(name)
        return None if job is None else job.state

    def states(self, *names: str) -> list[State | None]:
        return [self.state(name) for name in names]

    def due(self, limit: int = 100, queues: Sequence[str] | None = None) -> Due:
        return self.run(self.store.due(limit, queues))

    def counts(self) -> dict[tuple[str, State], int]:
        return {key: count for key, count in self.run(self.store.count_jobs()).items() if count}

    def counter(self, key: str) -> tuple[int, int]:
        """(units used, jobs set aside); a counter that nobody needs stands at nothing."""
        found = self.run(self.store.counters([key]))
        return found[0][1:] if found else (0, 0)

    def record(self, space: str, key: str) -> Record | None:
        [record] = self.run(self.store.get([(space, key)]))
        return record

    def events(self, name: str = "", **more: Any) -> list[Event]:
        return self.run(self.store.events(limit=100_000, job=key_of(name) if name else None, **more))

    def told(self, name: str) -> list[str]:
        """What the log says of a job."""
        return [event.what for event in self.events(name)]

    def all_jobs(self, which: Filter = EVERYTHING, limit: int = 200) -> list[Job]:
        found: list[Job] = []
        page = Page(limit=limit)
        while True:
            answer = self.run(self.store.find_jobs(which, page))
            found += answer.jobs
            if not answer.after:
                return found
            page = Page(answer.after, limit)

    def blob(self, sha256: bytes) -> bytes:
        return self.run(_gathered(self.store.blob(sha256)))

    def dump(self) -> dict[str, Any]:
        """Everything that the store shows of itself."""
        jobs = self.all_jobs()
        keys = {need.key for job in jobs for need in job.needs} | {
            job.blocked_on for job in jobs if job.blocked_on
        }
        return {
            "jobs": jobs,
            "counts": self.counts(),
            "counters": self.run(self.store.counters(sorted(keys))),
            "edges": {job.id: sorted(self.run(self.store.edges(job.id))) for job in jobs if job.open},
            "records": [
                self.run(self.store.scan(space)) for space in ("notes", "~notes", POLICY_SPACE, "~followup")
            ],
            "events": self.events(),
            "policy": self.run(self.store.policy_version()),
        }

    def check(self) -> None:
        """INV-15 and what is kept beside the rows: whatever a test did, it must hold at its end."""
        assert self.run(self.store.verify()) == []
        assert self.counts() == Tally((job.queue, job.state) for job in self.all_jobs())


async def _gathered(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


def bring_to(rig: Rig, state: State, name: str = "a") -> None:
    """A job of the queue ``q`` in that state."""
    match state:
        case State.PENDING:
            rig.do(add(name, held=True))
        case State.SCHEDULED:
            rig.do(add(name, due=After(1_000)))
        case State.AVAILABLE:
            rig.do(add(name))
        case State.BLOCKED:
            rig.declare({"full": Ceiling(0)})
            rig.do(add(name, needs="full"))
            assert rig.claim() == []
        case State.RUNNING:
            rig.start(name)
        case State.WAITING | State.QUARANTINED:
            rig.start(name)
            rig.move(name, state)
        case _:
            rig.start(name)
            rig.move(name, state)
    assert rig.state(name) is state


def sweep(rig: Rig, limit: int = 100) -> Due:
    """What a duty does about the clock, in its plainest form: every write guarded by what was read."""
    due = rig.due(limit)
    rig.commit(*sweep_groups(due))
    return due


def sweep_groups(due: Due, crash_delay: int = 0) -> list[Group]:
    """The groups of a sweep."""
    groups = [
        Group((InState(job.id, (State.SCHEDULED,)),), (MoveJob(job.id, State.AVAILABLE, job.due),))
        for job in due.scheduled
    ]
    for job in due.lapsed:
        to = State.CANCELLED if job.cancel_requested else State.AVAILABLE
        crashed = MoveJob(
            job.id, to, After(crash_delay), Edits(crashes=job.crashes + 1), end_of(job, "crashed")
        )
        groups.append(Group((Lapsed(job.id, job.fence),), (crashed,)))
    groups += [
        Group((InState(job.id, (job.state,)),), (MoveJob(job.id, State.DEAD, reason="expired"),))
        for job in due.expired
    ]
    final = (State.COMPLETED, State.DEAD, State.CANCELLED)
    groups += [Group((InState(key, final),), (DropJob(key, "evicted"),)) for key in due.gone]
    groups += [Group((), (FreeSlot(slot.key, slot.owner),)) for slot in due.slots]
    groups += [Group((), (Count(key),)) for key in due.counters]
    for record in due.records:
        if record.space == "~followup":
            groups.append(Group((), (SettleEdges(JobId(bytes.fromhex(record.key))),)))
        elif record.expires_at:
            groups.append(
                Group((AtVersion(record.space, record.key, 0),), (DropRecord(record.space, record.key),))
            )
    return groups
