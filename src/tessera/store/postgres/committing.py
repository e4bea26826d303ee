"""Commit: in one asserted flight where the process remembers what it writes about, else with a look.

Both ways run the same evaluator over the same kind of mirror and write with the same statements. The one
flight is the common case: a worker finishes jobs that it claimed, a producer stores jobs whose keys it has
just made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import UnsetType

from tessera.model.changes import (
    AddJob,
    Answer,
    Below,
    Done,
    EditJob,
    Edits,
    Group,
    Held,
    InState,
    Lapsed,
    MoveJob,
    Refused,
)
from tessera.model.errors import StoreBusy
from tessera.model.ids import JobId
from tessera.store import evaluator
from tessera.store.postgres import gate, writes
from tessera.store.postgres.driver import Flights, Query
from tessera.store.postgres.errors import Retry, Unasserted
from tessera.store.postgres.loads import CLOCK, CLOCK_AND_PATIENCE, Loader
from tessera.store.postgres.memory import Memory
from tessera.store.postgres.params import Bigints, Uuids
from tessera.store.postgres.site import Site
from tessera.store.sql import foresight
from tessera.store.sql.mirror import Mirror, Missing, Wanted
from tessera.store.working import Net, Working

ATTEMPTS: Final = 20
"""Looks at most, when others write the same rows meanwhile."""
CLOCK_SLACK_MS: Final = 2_000
LOCKED: Final = "its row is locked by another transaction"

# The clock that the rows were made by must be the store's, or the flight is taken back.
CHECK_CLOCK: Final = "SELECT 1 / (abs(now - $1) < $2)::int, now FROM {s}.clock_ms() AS now"
# A lock that changes nothing and needs all that a write needs.
PROBE: Final = "SELECT 1 FROM {s}.gate WHERE name = 'probe' FOR UPDATE"
# A row that its own transaction has locked (a finish in the application's transaction, still open) is passed
# over: nobody else can take it meanwhile.
RENEW: Final = """
WITH free AS MATERIALIZED (
    SELECT id FROM {s}.job WHERE id = ANY($1) FOR UPDATE SKIP LOCKED
)
UPDATE {s}.job j
SET lease_until = CASE WHEN u.cap > 0 THEN least({s}.clock_ms() + u.ms, u.cap) ELSE {s}.clock_ms() + u.ms END
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[]) AS u (id, fence, ms, cap)
WHERE j.id = u.id AND j.fence = u.fence AND j.state = 4 AND j.lease_until > {s}.clock_ms()
    AND j.id = ANY(ARRAY(SELECT id FROM free))
RETURNING uuid_send(j.id)
"""
STILL_HELD: Final = """
SELECT uuid_send(j.id)
FROM {s}.job j
JOIN unnest($1::uuid[], $2::bigint[]) AS u (id, fence) ON j.id = u.id AND j.fence = u.fence
WHERE j.id = ANY($1) AND j.state = 4 AND j.lease_until > {s}.clock_ms()
"""


FLOORS: Final = "SELECT queue, priority, pass FROM {s}.floor"


class Committer:
    """Commits of all handles of one colour."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._memory = site.memory

    async def commit(self, groups: Sequence[Group], request_id: str = "") -> list[Answer]:
        """See ``Store.commit``."""
        if not groups:
            await self._site.driver.flight([self._site.query(PROBE)])
            return []
        if self._memory.tags.are_stale() and _places_jobs(groups):
            floors = await self._site.ask(FLOORS)
            self._memory.tags.read(((queue, priority), floor) for queue, priority, floor in floors)
        if not request_id:
            if (renewals := _renewals(groups, self._memory)) is not None:
                return await self._renew(groups, renewals)
            if (answers := await self._in_one_flight(groups)) is not None:
                return answers
        return await self._with_a_look(groups, request_id)

    # One flight ---------------------------------------------------------------------------------------------

    async def _in_one_flight(self, groups: Sequence[Group]) -> list[Answer] | None:
        """The answers; None = it takes a look, and nothing was written."""
        now = self._memory.now()
        mirror = None if now is None else self._memory.mirror(groups, now)
        if now is None or mirror is None:
            return None
        guesses = self._memory.tags.guesses()
        work = Working(mirror, now, guesses)
        try:
            answers = evaluator.commit(work, groups)
            work.finish()
        except Missing:
            return None
        if any(isinstance(answer, Refused) for answer in answers):
            return None
        net = mirror.net()
        site = self._site
        queries = writes.queries(net, site.schema, mirror.revs, now, held=True)
        queries.append(site.query(CHECK_CLOCK, now, CLOCK_SLACK_MS))
        ringing = site.ringing(net)
        try:
            await site.driver.flight([*queries, *ringing])
        except (Unasserted, Retry):
            self._memory.forget(groups)
            return None
        guesses.keep()
        site.wrote(net, mirror.revs, ringing)
        return answers

    async def _renew(
        self, groups: Sequence[Group], renewals: list[tuple[JobId, int, int, int]]
    ) -> list[Answer]:
        keys, fences, spans, caps = (list(column) for column in zip(*renewals, strict=True))
        parameters = [Uuids(keys), Bigints(fences), Bigints(spans), Bigints(caps)]
        [found] = await self._site.driver.flight([self._site.query(RENEW, *parameters)])
        safe = {row[0] for row in found}
        if len(safe) < len(set(keys)):
            [found] = await self._site.driver.flight([self._site.query(STILL_HELD, *parameters[:2])])
            safe |= {row[0] for row in found}
        lost = [group for key, group in zip(keys, groups, strict=True) if key not in safe]
        refused = iter(await self._with_a_look(lost, "") if lost else ())  # who looks can say what is there
        return [Done() if key in safe else next(refused) for key in keys]

    # With a look --------------------------------------------------------------------------------------------

    async def _with_a_look(self, groups: Sequence[Group], request_id: str) -> list[Answer]:
        wanted = foresight.foreseen(groups, request_id)
        for _ in range(ATTEMPTS):
            try:
                async with self._site.driver.transaction() as transaction:
                    attempt = Attempt(self._site, transaction, groups, request_id, wanted)
                    answers, net = await attempt.evaluate()
                    ringing = self._site.ringing(net)
                    await transaction.flight([*attempt.queries(net), *ringing], last=True)
            except (Retry, Unasserted, LockedElsewhere):
                continue
            attempt.guesses.keep()
            self._site.wrote(net, attempt.mirror.revs, ringing)
            return answers
        raise StoreBusy(f"others changed the same rows {ATTEMPTS} times meanwhile; nothing was written")


