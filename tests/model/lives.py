"""What else may happen in the life of a store: operators, policies, records, batches and repeats."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from tessera.model.changes import (
    After,
    AtVersion,
    Below,
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
    InState,
    Link,
    LogEvent,
    MoveJob,
    PublishBlob,
    PutRecord,
    Refused,
    TakeSlot,
)
from tessera.model.policy import Ceiling, CounterPolicy, QueuePolicy
from tessera.model.states import State
from tests.conformance.rig import add, key_of
from tests.model.pair import RECORDS
from tests.model.work import QUEUES, RATE, Work, delays, picks, states

EDITS = (
    Edits(priority=1),
    Edits(priority=-1),
    Edits(tags=("x", "z")),
    Edits(tags=()),
    Edits(due=After(2_000)),
    Edits(due=After(0)),
    Edits(payload=b"edited", max_attempts=3),
    Edits(cancel_requested=True),
    Edits(watched=True),
)


class Lives(Work):
    """See the module. A step is one verb, or one sweep."""

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
            if to is State.COMPLETED:
                self.plain.completed.add(row.id)
        if row.is_final:
            assert row.state is not State.COMPLETED
            del self.plain.ended[row.id]
            self.plain.parents.pop(row.id, None)
        self.note_what_is_not_kept()

    @precondition(lambda self: self.names)
    @rule(
        pick=picks,
        edits=st.sampled_from(
            (
                Edits(priority=1),
                Edits(priority=-1),
                Edits(tags=("x", "z")),
                Edits(tags=()),
                Edits(due=After(2_000)),
                Edits(due=After(0)),
                Edits(payload=b"edited", max_attempts=3),
                Edits(cancel_requested=True),
                Edits(watched=True),
            )
        ),
    )
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

    @rule(ceiling=st.sampled_from((0, 1, 2, 5, None)), paused=st.sampled_from((*QUEUES, "")))
    def change_the_policy(self, ceiling, paused):
        counters: dict[str, CounterPolicy] = {"d": Ceiling(3), "x": RATE}
        if ceiling is not None:
            counters["c"] = Ceiling(ceiling)
        self.write_policy(counters, {paused: QueuePolicy(paused=True)} if paused else {})

    # Records, slots, counters, edges, blobs -----------------------------------------------------------------

    @rule(
        where=st.sampled_from(RECORDS),
        version=st.integers(0, 4),
        value=st.sampled_from((b"", b"v")),
        expires=delays,
        due=delays,
        drop=st.booleans(),
    )
    def write_a_record(self, where, version, value, expires, due, drop):
        """INV-19: iff the version is the current one."""
        found = self.both(lambda rig: rig.record(*where))
        change: PutRecord | DropRecord = DropRecord(*where)
        if not drop:
            space, key = where
            change = PutRecord(space, key, value, After(due) if due else 0, After(expires) if expires else 0)
        answer = self.ask(change, given=(AtVersion(change.space, change.key, version),))
        assert isinstance(answer, Done) is (version == (found.version if found else 0))

    @precondition(lambda self: self.names)
    @rule(
        what=st.sampled_from(("take", "free", "count", "close", "link", "link", "stage", "publish")),
        pick=picks,
        other=picks,
        small=st.integers(-2, 4),
        ms=st.sampled_from((1, 5_000)),
        otherwise=st.sampled_from(("cancel", "hold", "go")),
    )
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
    @rule(
        picks=st.lists(
            st.tuples(picks, st.sampled_from(("cancel", "edit", "add", "record", "event", "never"))),
            min_size=1,
            max_size=5,
        ),
        again=st.booleans(),
    )
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

    # After each step ----------------------------------------------------------------------------------------

    @invariant()
    def the_plain_model_agrees(self) -> None:
        self.now()
        self.note_what_is_not_kept()
        self.plain.look(self.rows(), self.both(lambda rig: rig.counts()), self.removed)
        self.steps += 1
        if self.steps % 7 == 0:
            self.compare_everything()
