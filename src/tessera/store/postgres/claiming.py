"""Claim: in one statement where only rows matter, behind the gate where counters do.

The one statement leases the first ready jobs of a queue up to the first that takes more than its row: a
counter, a tenant, a full log, a kind that nobody here serves, a time that is over. It leases none at all
where something else has to come first: units that came back, jobs set aside whose kind this holder serves, a
lane that tenants share, another policy. The rest of the claim then passes the gate, and is the one that every
store shares (``store/claims``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from tessera import seam
from tessera.model.errors import StoreBusy
from tessera.model.job import Job
from tessera.model.queries import Claimed, ClaimRequest, Want
from tessera.rules.ordering import sort_key
from tessera.store import claims
from tessera.store.postgres import gate, writes
from tessera.store.postgres.committing import ATTEMPTS
from tessera.store.postgres.driver import Rows
from tessera.store.postgres.errors import Retry, Unasserted
from tessera.store.postgres.lanes import Place
from tessera.store.postgres.loads import CLOCK, CLOCK_AND_PATIENCE, JOBS, Loader, live_and_rev
from tessera.store.postgres.params import Bigints, Ints, Texts
from tessera.store.postgres.site import Site
from tessera.store.postgres.tables import COUNTER, is_gated, selected
from tessera.store.sql import rows
from tessera.store.sql.mirror import Mirror, Missing, Wanted
from tessera.store.sql.placing import place
from tessera.store.working import Working

GATED_SECONDS: Final = 1.0
"""How long a queue whose claim needed the gate is claimed behind it at once."""

# Index job_ready, once a range: each is read in its own order and ends after the limit.
_CANDIDATES: Final = """
    SELECT x.*
    FROM unnest({ranges}) AS l (np, pass, due, until)
    CROSS JOIN LATERAL (
        SELECT {columns}
        FROM {{s}}.job j
        WHERE j.queue = $1 AND j.state = 2
            AND (j.np, j.pass, j.due) >= (l.np, l.pass, l.due) AND j.np < l.until
        ORDER BY j.np, j.pass, j.due, j.id
        LIMIT $2
        FOR UPDATE SKIP LOCKED
    ) AS x
    LIMIT $2
"""
_RANGES: Final = "${}::int[], ${}::bigint[], ${}::bigint[], ${}::int[]"
# "ok" is the unbroken beginning of the plain ones. What is asked of the side tables is asked once: each is an
# index probe, and most of them meet an empty table.
CLAIM: Final = (
    """
WITH candidate AS MATERIALIZED ("""
    + _CANDIDATES.format(
        ranges=_RANGES.format(3, 4, 5, 6),
        columns="j.id, j.np, j.pass, j.due, NOT j.gated AND ($7::text[] IS NULL OR j.kind = ANY($7)) "
        "AND (j.expires_at = 0 OR j.expires_at > {s}.clock_ms()) AS plain",
    )
    + """),
