"""The engine on the memory store, driven without an event loop: one clock for the store and the process, and
one die to load."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from tessera import seam
from tessera.engine import enqueueing, finishing, operating, sweeping
from tessera.engine.claiming import Claimer
from tessera.engine.policies import Policies
from tessera.model.changes import AddJob, After, Done, EditJob, Edits, Group, MoveJob, PutRecord
from tessera.model.errors import TesseraError
from tessera.model.ids import JobId
from tessera.model.job import Extras, Job, Need, Terms, encode_extras, encode_terms
from tessera.model.outcomes import Completed, Outcome
from tessera.model.policy import POLICY_SPACE, Ceiling, CounterPolicy, Rate
from tessera.model.queries import Event, Filter, Page
from tessera.model.states import EventLevel, State
from tessera.model.worker import WORKER_SPACE, WorkerInfo
from tessera.rules.drafts import Draft, Wait
from tessera.store.memory import MemoryStore, World
from tessera.store.protocol import Store, run_blocking

T = TypeVar("T")

ALL: Final = Filter()
START = 1_800_000_000_000
LEASE = 30_000
HOUR = 3_600_000
DAY = 24 * HOUR


class LoadedSeam:
    """A world whose clock a test moves and whose die it loads."""

    def __init__(self) -> None:
        self.now = START
        self.skew = 0
        """How far the process is ahead of the store."""
        self.dice = 0.0

    def now_ms(self) -> int:
        return self.now + self.skew

    def monotonic(self) -> float:
        return (self.now - START) / 1_000

    def random(self) -> float:
        return self.dice

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def pause(self, seconds: float) -> None:
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("the engine never sleeps")

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        raise AssertionError("the engine spawns nothing")

    def start_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        raise AssertionError("the engine starts nothing")

    async def start_process(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        inherit: bool = False,
    ) -> asyncio.subprocess.Process:
        raise AssertionError("the engine starts nothing")


class Between:
    """A store that lets somebody in: runs ``act`` once, right before the next call of ``verb``."""

    def __init__(self, store: Store, verb: str, act: Callable[[], object]) -> None:
        self._store = store
        self._verb = verb
        self._act: Callable[[], object] | None = act

    def __getattr__(self, name: str) -> Any:
        if name == self._verb and self._act is not None:
            act, self._act = self._act, None
            act()
        return getattr(self._store, name)


class Lab:
    """See the module. Plain calls; what must succeed is checked here."""

    def __init__(self, loaded: LoadedSeam) -> None:
        self.seam = loaded
        self.world = World(os.urandom(16), lambda: loaded.now)
        self.store: Store = MemoryStore(self.world, blocking=True)
        self.policies = Policies()
        self.run(self.store.open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return run_blocking(work)

    @property
    def now(self) -> int:
        return self.seam.now

    def advance(self, ms: int) -> None:
        self.seam.now += ms

    def between(self, verb: str, act: Callable[[], object]) -> Store:
        return Between(self.store, verb, act)  # type: ignore[return-value]  # a proxy of all verbs

    # Enqueueing -----------------------------------------------------------------------------------------

    def draft(self, name: str = "", queue: str = "q", **fields: Any) -> Draft:
        """A draft of the kind ``work``, whose payload tells it from others."""
        terms = fields.pop("terms", None)
        after = fields.pop("after", ())
        if terms is not None:
            fields["body"] = encode_terms(Terms(**terms))
        fields.setdefault("payload", msgspec.json.encode({"name": name or os.urandom(8).hex()}))
        fields.setdefault("events", EventLevel.FULL)
        waits = tuple(w if isinstance(w, Wait) else Wait(w) for w in after)
        waits += fields.pop("waits", ())
        return Draft(**{"kind": "work", "queue": queue, "waits": waits} | fields)

    def enqueue(self, name: str = "", queue: str = "q", **fields: Any) -> JobId:
        stored = self.run(enqueueing.enqueue(self.store, self.policies, self.draft(name, queue, **fields)))
        assert stored.created
        return stored.id

    # Running --------------------------------------------------------------------------------------------

    def claimer(self, store: Store | None = None, **fields: Any) -> Claimer:
        settings: dict[str, Any] = {"holder": "h", "lease_ms": LEASE, "kinds": None} | fields
        return Claimer(store or self.store, settings.pop("policies", self.policies), **settings)

    def claim(self, queue: str = "q", n: int = 1, **fields: Any) -> list[Job]:
        return list(self.run(self.claimer(**fields).claim([queue], n, counted_limit=1_000)).jobs)

    def take(self, key: JobId | None = None, queue: str = "q") -> Job:
        """The next job, which must be the one with this key."""
        [job] = self.claim(queue)
        assert key in (None, job.id)
        return job

    def start(self, name: str = "", **fields: Any) -> Job:
        return self.take(self.enqueue(name, **fields))

    def again(self, key: JobId) -> Job:
        """Claim a job once more, after whatever wait it has before it."""
        job = self.job(key)
        if job.state is State.SCHEDULED:
            self.advance(job.due - self.now)
            self.sweep()
        return self.take(key)

    def finish(self, job: Job, outcome: Outcome, extras: Extras | None = None) -> TesseraError | None:
        [answer] = self.run(finishing.finish(self.store, [finishing.Finish(job, outcome, extras)]))
        return answer

    def end(self, job: Job, outcome: Outcome, extras: Extras | None = None) -> Job | None:
        """End an attempt, which must succeed; the row afterwards."""
        assert self.finish(job, outcome, extras) is None
        return self.find(job.id)

    def ended(self, job: Job, outcome: Outcome, extras: Extras | None = None) -> Job:
        row = self.end(job, outcome, extras)
        assert row is not None
        return row

    def lapse(self, job: Job, **how: Any) -> Job:
        """Let a lease lapse, and sweep; the row afterwards."""
        self.advance(self.job(job.id).lease_until - self.now)
        assert self.sweep(**how).rescued == 1
        return self.job(job.id)

    def sweep(self, **how: Any) -> sweeping.Swept:
        return self.run(sweeping.sweep(self.store, **how))

    def child(self, parent: Job, number: int, **fields: Any) -> AddJob:
        """A child as ``ctx.split`` drafts it."""
        key = seam.new_id()
        extras = encode_extras(Extras(split=parent.attempt, child_no=number))
        payload = msgspec.json.encode({"number": number, "of": parent.id.hex()})
        job = Job(id=key, kind="work", queue="q", parent=parent.id, payload=payload, ext=extras)
        return AddJob(replace(job, events=EventLevel.FULL, **fields))

    # Writing behind the engine's back ---------------------------------------------------------------------

    def do(self, *changes: Any) -> None:
        [answer] = self.run(self.store.commit([Group(changes=changes)]))
        assert isinstance(answer, Done), answer

    def bury(self, key: JobId, reason: str = "buried") -> None:
        self.do(MoveJob(key, State.DEAD, reason=reason))

    def bring_to_end(self, key: JobId, end: str) -> None:
        """One of the ends that dependants and unique keys tell apart; ``deleted`` too."""
        if end == "completed":
            self.end(self.take(key), Completed())
        elif end == "dead":
            self.bury(key)
        elif end == "cancelled":
            self.cancel(key)
        else:
            self.run(operating.delete(self.store, key))

    def edit_row(self, key: JobId, **fields: Any) -> None:
        self.do(EditJob(key, Edits(**fields)))

    def counter(self, name: str, policy: CounterPolicy) -> None:
        self.do(PutRecord(POLICY_SPACE, f"counter/{name}/code", msgspec.json.encode(policy)))

    def ceiling(self, name: str, limit: int) -> None:
        self.counter(name, Ceiling(limit))

    def rate(self, name: str, limit: int, per_ms: int) -> None:
        self.counter(name, Rate(limit, per_ms))

    def worker(self, kinds: Sequence[str] = ("work",), queues: Sequence[str] = ("q",), **fields: Any) -> None:
        info = WorkerInfo(os.urandom(4).hex(), kinds=tuple(kinds), queues=tuple(queues), **fields)
        self.do(PutRecord(WORKER_SPACE, info.incarnation, msgspec.json.encode(info), expires=After(30_000)))

    def cancel(self, key: JobId, **how: Any) -> State:
        return self.run(operating.cancel(self.store, key, **how))

    def retry(self, key: JobId, **how: Any) -> JobId:
        return self.run(operating.retry(self.store, key, **how))

    # Reading ----------------------------------------------------------------------------------------------

    def find(self, key: JobId) -> Job | None:
        [job] = self.run(self.store.get_jobs([key]))
        return job

    def job(self, key: JobId) -> Job:
        job = self.find(key)
        assert job is not None
        return job

    def state(self, key: JobId) -> State | None:
        job = self.find(key)
        return None if job is None else job.state

    def states(self, *keys: JobId) -> list[State | None]:
        return [self.state(key) for key in keys]

    def used(self, key: str) -> tuple[int, int]:
        """(units used, jobs set aside) of a counter."""
        found = self.run(self.store.counters([key]))
        return (found[0][1], found[0][2]) if found else (0, 0)

    def events(self, key: JobId | None = None) -> list[Event]:
        return self.run(self.store.events(limit=100_000, job=key))

    def told(self, key: JobId | None = None) -> list[str]:
        return [event.what for event in self.events(key)]

    def everything(self, which: Filter = ALL) -> list[Job]:
        jobs: list[Job] = []
        page = Page(limit=200)
        while True:
            found = self.run(self.store.find_jobs(which, page))
            jobs += found.jobs
            if not found.after:
                return jobs
            page = Page(found.after, 200)

    def check(self) -> None:
        """INV-15: whatever a test did, what is kept beside the rows agrees with them at its end."""
        assert self.run(self.store.verify()) == []


def need(key: str, units: int = 1) -> tuple[Need, ...]:
    return (Need(key, units),)