class LockedElsewhere(Exception):
    """Rows that were not foreseen are locked: begin again, and lock all in one order."""


class Attempt:
    """One evaluation over one open transaction, our own or the caller's. ``wanted`` grows with what was found
    missing, so that the next attempt locks it in its place.
    """

    def __init__(
        self,
        site: Site,
        flights: Flights,
        groups: Sequence[Group],
        request_id: str,
        wanted: Wanted,
        *,
        ours: bool = True,
    ) -> None:
        self._site = site
        self._groups = groups
        self._request_id = request_id
        self._wanted = wanted
        self._ours = ours
        self.mirror = Mirror()
        self.guesses = site.memory.tags.guesses()
        self._loader = Loader(site, flights, self.mirror)

    async def evaluate(self) -> tuple[list[Answer], Net]:
        """The answers, and what is to be written. Raises LockedElsewhere."""
        site, groups, mirror, loader = self._site, self._groups, self.mirror, self._loader
        counted = any(isinstance(guard, Below) for group in groups for guard in group.guards)
        loader.ask_clock(CLOCK_AND_PATIENCE if self._ours else CLOCK)
        shifts = gate.pass_through(loader) if counted else None
        impatient = _impatient(groups)
        await loader.load(self._wanted, set(impatient.values()))
        await self._load_what_follows()
        refused = {
            number: Refused(groups[number].guards[0], why=LOCKED)
            for number, job in impatient.items()
            if job in loader.busy
        }
        left = [group for number, group in enumerate(groups) if number not in refused]
        while True:
            self.guesses = site.memory.tags.guesses()
            work = Working(mirror, loader.now, None if counted else self.guesses)
            try:
                if shifts is not None:
                    shifts.apply(work)
                answers = evaluator.commit(work, left, self._request_id)
                work.finish()
            except Missing as missing:
                mirror.take_back()
                await self._load_missing(missing.wanted)
                continue
            evaluated = iter(answers)
            return [
                refused[number] if number in refused else next(evaluated) for number in range(len(groups))
            ], mirror.net()

    def queries(self, net: Net) -> list[Query]:
        """The statements that write it."""
        return writes.queries(net, self._site.schema, self.mirror.revs, self._loader.now)

    async def _load_what_follows(self) -> None:
        follows = foresight.followed(self._groups, self.mirror)
        if not any(getattr(follows, name) for name in follows.__struct_fields__):
            return
        await self._loader.load(follows)
        await self._load_more(foresight.dependants(follows, self.mirror))

    async def _load_missing(self, wanted: Wanted) -> None:
        """What was not foreseen. A cascade comes at once, or each level would be a look of its own."""
        if wanted.edges_from:
            wanted.add(await self._loader.below(wanted.edges_from))
        await self._load_more(wanted)
        if wanted.edges_to:
            await self._load_more(foresight.dependants(Wanted(edges_to=wanted.edges_to), self.mirror))

    async def _load_more(self, wanted: Wanted) -> None:
        """Rows out of the order of locks: they are not waited for, unless the transaction is the caller's,
        which we cannot begin anew.
        """
        self._wanted.add(Wanted(jobs=wanted.jobs, archive=wanted.archive, slots=wanted.slots))
        await self._loader.load(wanted, wait=not self._ours)
        if self._ours and not self._loader.busy.isdisjoint(wanted.jobs):
            raise LockedElsewhere


def _places_jobs(groups: Sequence[Group]) -> bool:
    """Whether a job may become ready, so that it takes a pass."""
    return any(isinstance(change, AddJob | MoveJob) for group in groups for change in group.changes)


def _impatient(groups: Sequence[Group]) -> dict[int, JobId]:
    """Jobs of sweeps by the number of their group, save those that another group waits for."""
    found = {number: foresight.impatient(group.guards) for number, group in enumerate(groups)}
    patient = {
        guard.job
        for number, group in enumerate(groups)
        if found[number] is None
        for guard in group.guards
        if isinstance(guard, Held | Lapsed | InState)
    }
    return {number: job for number, job in found.items() if job is not None and job not in patient}


def _renewals(groups: Sequence[Group], memory: Memory) -> list[tuple[JobId, int, int, int]] | None:
    """(job, fence, milliseconds, cap) of groups that only renew leases of jobs this process has; None = they
    do more.
    """
    found = []
    for group in groups:
        if len(group.guards) != 1 or len(group.changes) != 1:
            return None
        [guard], [change] = group.guards, group.changes
        if not isinstance(guard, Held) or not isinstance(change, EditJob) or change.job != guard.job:
            return None
        job = memory.held(change.job)
        lease = change.edits.lease
        if job is None or isinstance(lease, UnsetType) or change.edits != Edits(lease=lease):
            return None
        found.append((change.job, guard.fence, lease.ms, job.cap_at))
    return found
