"""The same random life is led in memory and in SQLite: every answer must agree, and both must agree with a plain model.

``TESSERA_TEST_SEED`` repeats the run whose seed a failure printed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from tessera.model.changes import (
    After,
    Answer,
    AtVersion,
    Below,
    Change,
    Count,
    Done,
    DropJob,
    DropRecord,
    Edge,
    EditJob,
    Edits,
    Free,
    FreeSlot,
    Group,
    Guard,
    Held,
    InState,
    Lapsed,
    Link,
    LogEvent,
    MoveJob,
    Otherwise,
    PublishBlob,
    PutRecord,
    Refused,
    TakeSlot,
)
from tessera.model.job import NEVER, Job, Keep, Need
from tessera.model.policy import POLICY_SPACE, Ceiling, CounterPolicy, Policy, QueuePolicy, Rate
from tessera.model.queries import Claimed, ClaimRequest, Filter, Want
from tessera.model.states import FINAL, EventLevel, State
from tests.conformance.conftest import build
from tests.conformance.rig import LEASE, ManualClock, Rig, add, end_of, key_of, sweep_groups
from tests.model.plain import Plain

T = TypeVar("T")

QUEUES = ("q", "r")
SLOTS = ("u:1", "u:2", "ud:1", "id:1", "t:1")
COUNTERS = ("c", "d/1", "x")
"""With a ceiling that changes, with one that is fixed, and with an exact rate."""
RATE = Rate(3, 20_000, burst=2, exact=True)
RECORDS = tuple((space, key) for space in ("notes", "~notes") for key in ("a", "b"))

queues = st.sampled_from(QUEUES)
states = st.sampled_from(sorted(State))
delays = st.sampled_from((0, 0, 0, 1, 5_000, 60_000))
needs = st.lists(st.sampled_from(COUNTERS), max_size=2, unique=True).map(
    lambda keys: tuple(Need(key, 2 if key == "d/1" else 1) for key in keys)
)
keeps = st.sampled_from((Keep(), Keep(5_000, 60_000, 5_000), Keep(0, 0, 0), Keep(NEVER, 0, NEVER)))
picks = st.integers(0, 10**6)
"""Which of the things that exist by then; taken modulo their number."""


class Stores(RuleBasedStateMachine):
    """See the module. A step is one verb, or one sweep."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.folder = tempfile.TemporaryDirectory()
        self.rigs = []
        for name in ("memory", "sqlite"):
            store, path = build(name, Path(self.folder.name), self.clock, blocking=True)
            self.rigs.append(Rig(store, blocking=True, clock=self.clock, path=path))
            self.rigs[-1].run(store.open())
        self.plain = Plain()
        self.policy = Policy()
        self.names: list[str] = []
        self.given: list[Job] = []
        """Every lease that was ever handed out: live and stale ones."""
        self.requests: list[tuple[tuple[Group, ...], str, list[Answer]]] = []
        self.removed: set[bytes] = set()
        """Rows that were removed on purpose, or of which nothing was to be kept."""
        self.seen: dict[bytes, Job] = {}
        """The rows as they were last."""
        self.latest = 0
        self.steps = 0

    def teardown(self) -> None:
        try:
            self.compare_everything()
        finally:
            for rig in self.rigs:
                rig.end()
            self.folder.cleanup()

    # Asking both --------------------------------------------------------------------------------------------

    def both(self, ask: Callable[[Rig], T]) -> T:
        """The one answer that both stores give."""
        first, second = (ask(rig) for rig in self.rigs)
        assert first == second
        return first

    def verb(self, call: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        return self.both(lambda rig: rig.run(call(rig.store)))

    def commit(self, *groups: Group, request_id: str = "") -> list[Answer]:
        """Both stores' answers. What was refused must have left no trace."""
        before = self.rows() if len(groups) == 1 and not request_id else None
        answers = self.verb(lambda store: store.commit(groups, request_id))
        if before is not None and isinstance(answers[0], Refused):
            assert self.rows() == before, "a refused group left a trace"
        return answers

    def ask(
        self, *changes: Change, given: tuple[Guard, ...] = (), otherwise: Otherwise | None = None
    ) -> Answer:
        [answer] = self.commit(Group(given, changes, otherwise))
        return answer

    def rows(self) -> list[Job]:
        return self.both(lambda rig: rig.all_jobs())

    def now(self) -> int:
        self.latest = max(self.latest, self.clock.now)
        return self.latest

    def name(self, pick: int) -> str:
        return self.names[pick % len(self.names)]

    def row(self, pick: int) -> Job | None:
        return self.both(lambda rig: rig.find(self.name(pick)))

    def new_name(self) -> str:
        self.names.append(f"j{len(self.names):04}")
        return self.names[-1]

    # Enqueue ------------------------------------------------------------------------------------------------

    @initialize()
    def declare_the_first_policy(self) -> None:
        self.write_policy({"c": Ceiling(2), "d": Ceiling(3), "x": RATE}, {})

    @initialize(count=st.integers(1, 4), needs=needs)
    def begin_with_some_work(self, count, needs):
        self.enqueue_many(count, "q", needs)
        self.enqueue_many(count, "r", ())

    @rule(
        queue=queues,
        priority=st.integers(-1, 1),
        delay=delays,
        tenant=st.sampled_from(("", "", "s", "t")),
        needs=needs,
        slots=st.lists(st.sampled_from(SLOTS[:4]), max_size=2, unique=True).map(tuple),
        parents=st.lists(st.tuples(picks, st.sampled_from(("completed", "completed", "ended")),
                                   st.sampled_from(("cancel", "cancel", "dead", "hold", "go"))), max_size=2),
        expires=st.sampled_from((0, 0, 7_000)),
        keep=keeps,
        held=st.sampled_from((False, False, True)),
        level=st.sampled_from(sorted(EventLevel)),
        kind=st.sampled_from(("work", "work", "rare")),
        otherwise=st.sampled_from((None, None, Edits(payload=b"new", priority=1), Edits(due=After(5_000)))),
        tags=st.lists(st.sampled_from("xyz"), max_size=2, unique=True).map(tuple),
    )  # fmt: skip
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
            self.new_name(), queue, due=After(delay), expires=expires, after=edges, priority=priority, tenant=tenant,
            stride=1_000 if tenant else 0, needs=needs, slots=slots, keep=keep, held=held, events=level, kind=kind, tags=tags,
        )  # fmt: skip
        instead = None if otherwise is None else Otherwise(otherwise, tuple(State))
        answer = self.ask(change, given=tuple(Free(slot) for slot in slots), otherwise=instead)
        if isinstance(answer, Done) and answer.edited is None:
            # Of two edges to one parent the first one counts.
            first = {edge.parent: edge for edge in reversed(edges)}
            strict = {key for key, edge in first.items() if edge.on == "completed" and edge.otherwise != "go"}
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

    @rule(count=st.integers(2, 6), queue=queues, needs=needs)
    def enqueue_many(self, count, queue, needs):
        answer = self.ask(*(add(self.new_name(), queue, needs=needs) for _ in range(count)))
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
        self.write_end(
            pick, off, "completed",
            lambda job: MoveJob(job.id, State.COMPLETED, edits=Edits(result=result), end=end_of(job, "completed")),
        )  # fmt: skip

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
        self.write_end(
            pick, off, end,
            lambda job: MoveJob(
                job.id, to, After(delay), Edits(failures=job.failures + (end == "failed")), end_of(job, end, "why"), end
            ),
        )  # fmt: skip

    @precondition(lambda self: self.given)
    @rule(pick=picks)
    def give_back(self, pick):
        lease = self.given[-1 - pick % len(self.given)]
        done = self.write_end(
            pick, 0, "given_back",
            lambda job: MoveJob(
                job.id, State.AVAILABLE, edits=Edits(attempt=job.attempt - 1), end=end_of(job, "given_back"), refund=True
            ),
        )  # fmt: skip
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

    # Operators ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.names)
    @rule(pick=picks, to=states, delay=delays, release=st.booleans())
    def move(self, pick, to, delay, release):
        """Any job to any state, allowed or not."""
        row = self.row(pick)
        edits = Edits(held=False) if release else Edits()
        answer = self.ask(
            MoveJob(key_of(self.name(pick)), to, After(delay), edits, reason="operator", by="ada")
        )
        if row is None:
            assert isinstance(answer, Refused)
            return
        if isinstance(answer, Refused):
            return
        assert to not in (State.RUNNING, State.BLOCKED)
        if row.state is State.RUNNING:
            self.plain.let_go(row.id, "")
        if row.is_final:
            assert row.state is not State.COMPLETED
            del self.plain.ended[row.id]
            self.plain.parents.pop(row.id, None)
        self.note_what_is_not_kept()

    @precondition(lambda self: self.names)
    @rule(pick=picks, edits=st.sampled_from((
        Edits(priority=1), Edits(priority=-1), Edits(tags=("x", "z")), Edits(tags=()), Edits(due=After(2_000)),
        Edits(due=After(0)), Edits(payload=b"edited", max_attempts=3), Edits(cancel_requested=True), Edits(watched=True),
    )))  # fmt: skip
    def edit(self, pick, edits):
        self.ask(EditJob(key_of(self.name(pick)), edits))

    @precondition(lambda self: self.names)
    @rule(pick=picks)
    def drop(self, pick):
        row = self.row(pick)
        answer = self.ask(DropJob(key_of(self.name(pick)), "deleted", "ada"))
        assert isinstance(answer, Done) is (row is not None)
        if row is not None:
            self.forget(row.id)

    @rule(ceiling=st.sampled_from((0, 1, 2, 5, None)), paused=st.sampled_from(QUEUES + ("",)))
    def change_the_policy(self, ceiling, paused):
        counters: dict[str, CounterPolicy] = {"d": Ceiling(3), "x": RATE}
        if ceiling is not None:
            counters["c"] = Ceiling(ceiling)
        self.write_policy(counters, {paused: QueuePolicy(paused=True)} if paused else {})

    def write_policy(self, counters: dict[str, CounterPolicy], queues: dict[str, QueuePolicy]) -> None:
        self.ask(PutRecord(POLICY_SPACE, "installation", b"{}"))
        version = self.verb(lambda store: store.policy_version())
        assert version == self.policy.version + 1
        self.policy = Policy(version, queues, counters)

    # Records, slots, counters, edges, blobs -----------------------------------------------------------------

    @rule(where=st.sampled_from(RECORDS), version=st.integers(0, 4), value=st.sampled_from((b"", b"v")), expires=delays,
          due=delays, drop=st.booleans())  # fmt: skip
    def write_a_record(self, where, version, value, expires, due, drop):
        """INV-19: iff the version is the current one."""
        found = self.both(lambda rig: rig.record(*where))
        change: Change = DropRecord(*where)
        if not drop:
            change = PutRecord(*where, value, After(due) if due else 0, After(expires) if expires else 0)
        answer = self.ask(change, given=(AtVersion(*where, version),))
        assert isinstance(answer, Done) is (version == (found.version if found else 0))

    @precondition(lambda self: self.names)
    @rule(what=st.sampled_from(("take", "free", "count", "close", "link", "link", "stage", "publish")), pick=picks, other=picks,
          small=st.integers(-2, 4), ms=st.sampled_from((1, 5_000)), otherwise=st.sampled_from(("cancel", "hold", "go")))  # fmt: skip
    def change_something_else(self, what, pick, other, small, ms, otherwise):
        """The nouns beside jobs: one rule, so that jobs stay the main matter of a life."""
        key = key_of(self.name(pick))
        upload, sha256 = "ab"[pick % 2], bytes([pick % 2, max(small, 0)]) * 16
        match what:
            case "take":
                self.ask(TakeSlot("t:1", key, After(ms)))
            case "free":
                self.ask(FreeSlot("t:1", key))
            case "count":
                self.ask(Count("~own", small), given=(Below("~own", other % 5),))
            case "close":
                self.ask(Count("cx"[other % 2], close=After(ms)))
            case "link":
                self.link(key, key_of(self.name(other)), otherwise)
            case "stage":
                self.verb(lambda store: store.stage(upload, other % 3, b"chunk"))
            case "publish":
                size = 5 * max(small, 0)
                if isinstance(self.ask(PublishBlob(upload, sha256, size)), Done):
                    assert self.both(lambda rig: len(rig.blob(sha256))) == size

    def link(self, child, parent, otherwise):
        known = {edge for edge, _ in self.both(lambda rig: rig.run(rig.store.edges(child)))}
        answer = self.ask(Link(Edge(parent, child, "completed", otherwise)))
        if isinstance(answer, Done) and otherwise != "go" and parent not in known:
            self.plain.parents.setdefault(child, set()).add(parent)

    # Batches and repeats ------------------------------------------------------------------------------------

    @precondition(lambda self: self.names)
    @rule(picks=st.lists(st.tuples(picks, st.sampled_from(("cancel", "edit", "add", "record", "event", "never"))), min_size=1,
                         max_size=5), again=st.booleans())  # fmt: skip
    def commit_a_batch_with_a_request_id(self, picks, again):
        """INV-3: neighbours are independent, and a repeat changes nothing."""
        groups = []
        for pick, what in picks:
            key = key_of(self.name(pick))
            match what:
                case "cancel":
                    not_running = tuple(sorted(set(State) - {State.RUNNING}))
                    groups.append(
                        Group(
                            (InState(key, not_running),),
                            (LogEvent("asked", "q", key), MoveJob(key, State.CANCELLED)),
                        )
                    )
                case "edit":
                    groups.append(
                        Group(
                            (),
                            (EditJob(key, Edits(priority=pick % 3 - 1)), PutRecord("notes", "a", b"batch")),
                        )
                    )
                case "add":
                    groups.append(Group((Free("u:1"),), (add(self.new_name(), slots=("u:1",)),)))
                case "record":
                    groups.append(
                        Group((AtVersion("notes", "b", pick % 3),), (PutRecord("notes", "b", b"batch"),))
                    )
                case "event":
                    groups.append(Group((), (LogEvent("noted", "q", key, "ada", b"data"),)))
                case "never":
                    groups.append(
                        Group((), (MoveJob(key, State.DEAD), Count("~own", 1), DropJob(key_of("nobody"))))
                    )
        request_id = f"r{len(self.requests)}"
        answers = self.commit(*groups, request_id=request_id)
        self.requests.append((tuple(groups), request_id, answers))
        self.note_what_is_not_kept()
        if again:
            self.repeat_a_request(0)

    @precondition(lambda self: self.requests)
    @rule(pick=picks)
    def repeat_a_request(self, pick):
        groups, request_id, answers = self.requests[-1 - pick % len(self.requests)]
        before = self.rows()
        assert self.commit(*groups, request_id=request_id) == answers
        assert self.rows() == before

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
        due = self.compare_due()
        if limit < 100:
            due = replace(
                due, scheduled=due.scheduled[:limit], lapsed=due.lapsed[:limit], expired=due.expired[:limit],
                gone=due.gone[:limit], slots=due.slots[:limit], records=due.records[:limit], counters=due.counters[:limit],
            )  # fmt: skip
        for job in due.lapsed:
            assert not self.plain.may_write(job.id, job.fence, due.now), "a live lease was called lapsed"
        groups = sweep_groups(due, delay)
        answers = self.commit(*groups)
        for group, answer in zip(groups, answers, strict=True):
            match group:
                case Group(guards=(Lapsed(job=job),)) if isinstance(answer, Done):
                    self.plain.let_go(job, "crashed")
                case Group(changes=(DropJob(job=job),)) if isinstance(answer, Done):
                    self.forget(job)
        self.note_what_is_not_kept()

    # Checks -------------------------------------------------------------------------------------------------

    def forget(self, job: bytes) -> None:
        self.plain.gone(job)
        self.removed.add(job)

    def note_what_is_not_kept(self) -> None:
        """INV-1: rows without retention go with their end, also those of children and dependants; no other row vanishes."""
        rows = {row.id: row for row in self.rows()}
        for key in self.seen.keys() - rows.keys() - self.removed:
            keep = self.seen[key].keep
            assert 0 in (keep.completed, keep.dead, keep.cancelled), "a row vanished"
            self.forget(key)
        self.seen = rows

    @invariant()
    def the_plain_model_agrees(self) -> None:
        self.now()
        self.note_what_is_not_kept()
        self.plain.look(self.rows(), self.both(lambda rig: rig.counts()), self.removed)
        self.steps += 1
        if self.steps % 7 == 0:
            self.compare_everything()

    def compare_due(self):
        """Lists without a promised order are compared as sets, when nothing was cut off."""

        def ask(rig: Rig):
            due = rig.due(1_000)
            return replace(
                due,
                lapsed=tuple(sorted(due.lapsed, key=lambda job: job.id)),
                expired=tuple(sorted(due.expired, key=lambda job: job.id)),
                gone=tuple(sorted(due.gone)),
                slots=tuple(sorted(due.slots, key=lambda slot: slot.key)),
                counters=tuple(sorted(due.counters)),
                records=tuple(sorted(due.records, key=lambda record: (record.space, record.key))),
            )

        return self.both(ask)

    def compare_everything(self) -> None:
        for rig in self.rigs:
            assert rig.run(rig.store.verify()) == []
        self.both(lambda rig: rig.dump())
        self.compare_due()
        self.verb(lambda store: store.counters((*COUNTERS, "~own")))
        self.verb(lambda store: store.get([*RECORDS, ("~request", "r0")]))
        for where in RECORDS:
            self.verb(lambda store, where=where: store.history(*where))
        for slot in SLOTS:
            self.verb(lambda store, slot=slot: store.commit([Group((Free(slot),))]))
        for which in (Filter(tags_any=("x", "y")), Filter(queues=("q",), states=tuple(sorted(FINAL))), Filter(holder="h1"),
                      Filter(blocked_on="c"), Filter(states=(State.BLOCKED,)), Filter(tenant="s")):  # fmt: skip
            self.both(lambda rig, which=which: rig.all_jobs(which, 7))
        numbers: dict[bytes, int] = {}
        for event in self.both(lambda rig: rig.events()):
            if event.job is not None and event.number:
                assert event.number == numbers.get(event.job, 0) + 1, "a gap in the numbers of a job"
                numbers[event.job] = event.number


COMMON = settings(
    stateful_step_count=50,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


@pytest.mark.capability("T1")
@pytest.mark.timeout(600)
def test_memory_and_sqlite_lead_the_same_life():
    """INV-1 to INV-9, INV-14, INV-15, INV-17, INV-19 to INV-21, INV-25, INV-26: always the same lives."""
    run_state_machine_as_test(Stores, settings=settings(COMMON, max_examples=60, derandomize=True))


@pytest.mark.timeout(600)
def test_memory_and_sqlite_lead_the_same_life_from_a_fresh_seed(record_property):
    """As above: other lives in each run."""
    number = int(os.environ.get("TESSERA_TEST_SEED") or int.from_bytes(os.urandom(4), "big"))
    record_property("seed", number)
    print(f"TESSERA_TEST_SEED={number}")
    fresh = seed(number)(type("Fresh", (Stores,), {}))
    run_state_machine_as_test(fresh, settings=settings(COMMON, max_examples=40))
