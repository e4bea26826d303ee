"""Policies in two layers, and how fast they are heeded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tessera.engine import policies
from tessera.engine.policies import RECENT_SECONDS, Policies
from tessera.model.changes import Group, PutRecord
from tessera.model.errors import Conflict
from tessera.model.policy import POLICY_SPACE, Ceiling, KindPolicy, Policy, QueuePolicy, Rate
from tessera.model.queries import ClaimRequest, Want
from tessera.model.states import EventLevel
from tessera.store.protocol import Store
from tests.engine.lab import Lab

QUEUES = {"mail": QueuePolicy(weights={"a": 2.0}, events=EventLevel.FULL)}
COUNTERS = {"api": Rate(10, 1_000), "one": Ceiling(1)}
KINDS = {"send": KindPolicy(queue="mail", max_attempts=7, keep=(0, -1, 5))}


def declare(lab: Lab, **what: Any) -> bool:
    return lab.run(policies.declare(lab.store, **what))


def read(lab: Lab) -> Policy:
    return lab.run(Policies().current(lab.store))


def override(lab: Lab, queue: str, **fields: object) -> QueuePolicy:
    return lab.run(policies.override_queue(lab.store, queue, **fields))


def test_what_the_code_declares_is_what_is_read(lab: Lab):
    assert declare(lab, queues=QUEUES, counters=COUNTERS, kinds=KINDS)
    policy = read(lab)
    assert (policy.queues, policy.counters, policy.kinds) == (QUEUES, COUNTERS, KINDS)


def test_an_empty_store_says_nothing(lab: Lab):
    policy = read(lab)
    assert policy == Policy()
    assert (policy.queue("q"), policy.counter("api")) == (QueuePolicy(), None)
    assert not declare(lab)


@pytest.mark.capability("A14")
def test_declaring_the_same_again_writes_nothing(lab: Lab):
    """Every worker does it when it starts: claims of the others must not be planned again for it."""
    declare(lab, queues=QUEUES, counters=COUNTERS, kinds=KINDS)
    version = lab.run(lab.store.policy_version())
    assert not declare(lab, queues=QUEUES, counters=COUNTERS, kinds=KINDS)
    assert lab.run(lab.store.policy_version()) == version


def test_declaring_writes_only_what_differs(lab: Lab):
    declare(lab, queues=QUEUES, counters=COUNTERS)
    store = CountingStore(lab.store)
    lab.run(policies.declare(store, queues=QUEUES, counters=COUNTERS | {"one": Ceiling(2)}))  # type: ignore[arg-type]
    assert [
        change.key for group in store.groups for change in group.changes if isinstance(change, PutRecord)
    ] == ["counter/one/code"]


class CountingStore:
    """Remembers what was committed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.groups: list[Group] = []
        self.reads = 0

    def __getattr__(self, name: str) -> object:
        self.reads += name == "scan"
        return getattr(self._store, name)

    async def commit(self, groups: list[Group], request_id: str = "") -> object:
        self.groups += groups
        return await self._store.commit(groups, request_id)


def test_every_write_raises_the_version(lab: Lab):
    versions = [lab.run(lab.store.policy_version())]
    for write in (
        lambda: declare(lab, queues=QUEUES),
        lambda: override(lab, "mail", paused=True),
        lambda: lab.ceiling("one", 3),
    ):
        write()
        versions.append(lab.run(lab.store.policy_version()))
    assert versions == [0, 1, 2, 3]


@pytest.mark.capability("A14")
def test_the_operator_wins_field_by_field(lab: Lab):
    declare(lab, queues=QUEUES)
    override(lab, "mail", paused=True)
    assert read(lab).queue("mail") == QueuePolicy(True, {"a": 2.0}, EventLevel.FULL)
    override(lab, "mail", weights={"b": 1.0})
    assert read(lab).queue("mail") == QueuePolicy(True, {"b": 1.0}, EventLevel.FULL)
    declare(lab, queues={"mail": QueuePolicy(paused=False, events=EventLevel.OFF)})
    assert read(lab).queue("mail") == QueuePolicy(True, {"b": 1.0}, EventLevel.OFF)


def test_an_operators_field_may_be_taken_back(lab: Lab):
    declare(lab, queues=QUEUES)
    override(lab, "mail", paused=True, events=EventLevel.OFF)
    override(lab, "mail", events=None)
    assert read(lab).queue("mail") == QueuePolicy(True, {"a": 2.0}, EventLevel.FULL)


def test_the_operators_layer_of_a_counter_and_of_a_kind_wins_as_a_whole(lab: Lab):
    declare(lab, counters=COUNTERS, kinds=KINDS)
    for key, said in (("counter/api", Ceiling(3)), ("kind/send", KindPolicy(priority=9))):
        lab.do(PutRecord(POLICY_SPACE, f"{key}/operator", msgspec.json.encode(said)))
    policy = read(lab)
    assert policy.counters == {"api": Ceiling(3), "one": Ceiling(1)}
    assert policy.kinds["send"] == KindPolicy(priority=9)


