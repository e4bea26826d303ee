"""The memory store as one whose counters belong to claims: what a store with a gate (``store/postgres/gate``)
must answer.

Commits write down what they do to counters and guess passes; a claim applies and sets right first.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tessera.model.changes import Answer, Below, Counter, Group, Shift
from tessera.model.job import Job
from tessera.model.queries import Claimed, ClaimRequest, Want
from tessera.rules import admission
from tessera.store import audit, claims, evaluator
from tessera.store.memory import MemoryStore, World
from tessera.store.postgres.tables import is_gated
from tessera.store.sql.placing import place
from tessera.store.sql.tags import TagMemory
from tessera.store.working import Net, Working


class GatedMemoryStore(MemoryStore):
    """See the module."""

    def __init__(self, world: World) -> None:
        super().__init__(world, blocking=True)
        self.tags = TagMemory()
        self.shifts: dict[str, Shift] = {}

    async def commit(self, groups: Sequence[Group], request_id: str = "") -> list[Answer]:
        with self._reading() as world:
            if self.tags.are_stale():
                self.tags.read(world.floors.items())
            is_gated = any(isinstance(guard, Below) for group in groups for guard in group.guards)
            guesses = self.tags.guesses()
            work = Working(_Shifting(world, self.shifts), world.now(), None if is_gated else guesses)
            if is_gated:
                self._fold(work)
            answers = evaluator.commit(work, groups, request_id)
            work.finish()
            guesses.keep()
            return answers

    async def claim(self, request: ClaimRequest) -> Claimed:
        with self._reading() as world:
            now = world.now()
            jobs: list[Job] = []
            set_aside = 0
            wants = [want for want in request.wants if not request.policy.queue(want.queue).paused]
            replan = bool(wants) and world.policy != request.policy.version
            while wants and not replan and len(jobs) < request.limit:
                room = min(wants[0].limit, request.limit - len(jobs))
                plain = self._plain_ones(request, wants[0].queue, room)
                if plain:
                    want = Want(wants[0].queue, plain)
                    work = Working(world, now)
                    jobs += claims.claim(work, replace(request, wants=(want,), limit=plain)).jobs
                    work.finish()
                if plain == room or not self._needs_gate(request, wants[0].queue, room - plain):
                    del wants[0]
                    continue
                behind = (Want(wants[0].queue, room - plain), *wants[1:])
                claimed = self._gated(replace(request, wants=behind, limit=request.limit - len(jobs)))
                jobs += claimed.jobs
                set_aside = claimed.set_aside
                break
            due = self._next_due({want.queue for want in request.wants}) if len(jobs) < request.limit else 0
            replan = world.policy != request.policy.version and not jobs
            return Claimed(tuple(jobs), now, due, set_aside, world.policy, replan)

    def _gated(self, request: ClaimRequest) -> Claimed:
        world = self._world
        work = Working(_Shifting(world, self.shifts), world.now())
        self._fold(work)
        work.touched |= dict.fromkeys(
            sorted(c.key for c in world.counters.values() if 0 < c.wake_at <= work.now)
        )
        for want in request.wants:
            place(work, want.queue, min(want.limit, request.limit))
        claimed = claims.claim(work, request)
        work.finish()
        for lane, floor in world.floors.items():
            self.tags.saw(lane, floor)
        return claimed

    def _plain_ones(self, request: ClaimRequest, queue: str, room: int) -> int:
        """How many of the first ready jobs take no more than their rows."""
        if self._is_behind_the_gate(request, queue):
            return 0
        ready = self._world.ready(queue, room)
        return next((at for at, job in enumerate(ready) if not self._is_plain(request, job)), len(ready))

    def _needs_gate(self, request: ClaimRequest, queue: str, room: int) -> bool:
        ready = self._world.ready(queue, room)
        return self._is_behind_the_gate(request, queue) or not all(
            self._is_plain(request, job) for job in ready
        )

    def _is_plain(self, request: ClaimRequest, job: Job) -> bool:
        served = request.kinds is None or job.kind in request.kinds
        return served and not is_gated(job) and not 0 < job.expires_at <= self._world.now()

    def _is_behind_the_gate(self, request: ClaimRequest, queue: str) -> bool:
        world, first = self._world, f"kind:{queue}:"
        return bool(
            request.policy.quarantined
            or request.cap_ms
            or request.scan
            or self.shifts
            or any(lane[0] == queue for lane in world.floors)
            or any(0 < c.wake_at <= world.now() for c in world.counters.values())
            or any(
                c.blocked
                and (
                    (c.version < world.policy and not c.key.startswith("kind:"))
                    or (
                        c.key.startswith(first)
                        and (request.kinds is None or c.key[len(first) :] in request.kinds)
                    )
                )
                for c in world.counters.values()
            )
        )

    async def counters(self, keys: Sequence[str]) -> list[tuple[str, int, int]]:
        with self._reading() as world:
            now, folded = world.now(), self._folded()
            return [
                (k, admission.units_in_use(folded[k], now), folded[k].blocked) for k in keys if k in folded
            ]

    async def verify(self) -> list[str]:
        with self._reading() as world:
            return audit.differences(
                jobs=world.jobs.values(),
                archive=world.archive.values(),
                counts=world.counts,
                counters=self._folded().values(),
                slots=world.slots.values(),
                edges=world.edges.values(),
            )

    def _fold(self, work: Working) -> None:
        for key, shift in sorted(self.shifts.items()):
            work.shift(key, shift)
        self.shifts.clear()

    def _folded(self) -> dict[str, Counter]:
        now, found = self._world.now(), dict(self._world.counters)
        for key, shift in self.shifts.items():
            found[key] = admission.shifted(found.get(key) or Counter(key=key), shift, now)
        return {key: counter for key, counter in found.items() if not admission.is_idle(counter, now)}


class _Shifting:
    """The world, and where shifts are written down."""

    def __init__(self, world: World, shifts: dict[str, Shift]) -> None:
        self._world = world
        self._shifts = shifts

    def __getattr__(self, name: str):
        return getattr(self._world, name)

    def write(self, net: Net) -> None:
        for key, shift in net.shifts.items():
            old = self._shifts.get(key)
            self._shifts[key] = shift if old is None else admission.both(old, shift)
        self._world.write(net)