fact AS MATERIALIZED (
    SELECT {s}.clock_ms() AS now, m.policy,
        EXISTS (SELECT 1 FROM {s}.counter_shift)
        OR EXISTS (SELECT 1 FROM {s}.floor WHERE queue = $1)
        OR EXISTS (
            SELECT 1 FROM {s}.counter
            WHERE blocked > 0 AND (
                version < m.policy AND NOT starts_with(key, 'kind:')
                OR starts_with(key, 'kind:' || $1 || ':')
                    AND ($7::text[] IS NULL OR substr(key, length('kind:' || $1 || ':') + 1) = ANY($7))
            )
        )
        OR EXISTS (SELECT 1 FROM {s}.counter WHERE wake_at > 0 AND wake_at <= {s}.clock_ms()) AS gated
    FROM {s}.meta m
),
start AS (
    SELECT id, bool_and(plain) OVER (ORDER BY np, pass, due, id) AS ok
    FROM candidate
),
claimed AS (
    UPDATE {s}.job j
    SET state = 4, attempt = j.attempt + 1, fence = greatest(j.fence + 1, f.now * 1000), holder = $8,
        blocked_on = '', claimed_at = f.now, lease_until = f.now + $9, rev = j.rev + 1
    FROM fact f
    WHERE j.id = ANY(ARRAY(SELECT id FROM start WHERE ok)) AND f.policy = $10 AND NOT f.gated
    RETURNING """
    + JOBS
    + """
),
counted AS (
    INSERT INTO {s}.count_delta (queue, state, n)
    SELECT c.queue, m.state, m.sign * count(*)
    FROM claimed c
    CROSS JOIN (VALUES (2, -1), (4, 1)) AS m (state, sign)
    GROUP BY c.queue, m.state, m.sign
)
SELECT f.now, f.policy, f.gated OR (SELECT count(*) FROM start WHERE NOT ok) > 0, c.*
FROM fact f
LEFT JOIN claimed c ON true
"""
)
READY: Final = (
    f"SELECT {JOBS}\nFROM (" + _CANDIDATES.format(ranges=_RANGES.format(3, 4, 5, 6), columns="j.*") + ") AS j"
)
DUE_COUNTERS: Final = (
    f"SELECT {selected(COUNTER)} FROM {{s}}.counter WHERE wake_at > 0 AND wake_at <= {{s}}.clock_ms()"
)
FLOORS_OF: Final = "SELECT queue, priority, pass FROM {s}.floor WHERE queue = $1"
NEXT_DUE: Final = """
SELECT least(
    (SELECT min(wake_at) FROM {s}.counter WHERE wake_at > 0),
    (SELECT min(d.due)
     FROM unnest($1::text[]) AS q (queue)
     CROSS JOIN LATERAL (
         SELECT due FROM {s}.job WHERE queue = q.queue AND state = 1 ORDER BY due, id LIMIT 1
     ) AS d)
)
"""
_FACTS: Final = 3
"""Columns before those of the job."""

Ranges: TypeAlias = Sequence[tuple[Place, int]]


class Claimer:
    """Claims of all handles of one colour."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._memory = site.memory

    async def claim(self, request: ClaimRequest) -> Claimed:
        """See ``Store.claim``."""
        ranges = {want.queue: self._memory.lanes[want.queue].ranges() for want in request.wants}
        jobs: list[Job] = []
        last = Claimed()
        wants = list(request.wants)
        while wants and len(jobs) < request.limit and not last.replan:
            want = wants.pop(0)
            if request.policy.queue(want.queue).paused:
                continue
            room = min(want.limit, request.limit - len(jobs))
            if self._goes_plainly(request, want.queue):
                last, needs_gate = await self._plainly(request, want.queue, room, ranges[want.queue])
                jobs += last.jobs
                if last.replan or len(last.jobs) == room or not needs_gate:
                    continue
                room -= len(last.jobs)
            rest = tuple(one for one in wants if not request.policy.queue(one.queue).paused)
            behind = replace(request, wants=(Want(want.queue, room), *rest), limit=request.limit - len(jobs))
            last = await Turn(self._site, behind, ranges).claim()
            jobs += last.jobs
            break
        return await self._answer(request, jobs, last)

    async def _answer(self, request: ClaimRequest, jobs: Sequence[Job], last: Claimed) -> Claimed:
        now, version = last.now, last.policy_version
        if not now:
            [(now, version)] = await self._site.ask(CLOCK)
        due = 0
        if len(jobs) < request.limit:
            [(due,)] = await self._site.ask(NEXT_DUE, Texts([want.queue for want in request.wants]))
        replan = version != request.policy.version and not jobs
        return Claimed(tuple(jobs), now, due or 0, last.set_aside, version, replan)

    def _goes_plainly(self, request: ClaimRequest, queue: str) -> bool:
        if request.policy.quarantined or request.cap_ms or request.scan:
            return False
        return seam.monotonic() >= self._memory.gated_until.get(queue, 0.0)

    async def _plainly(
        self, request: ClaimRequest, queue: str, limit: int, ranges: Ranges
    ) -> tuple[Claimed, bool]:
        """What one statement leases, and whether there is more behind the gate."""
        kinds = None if request.kinds is None else Texts(sorted(request.kinds))
        parameters = [
            queue, limit, *_arrays(ranges), kinds, request.holder, request.lease_ms, request.policy.version,
        ]  # fmt: skip
        found = await self._site.ask(CLAIM, *parameters)
        now, version, needs_gate = found[0][:_FACTS]
        self._memory.heard(now)
        taken = [live_and_rev(row[_FACTS:]) for row in found if row[_FACTS] is not None]
        taken.sort(key=_order)
        jobs = tuple(job for job, _ in taken)
        for job, rev in taken:
            self._memory.keep(job, rev)
        self._memory.lanes[queue].claimed(jobs)
        replan = version != request.policy.version
        return Claimed(jobs, now, 0, 0, version, replan), needs_gate and not replan