def test_names_with_dots_and_slashes_keep_their_layers_apart(lab: Lab):
    declare(lab, queues={"a.b": QueuePolicy(paused=True)}, kinds={"billing/v2": KindPolicy(priority=1)})
    policy = read(lab)
    assert (policy.queue("a.b").paused, policy.kinds["billing/v2"].priority) == (True, 1)


def test_more_policies_than_a_page_holds_are_all_read(lab: Lab):
    declare(lab, counters={f"c{n}": Ceiling(n) for n in range(450)})
    assert read(lab).counters["c449"] == Ceiling(449)
    assert len(read(lab).counters) == 450


def test_a_policy_is_read_as_of_one_version(lab: Lab):
    declare(lab, counters={"one": Ceiling(1)})
    store = lab.between("scan", lambda: lab.ceiling("one", 2))
    mine = Policies()
    policy = lab.run(mine.reread(store))
    assert (policy.version, policy.counters) == (2, {"one": Ceiling(2)})


def test_a_record_of_a_sort_that_is_not_known_yet_is_left_alone(lab: Lab):
    """INV-32: a newer release may have written it."""
    lab.do(PutRecord(POLICY_SPACE, "budget/acme/code", b"{}"))
    assert read(lab) == Policy(version=1)


# How recent -------------------------------------------------------------------------------------------------


def test_producers_look_again_only_after_a_while(lab: Lab):
    """Weights and event levels are no matter of safety."""
    mine = Policies()
    store = CountingStore(lab.store)
    lab.run(mine.recent(store))  # type: ignore[arg-type]
    lab.ceiling("one", 1)
    lab.advance(int(RECENT_SECONDS * 1_000) - 1)
    assert lab.run(mine.recent(store)).counters == {}  # type: ignore[arg-type]
    lab.advance(1)
    assert lab.run(mine.recent(store)).counters == {"one": Ceiling(1)}  # type: ignore[arg-type]
    assert store.reads == 2


def test_a_version_that_is_still_the_same_costs_no_reading(lab: Lab):
    mine = Policies()
    store = CountingStore(lab.store)
    first = lab.run(mine.recent(store))  # type: ignore[arg-type]
    for _ in range(3):
        lab.advance(60_000)
        assert lab.run(mine.recent(store)) is first  # type: ignore[arg-type]
    assert store.reads == 1


@pytest.mark.capability("A14")
def test_a_pause_holds_for_the_very_next_claim_of_everybody(lab: Lab):
    """A claim under the version of before is planned again."""
    lab.enqueue()
    others = Policies()
    lab.run(others.current(lab.store))
    override(lab, "q", paused=True)
    assert lab.claim(policies=others) == []
    override(lab, "q", paused=False)
    assert len(lab.claim(policies=others)) == 1


def test_a_store_refuses_a_claim_under_another_version(lab: Lab):
    lab.enqueue()
    request = ClaimRequest("h", (Want("q", 1),), 1, 30_000, Policy(version=7))
    claimed = lab.run(lab.store.claim(request))
    assert (claimed.jobs, claimed.replan, claimed.policy_version) == ((), True, 0)


def test_two_operators_at_once_lose_nothing_of_each_other(lab: Lab):
    """INV-19."""
    store = lab.between("commit", lambda: override(lab, "q", weights={"a": 5.0}))
    lab.run(policies.override_queue(store, "q", paused=True))
    assert read(lab).queue("q") == QueuePolicy(paused=True, weights={"a": 5.0})


class Restless:
    """Somebody else writes right before every call of one verb."""

    def __init__(self, lab: Lab, verb: str) -> None:
        self._lab = lab
        self._verb = verb
        self._count = 0

    def __getattr__(self, name: str) -> object:
        if name == self._verb:
            self._count += 1
            override(self._lab, "q", weights={"a": float(self._count)})
        return getattr(self._lab.store, name)


def test_policies_that_never_keep_still_are_an_error_and_no_endless_loop(lab: Lab):
    with pytest.raises(Conflict, match="change faster"):
        lab.run(Policies().reread(Restless(lab, "scan")))  # type: ignore[arg-type]
    with pytest.raises(Conflict, match="by somebody else"):
        lab.run(policies.override_queue(Restless(lab, "commit"), "q", paused=True))  # type: ignore[arg-type]
    with pytest.raises(Conflict, match="than a claim can follow"):
        lab.run(lab.claimer(Restless(lab, "claim")).claim(["q"], 1, counted_limit=1))  # type: ignore[arg-type]
