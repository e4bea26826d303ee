"""Claim, as every one-writer store does it: walk the queues in the asked order and lease what may run.

What may not run is set aside under the key it lacks, so that the next claim does not meet it again: a full
counter in front of a queue costs one move a job, once, and not a scan at every claim (ARCHITECTURE has the
rates of both forms).
"""

from __future__ import annotations

from msgspec.structs import replace

from tessera.model.changes import Counter
from tessera.model.job import Job
from tessera.model.queries import SET_ASIDE_LIMIT, Claimed, ClaimRequest
from tessera.model.states import State
from tessera.rules import admission
from tessera.rules.ordering import sort_key
from tessera.rules.payload import fingerprint
from tessera.store import transitions
from tessera.store.working import Working


def claim(work: Working, request: ClaimRequest) -> Claimed:
    """Lease up to ``limit`` jobs. Nothing is claimed under another policy than the store's."""
    version = work.source.policy_version()
    if version != request.policy.version:
        return Claimed(now=work.now, policy_version=version, replan=True)
    for key in work.source.outdated_counters(version):
        _counter(work, request, key)
        work.touched[key] = None
    transitions.settle(work)
    turn = _Turn(work, request)
    for want in request.wants:
        if turn.room <= 0:
            break
        if not request.policy.queue(want.queue).paused:
            turn.take_from(want.queue, min(want.limit, turn.room))
    transitions.settle(work)
    return Claimed(jobs=tuple(turn.jobs), now=work.now, set_aside=turn.set_aside, policy_version=version)


class _Turn:
    """One claim under way."""

    def __init__(self, work: Working, request: ClaimRequest) -> None:
        self.work = work
        self.request = request
        self.jobs: list[Job] = []
        self.room = request.limit
        self.counted_room = request.counted_limit
        self.set_aside = 0
        self._fence = work.now * 1_000
        self._cap_at = work.now + request.cap_ms if request.cap_ms else 0
        until = work.now + request.lease_ms
        self._lease_until = min(until, self._cap_at) if self._cap_at else until

    def take_from(self, queue: str, limit: int) -> None:
        """Lease up to ``limit`` jobs of one queue, in order."""
        self._wake_served_kinds(queue, limit)
        taken, passed_over = 0, 0
        while taken < limit and self.set_aside < SET_ASIDE_LIMIT:
            wanted = max(limit - taken, self.request.scan)
            candidates = self.work.ready(queue, wanted + passed_over)[passed_over:]
            before = self.set_aside
            for job in candidates:
                if taken == limit or self.set_aside == SET_ASIDE_LIMIT:
                    break
                if job.needs and self.counted_room <= 0:
                    passed_over += 1
                elif self._try(job):
                    taken += 1
            if len(candidates) < wanted or before == self.set_aside:
                break
        if taken:
            self.work.count(queue, State.AVAILABLE, -taken)
            self.work.count(queue, State.RUNNING, +taken)

    def _wake_served_kinds(self, queue: str, limit: int) -> None:
        """Jobs that waited for a worker of their kind: here is one."""
        kinds = self.request.kinds
        for key in self.work.source.blocked_kinds(queue):
            if kinds is None or key.split(":", 2)[2] in kinds:
                for job in self.work.blocked(key, limit):
                    transitions.wake(self.work, job, key)

    def _try(self, job: Job) -> bool:
        """Lease the job, or move it out of the way."""
        work, request = self.work, self.request
        if 0 < job.expires_at <= work.now:
            transitions.move(work, job, State.DEAD, reason="expired")
        elif request.policy.quarantined and fingerprint(job.kind, job.payload) in request.policy.quarantined:
            transitions.move(work, job, State.QUARANTINED, reason="fingerprint")
        elif request.kinds is not None and job.kind not in request.kinds:
            self._set_aside(job, kind_key(job.queue, job.kind), "no live worker serves this kind")
        elif (full := self._full_counter(job)) is not None:
            self._set_aside(job, full, f"the counter {full} is full")
        else:
            self._lease(job)
            return True
        self.set_aside += 1
        return False

    def _full_counter(self, job: Job) -> str | None:
        """The first counter that refuses the job; None = all admit it."""
        for need in job.needs:
            counter = _counter(self.work, self.request, need.key)
            if not admission.admits(counter, need.units, self.work.now) or self._is_out_of_turn(job, counter):
                return need.key
        return None

    def _is_out_of_turn(self, job: Job, counter: Counter) -> bool:
        """Whether somebody who was set aside under this counter comes before: a small job must not pass a
        large one by for ever."""
        if not counter.blocked or job.blocked_on == counter.key:
            return False
        head = self.work.blocked(counter.key, 1)
        return bool(head) and sort_key(head[0]) < sort_key(job)

    def _set_aside(self, job: Job, key: str, reason: str) -> None:
        transitions.set_aside(self.work, job, key, reason)

    def _lease(self, job: Job) -> None:
        work, request = self.work, self.request
        for need in job.needs:
            counter = work.counter(need.key)
            work.put_counter(admission.take(counter, need.units, work.now, woken=job.blocked_on == need.key))
        leased = replace(
            job,
            state=State.RUNNING,
            holds=transitions.taken(job.needs, work) if job.needs else (),
            blocked_on="",
            holder=request.holder,
            attempt=job.attempt + 1,
            fence=max(job.fence + 1, self._fence),
            claimed_at=work.now,
            lease_until=self._lease_until,
            cap_at=self._cap_at,
        )
        lane = (job.queue, job.priority)
        floor = work.floors.get(lane)
        if floor is not None and job.pass_ > floor:
            work.floors.put(lane, job.pass_)
        leased = work.log_move(State.AVAILABLE, leased, "", request.holder)
        work.jobs.put(job.id, leased)
        self.jobs.append(leased)
        self.room -= 1
        if job.needs:
            self.counted_room -= 1
            for need in job.needs:
                work.touched[need.key] = None


def kind_key(queue: str, kind: str) -> str:
    """The key under which jobs wait for a worker that can run them. A queue's name holds no colon, so the
    kind is what follows.
    """
    return f"kind:{queue}:{kind}"


def _counter(work: Working, request: ClaimRequest, key: str) -> Counter:
    """The counter under the request's policy; made here if nobody needed it before."""
    counter = work.counter(key)
    if counter.version != request.policy.version or work.counters.get(key) is None:
        counter = admission.configure(counter, request.policy.counter(key), request.policy.version, work.now)
        work.put_counter(counter)
    return counter