class Turn:
    """One claim behind the gate."""

    def __init__(self, site: Site, request: ClaimRequest, ranges: Mapping[str, Ranges]) -> None:
        self._site = site
        self._request = request
        self._ranges = ranges
        self._due: list[str] = []
        self._mirror = Mirror()

    async def claim(self) -> Claimed:
        """See ``Store.claim``. Raises StoreBusy."""
        for _ in range(ATTEMPTS):
            self._mirror = Mirror()
            try:
                async with self._site.driver.transaction() as transaction:
                    claimed = await self._evaluate(Loader(self._site, transaction, self._mirror))
                    if claimed.replan:
                        return claimed
                    net = self._mirror.net()
                    made = writes.queries(net, self._site.schema, self._mirror.revs, claimed.now)
                    ringing = self._site.ringing(net)
                    await transaction.flight([*made, *ringing], last=True)
            except (Retry, Unasserted):
                continue
            self._site.wrote(net, self._mirror.revs, ringing)
            self._remember(claimed)
            return claimed
        raise StoreBusy(f"others changed the same rows {ATTEMPTS} times meanwhile; nothing was claimed")

    async def _evaluate(self, loader: Loader) -> Claimed:
        request, mirror = self._request, self._mirror
        loader.ask_clock(CLOCK_AND_PATIENCE)
        shifts = gate.pass_through(loader)
        queues = {want.queue for want in request.wants}
        for want in request.wants:
            self._ask_ready(loader, want.queue, max(want.limit, request.scan))
            loader.ask(FLOORS_OF, [want.queue], self._take_floors)
        loader.ask(DUE_COUNTERS, [], self._take_due)
        # Again: the gate may have been waited for, and what became ready meanwhile was read.
        loader.ask_clock(CLOCK)
        await loader.load(Wanted(kinds=queues, outdated={request.policy.version}))
        if mirror.policy != request.policy.version:
            return Claimed((), loader.now, 0, 0, mirror.policy, replan=True)
        await loader.load(self._keys(shifts))
        await loader.load(self._lines())
        while True:
            work = Working(mirror, loader.now)
            try:
                shifts.apply(work)
                work.touched |= dict.fromkeys(self._due)
                for want in request.wants:
                    place(work, want.queue, min(want.limit, request.limit))
                claimed = claims.claim(work, request)
                work.finish()
            except Missing as missing:
                mirror.take_back()
                for queue, limit in missing.wanted.ready.items():
                    self._ask_ready(loader, queue, limit)
                await loader.load(missing.wanted)
                continue
            return claimed

    def _keys(self, shifts: gate.Shifts) -> Wanted:
        """Counters and passes of the candidates, and what was folded."""
        candidates = self._mirror.jobs.values()
        lanes = {(job.queue, job.priority) for job in candidates}
        floors = self._mirror.floors
        self._mirror.known.floors |= lanes  # all of the queues were read
        return Wanted(
            counters={*shifts.by_key, *(need.key for job in candidates for need in job.needs)},
            passes={
                (job.queue, job.priority, job.tenant)
                for job in candidates
                if job.stride or (job.queue, job.priority) in floors
            },
        )

    def _lines(self) -> Wanted:
        """The heads of those set aside under the counters that were read."""
        limit = self._request.limit
        return Wanted(
            blocked={
                key: min(counter.blocked, limit, 100) + 1
                for key, counter in self._mirror.counters.items()
                if counter.blocked
            }
        )

    def _ask_ready(self, loader: Loader, queue: str, limit: int) -> None:
        parameters = [queue, limit, *_arrays(self._ranges[queue])]
        loader.ask(READY, parameters, partial(loader.take_list, "ready", queue, limit))

    def _take_due(self, found: Rows) -> None:
        counters = [rows.counter_of(row) for row in found]
        self._due = sorted(counter.key for counter in counters)
        self._mirror.learn("counters", (), [(counter.key, counter) for counter in counters])

    def _take_floors(self, found: Rows) -> None:
        self._mirror.learn("floors", (), [((queue, priority), pass_) for queue, priority, pass_ in found])

    def _remember(self, claimed: Claimed) -> None:
        memory = self._site.memory
        for job in claimed.jobs:
            memory.keep(job, self._mirror.revs[job.id] + 1)
        for lane, floor in self._mirror.floors.items():
            memory.tags.saw(lane, floor)
        for want in self._request.wants:
            mine = [job for job in claimed.jobs if job.queue == want.queue]
            memory.lanes[want.queue].claimed(mine)
            if claimed.set_aside or any(is_gated(job) for job in mine):
                memory.gated_until[want.queue] = seam.monotonic() + GATED_SECONDS


def _arrays(ranges: Ranges) -> list[Any]:
    starts = [start for start, _ in ranges]
    return [
        Ints([np for np, _, _ in starts]),
        Bigints([pass_ for _, pass_, _ in starts]),
        Bigints([due for _, _, due in starts]),
        Ints([until for _, until in ranges]),
    ]


def _order(row: tuple[Job, int]) -> tuple[int, int, int, bytes]:
    return sort_key(row[0])
