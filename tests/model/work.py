"""What workers and duties do: claim, end by live and by stale leases, split, sweep what is due."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from msgspec.structs import replace

from tessera.model.changes import (
    After,
    Answer,
    Change,
    Done,
    DropJob,
    Edge,
    EditJob,
    Edits,
    Free,
    Group,
    Held,
    Lapsed,
    Link,
    MoveJob,
    Otherwise,
    Refused,
)
from tessera.model.job import NEVER, Job, Keep, Need
from tessera.model.policy import Ceiling, Rate
from tessera.model.queries import Claimed, ClaimRequest, Want
from tessera.model.states import EventLevel, State
from tests.conformance.rig import LEASE, add, end_of, key_of, sweep_groups
from tests.model.pair import COUNTERS, SLOTS, Pair

QUEUES = ("q", "r")
RATE = Rate(3, 20_000, burst=2, exact=True)

queues = st.sampled_from(QUEUES)
states = st.sampled_from(sorted(State))
delays = st.sampled_from((0, 0, 0, 1, 5_000, 60_000))
needs = st.lists(st.sampled_from(COUNTERS), max_size=2, unique=True).map(
    lambda keys: tuple(Need(key, 2 if key == "d/1" else 1) for key in keys)
)
keeps = st.sampled_from((Keep(), Keep(5_000, 60_000, 5_000), Keep(0, 0, 0), Keep(NEVER, 0, NEVER)))
picks = st.integers(0, 10**6)
"""Which of the things that exist by then; taken modulo their number."""


class Work(Pair):
    """See the module."""

    # Enqueue ------------------------------------------------------------------------------------------------

    @initialize()
    def declare_the_first_policy(self) -> None:
        self.write_policy({"c": Ceiling(2), "d": Ceiling(3), "x": RATE}, {})

    @initialize(count=st.integers(1, 4), needs=needs)
    def begin_with_some_work(self, count, needs):
        self.enqueue_many(count, "q", needs, EventLevel.FULL)
        self.enqueue_many(count, "r", (), EventLevel.ODD)

    @rule(
        queue=queues,
        priority=st.integers(-1, 1),
        delay=delays,
        tenant=st.sampled_from(("", "", "s", "t")),
        needs=needs,
        slots=st.lists(st.sampled_from(SLOTS[:4]), max_size=2, unique=True).map(tuple),
        parents=st.lists(
            st.tuples(
                picks,
                st.sampled_from(("completed", "completed", "ended")),
                st.sampled_from(("cancel", "cancel", "dead", "hold", "go")),
            ),
            max_size=2,
        ),
        expires=st.sampled_from((0, 0, 7_000)),
        keep=keeps,
        held=st.sampled_from((False, False, True)),
        level=st.sampled_from(sorted(EventLevel)),
        kind=st.sampled_from(("work", "work", "rare")),
        otherwise=st.sampled_from((None, None, Edits(payload=b"new", priority=1), Edits(due=After(5_000)))),
        tags=st.lists(st.sampled_from("xyz"), max_size=2, unique=True).map(tuple),
    )
    def enqueue(
        self,
        queue,
        priority,
        delay,
        tenant,
        needs,
        slots,
        parents,
        expires,
        keep,
        held,
        level,
        kind,
        otherwise,
        tags,
    ):
        edges = []
        name = f"j{len(self.names):04}"
        for pick, on, if_not in parents if self.names else ():
            edges.append(Edge(key_of(self.name(pick)), key_of(name), on, if_not))
        change = add(
            self.new_name(),
            queue,
            due=After(delay),
            expires=expires,
            after=edges,
            priority=priority,
            tenant=tenant,
            stride=1_000 if tenant else 0,
            needs=needs,
            slots=slots,
            keep=keep,
            held=held,
            events=level,
            kind=kind,
            tags=tags,
        )
        instead = None if otherwise is None else Otherwise(otherwise, tuple(State))
        answer = self.ask(change, given=tuple(Free(slot) for slot in slots), otherwise=instead)
        if isinstance(answer, Done) and answer.edited is None:
            # Of two edges to one parent the first one counts.
            first = {edge.parent: edge for edge in reversed(edges)}
            strict: set[bytes] = {
                key for key, edge in first.items() if edge.on == "completed" and edge.otherwise != "go"
            }
            self.plain.parents[key_of(name)] = strict

    @precondition(lambda self: self.names)
    @rule(pick=picks, payload=st.sampled_from((b"", b"other")), queue=queues)
    def enqueue_under_an_id_that_may_be_taken(self, pick, payload, queue):
        row = self.row(pick)
        if row is None:
            return  # an id that is free again is another life of it
        answer = self.ask(add(self.name(pick), queue, kind=row.kind, payload=payload))
        is_same = (row.queue, row.payload) == (queue, payload)
        assert isinstance(answer, Done if is_same else Refused)

    @rule(count=st.integers(2, 6), queue=queues, needs=needs, level=st.sampled_from(sorted(EventLevel)))
    def enqueue_many(self, count, queue, needs, level):
        answer = self.ask(*(add(self.new_name(), queue, needs=needs, events=level) for _ in range(count)))
        assert answer == Done()

    # Claim --------------------------------------------------------------------------------------------------

    @rule(
        wants=st.lists(st.tuples(queues, st.integers(1, 6)), min_size=1, max_size=2),
        limit=st.integers(1, 8),
        holder=st.sampled_from(("h1", "h2")),
        lease=st.sampled_from((LEASE, LEASE, 1_000)),
        kinds=st.sampled_from((None, None, None, frozenset({"work"}), frozenset({"rare"}))),
        counted=st.sampled_from((1_000_000, 1_000_000, 1)),
        scan=st.sampled_from((0, 0, 20)),
        cap=st.sampled_from((0, 0, 40_000)),
        behind=st.sampled_from((0, 0, 0, 0, 0, 0, 0, 1)),
    )
    def claim(self, wants, limit, holder, lease, kinds, counted, scan, cap, behind):
        policy = replace(self.policy, version=self.policy.version - behind)
        request = ClaimRequest(
            holder, tuple(Want(*want) for want in wants), limit, lease, policy, kinds, counted, scan, cap
        )
        claimed: Claimed = self.verb(lambda store: store.claim(request))
        assert claimed.replan is bool(behind)
        assert len(claimed.jobs) <= limit
        assert claimed.now == self.now()
        for job in claimed.jobs:
            self.plain.claimed(job, claimed.now)
            self.given.append(job)
            assert job.kind in (kinds or {job.kind})
            assert not self.policy.queue(job.queue).paused
            if any(need.key == "x" for need in job.needs):
                self.plain.started(job.id, claimed.now, RATE.limit, RATE.per_ms)
        self.check_ceilings(claimed)

    @rule(limit=st.integers(1, 8), holder=st.sampled_from(("h1", "h2")))
    def claim_from_all(self, limit, holder):
        self.claim([(queue, limit) for queue in QUEUES], limit, holder, LEASE, None, 1_000_000, 0, 0, 0)

    @rule(
        limit=st.integers(1, 8),
        ends=st.lists(st.sampled_from(("completed", "completed", "failed", "dead", "split")), max_size=8),
    )
    def work_for_a_while(self, limit, ends):
        """A worker that claims, and ends what it claimed."""
        before = len(self.given)
        self.claim_from_all(limit, "h1")
        for number, (_, end) in enumerate(zip(self.given[before:], ends, strict=False)):
            pick = len(self.given) - 1 - before - number
            if end == "completed":
                self.complete(pick, 0, None)
            elif end == "split":
                self.split(pick, 2, "cancel", "q")
            else:
                self.end_otherwise(pick, (end, State.DEAD if end == "dead" else State.AVAILABLE), 0, 0)

    @rule(rounds=st.integers(1, 3))
    def run_dry(self, rounds):
        """INV-31: time passes, what lapsed is taken back, and whatever may run is completed."""
        for _ in range(rounds):
            self.let_time_pass(LEASE)
            self.sweep(0, 100)
            self.work_for_a_while(8, ["completed"] * 8)

    @rule(
        limit=st.integers(1, 4),
        away=st.sampled_from((LEASE - 1, LEASE, 2 * LEASE)),
        swept=st.booleans(),
        again=st.booleans(),
        what=st.sampled_from(("complete", "fail", "renew", "give back", "discard", "split")),
    )
    def come_back_late(self, limit, away, swept, again, what):
        """INV-5, INV-7: a worker claims, stands still, and writes when another may have its jobs."""
        before = len(self.given)
        self.claim_from_all(limit, "h1")
        mine = self.given[before:]
        self.let_time_pass(away)
        if swept:
            self.sweep(0, 100)
        if again:
            self.claim_from_all(limit, "h2")
        for number in range(len(mine)):
            pick = len(self.given) - 1 - before - number
            match what:
                case "complete":
                    self.complete(pick, 0, b"late")
                case "fail":
                    self.end_otherwise(pick, ("failed", State.AVAILABLE), 0, 0)
                case "renew":
                    self.renew(pick, LEASE)
                case "give back":
                    self.give_back(pick)
                case "discard":
                    self.discard(pick)
                case "split":
                    self.split(pick, 1, "cancel", "q")

    def check_ceilings(self, claimed: Claimed) -> None:
        """INV-25: whatever a claim took a unit of is not over its ceiling afterwards."""
        running = [row for row in self.rows() if row.state is State.RUNNING]
        for key in {need.key for job in claimed.jobs for need in job.needs}:
            policy = self.policy.counter(key)
            if isinstance(policy, Ceiling):
                held = sum(need.units for row in running for need in row.needs if need.key == key)
                assert held <= policy.limit, f"the ceiling of {key} was passed"

    # Ends, by live and stale leases -------------------------------------------------------------------------

    def write_end(
        self, pick: int, off: int, end: str, move: Callable[[Job], Change], *others: Change
    ) -> Answer | None:
        """Ask for an end under a lease that was once given, and hold the answer against the plain model."""
        lease = self.given[-1 - pick % len(self.given)]
        fence = lease.fence + off
        alive = self.plain.may_write(lease.id, fence, self.now())
        repeat = self.plain.is_repeat(lease.id, fence, end)
        answer = self.ask(*others, move(lease), given=(Held(lease.id, fence, end),))
        if alive:
            assert isinstance(answer, Done), answer
            assert not answer.replayed
            self.plain.let_go(lease.id, end)
        elif repeat:
            assert answer == Done(replayed=True)
        else:
            assert isinstance(answer, Refused)
        return answer if alive else None

    @precondition(lambda self: self.given)
    @rule(pick=picks, off=st.sampled_from((0, 0, 0, 0, -1, 1)), result=st.sampled_from((None, b"1")))
    def complete(self, pick, off, result):
        def move(job: Job) -> Change:
            return MoveJob(job.id, State.COMPLETED, edits=Edits(result=result), end=end_of(job, "completed"))

        self.write_end(pick, off, "completed", move)

    @precondition(lambda self: self.given)
    @rule(
        pick=picks,
        how=st.sampled_from(
            (
                ("failed", State.AVAILABLE),
                ("failed", State.AVAILABLE),
                ("failed", State.DEAD),
                ("released", State.AVAILABLE),
                ("snoozed", State.SCHEDULED),
                ("aborted", State.DEAD),
                ("cancelled", State.CANCELLED),
                ("parked", State.WAITING),
                ("crashed", State.QUARANTINED),
            )
        ),
        delay=delays,
        off=st.sampled_from((0, 0, 0, 0, -1, 1)),
    )
    def end_otherwise(self, pick, how, delay, off):
        end, to = how

        def move(job: Job) -> Change:
            edits = Edits(failures=job.failures + (end == "failed"))
            return MoveJob(job.id, to, After(delay), edits, end_of(job, end, "why"), end)

        self.write_end(pick, off, end, move)

    @precondition(lambda self: self.given)
    @rule(pick=picks)
    def give_back(self, pick):
        lease = self.given[-1 - pick % len(self.given)]

        def move(job: Job) -> Change:
            edits = Edits(attempt=job.attempt - 1)
            return MoveJob(job.id, State.AVAILABLE, edits=edits, end=end_of(job, "given_back"), refund=True)

        done = self.write_end(pick, 0, "given_back", move)
        if done is not None:
            self.plain.refunded(lease.id)

    @precondition(lambda self: self.given)
    @rule(pick=picks)
    def discard(self, pick):
        lease = self.given[-1 - pick % len(self.given)]
        alive = self.plain.may_write(lease.id, lease.fence, self.now())
        answer = self.ask(DropJob(lease.id, "discarded", "h"), given=(Held(lease.id, lease.fence),))
        assert isinstance(answer, Done) is alive
        if alive:
            self.forget(lease.id)

    @precondition(lambda self: self.given)
    @rule(pick=picks, ms=st.sampled_from((LEASE, LEASE, 1, 0)))
    def renew(self, pick, ms):
        lease = self.given[-1 - pick % len(self.given)]
        alive = self.plain.may_write(lease.id, lease.fence, self.now())
        answer = self.ask(EditJob(lease.id, Edits(lease=After(ms))), given=(Held(lease.id, lease.fence),))
        assert isinstance(answer, Done) is alive
        if alive:
            self.plain.renewed(lease.id, self.now() + ms)

    @precondition(lambda self: self.given)
    @rule(
        pick=picks,
        count=st.integers(1, 3),
        otherwise=st.sampled_from(("cancel", "dead", "go", "hold")),
        queue=queues,
    )
    def split(self, pick, count, otherwise, queue):
        """INV-20, INV-21: the join may run only when every child is done."""
        lease = self.given[-1 - pick % len(self.given)]
        alive = self.plain.may_write(lease.id, lease.fence, self.now())
        children = [f"j{len(self.names) + number:04}" for number in range(count)]
        self.names += children
        group = Group(
            (Held(lease.id, lease.fence, "split"),),
            (
                *(add(child, queue, parent=lease.id) for child in children),
                MoveJob(lease.id, State.WAITING, end=end_of(lease, "split")),
                *(Link(Edge(key_of(child), lease.id, "completed", otherwise)) for child in children),
            ),
        )
        repeat = self.plain.is_repeat(lease.id, lease.fence, "split")
        [answer] = self.commit(group)
        assert isinstance(answer, Done) is (alive or repeat)
        if alive:
            self.plain.let_go(lease.id, "split")
            if otherwise != "go":
                self.plain.parents.setdefault(lease.id, set()).update(key_of(child) for child in children)

    # Time ---------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from((1, 1_000, 5_000, 10_000, LEASE, 60_000, -3_600_000)))
    def let_time_pass(self, ms):
        if ms < 0 and self.clock.now < self.latest:
            ms = self.latest - self.clock.now  # one jump back at a time
        self.clock.advance(ms)
        # A store that was not asked meanwhile never saw the later time before a jump back.
        assert self.both(lambda rig: rig.due(1).now) == self.now()

    @rule(delay=st.sampled_from((0, 0, 5_000)), limit=st.sampled_from((100, 100, 3)))
    def sweep(self, delay, limit):
        """What is due, cut short or not."""
        due = self.compare_due()
        if limit < 100:
            lists = ("scheduled", "lapsed", "expired", "gone", "slots", "counters", "records")
            due = replace(due, **{name: getattr(due, name)[:limit] for name in lists})
        for job in due.lapsed:
            assert not self.plain.may_write(job.id, job.fence, due.now), "a live lease was called lapsed"
        self.read_before.append(due)
        self.write_sweep(sweep_groups(due, delay))

    @precondition(lambda self: self.read_before)
    @rule(pick=picks, ms=st.sampled_from((1, 5_000, LEASE)))
    def sweep_with_what_was_read_before(self, pick, ms):
        """INV-2, INV-8: a duty that stood still between reading and writing harms nobody."""
        self.read_before.append(self.compare_due())
        self.let_time_pass(ms)
        self.work_for_a_while(3, ["completed", "dead"])
        self.write_sweep(sweep_groups(self.read_before[-1 - pick % len(self.read_before)]))

    def write_sweep(self, groups: list[Group]) -> None:
        lapsed = [guard for group in groups for guard in group.guards if isinstance(guard, Lapsed)]
        over = {guard for guard in lapsed if self.plain.is_over(guard.job, guard.fence, self.now())}
        for group, answer in zip(groups, self.commit(*groups), strict=True):
            for guard in group.guards:
                if isinstance(guard, Lapsed):
                    assert isinstance(answer, Done) is (guard in over)
                    if guard in over:
                        self.plain.let_go(guard.job, "crashed")
            for change in group.changes:
                if isinstance(change, DropJob) and isinstance(answer, Done):
                    self.forget(change.job)
        self.note_what_is_not_kept()
