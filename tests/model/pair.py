"""Two stores that are asked the same, and what a test remembers of what they answered."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine
from msgspec.structs import replace

from tessera.model.changes import Answer, Change, Free, Group, Guard, Otherwise, PutRecord, Record, Refused
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.policy import POLICY_SPACE, CounterPolicy, Policy, QueuePolicy
from tessera.model.queries import Due, Filter
from tessera.model.states import FINAL, State
from tests.conformance.conftest import build
from tests.conformance.rig import ManualClock, Rig
from tests.model.plain import Plain

T = TypeVar("T")

SLOTS = ("u:1", "u:2", "ud:1", "id:1", "t:1")
COUNTERS = ("c", "d/1", "x")
"""With a ceiling that changes, with one that is fixed, and with an exact rate."""
RECORDS = (("notes", "a"), ("notes", "b"), ("~notes", "a"), ("~notes", "b"))
FILTERS = (
    Filter(tags_any=("x", "y")),
    Filter(queues=("q",), states=tuple(sorted(FINAL))),
    Filter(holder="h1"),
    Filter(blocked_on="c"),
    Filter(states=(State.BLOCKED,)),
    Filter(tenant="s"),
)


class Pair(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.rigs = self.make_rigs()
        self.clock = self.rigs[0].clock
        for rig in self.rigs:
            rig.run(rig.store.open())
        self.plain = Plain()
        self.policy = Policy()
        self.names: list[str] = []
        self.given: list[Job] = []
        """Every lease that was ever handed out: live and stale ones."""
        self.requests: list[tuple[tuple[Group, ...], str, list[Answer]]] = []
        self.removed: set[bytes] = set()
        """Rows that were removed on purpose, or of which nothing was to be kept."""
        self.seen: dict[JobId, Job] = {}
        """The rows as they were last."""
        self.read_before: list[Due] = []
        """What sweeps read, now or long ago."""
        self.latest = 0
        self.steps = 0

    def make_rigs(self) -> list[Rig]:
        """The two stores, not yet opened, with one clock."""
        clock = ManualClock()
        rigs = []
        for name in ("memory", "sqlite"):
            store, path, _ = build(name, Path(self.folder.name), blocking=True, clock=clock)
            rigs.append(Rig(store, blocking=True, clock=clock, path=path))
        return rigs

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

    def write_policy(self, counters: dict[str, CounterPolicy], queues: dict[str, QueuePolicy]) -> None:
        self.ask(PutRecord(POLICY_SPACE, "installation", b"{}"))
        version = self.verb(lambda store: store.policy_version())
        assert version == self.policy.version + 1
        self.policy = Policy(version, queues, counters)

    # Checks -------------------------------------------------------------------------------------------------

    def forget(self, job: bytes) -> None:
        self.plain.gone(job)
        self.removed.add(job)

    def note_what_is_not_kept(self) -> None:
        """INV-1: rows without retention go with their end, those of dependants too; no other row vanishes."""
        rows = {row.id: row for row in self.rows()}
        for key in self.seen.keys() - rows.keys() - self.removed:
            keep = self.seen[key].keep
            assert 0 in (keep.completed, keep.dead, keep.cancelled), "a row vanished"
            self.forget(key)
        self.seen = rows

    def compare_due(self) -> Due:
        """Lists without a promised order are compared as sets, when nothing was cut off."""

        def ask(rig: Rig) -> Due:
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
            self.verb(partial(_history, where=where))
        for slot in SLOTS:
            self.commit(Group((Free(slot),)))
        for which in FILTERS:
            self.both(partial(Rig.all_jobs, which=which, limit=7))
        numbers: dict[bytes, int] = {}
        for event in self.both(lambda rig: rig.events()):
            if event.job is not None and event.number:
                assert event.number == numbers.get(event.job, 0) + 1, "a gap in the numbers of a job"
                numbers[event.job] = event.number


async def _history(store: Any, where: tuple[str, str]) -> list[Record]:
    return await store.history(*where)
