"""The audit: a sound store has nothing to tell, and each kind of damage is told apart."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace

from tessera.model.changes import Counter, Edge, Slot
from tessera.model.job import Job, Need
from tessera.model.states import State
from tessera.store.audit import differences
from tessera.store.memory import MemoryStore
from tests.conformance.rig import Rig, add, key_of
from tests.servers import schemas


def row(name: str, state: State, **fields) -> Job:
    return replace(add(name).job, state=state, **fields)


RUNNING = row("a", State.RUNNING, holds=(Need("c", 2),), slots=("u:x",))
WAITING = row("b", State.PENDING, open=1)
BLOCKED = row("d", State.BLOCKED, needs=(Need("c"),), blocked_on="c")
WOKEN = row("e", State.AVAILABLE, needs=(Need("c"),), blocked_on="c")
DEAD = row("f", State.DEAD)
COUNTS = {("q", job.state): 1 for job in (RUNNING, WAITING, BLOCKED, WOKEN, DEAD)}
SOUND: dict[str, Any] = {
    "jobs": [RUNNING, WAITING, BLOCKED, WOKEN],
    "archive": [DEAD],
    "counts": COUNTS,
    "counters": [Counter(key="c", used=2, blocked=1, awake=1), Counter(key="~own", used=7)],
    "slots": [Slot("u:x", RUNNING.id), Slot("id:y", DEAD.id), Slot("t:z", key_of("gone"), expires_at=5)],
    "edges": [Edge(RUNNING.id, WAITING.id)],
}


@pytest.mark.capability("W19")
@pytest.mark.parametrize(
    "damage,told",
    [
        ({}, []),
        ({"counts": {**COUNTS, ("q", State.DEAD): 2}}, ["count q/dead says 2, the rows say 1"]),
        ({"counts": {**COUNTS, ("x", State.DEAD): 1}}, ["count x/dead says 1, the rows say 0"]),
        (
            {"counters": [Counter(key="c", used=3, blocked=1, awake=1)]},
            ["counter c says 3 used, the rows say 2"],
        ),
        (
            {"counters": [Counter(key="c", used=2, blocked=0, awake=2)]},
            ["counter c says 0 set aside, the rows say 1", "counter c says 2 promised, the rows say 1"],
        ),
        (
            {"counters": [*SOUND["counters"], Counter(key="left", used=1)]},
            ["counter left says 1 used, the rows say 0"],
        ),
        ({"slots": []}, ["slot u:x is not owned by its job"]),
        ({"slots": [Slot("u:x", WAITING.id)]}, ["slot u:x is not owned by its job"]),
        (
            {"slots": [*SOUND["slots"], Slot("u:y", key_of("gone"))]},
            ["slot u:y is owned by a job that is gone"],
        ),
        ({"edges": []}, ["says it waits for 1 jobs, the edges say 0"]),
        ({"edges": [*SOUND["edges"], Edge(RUNNING.id, DEAD.id)]}, ["is not live"]),
        (
            {"archive": [DEAD, replace(WAITING, state=State.CANCELLED)]},
            ["count q/cancelled says 0, the rows say 1", "is both live and archived"],
        ),
    ],
)
def test_each_kind_of_damage_is_told(damage: dict, told: list[str]):
    """INV-15, INV-17, INV-20, INV-25."""
    found = differences(**(SOUND | damage))
    assert len(found) == len(told)
    for sentence, words in zip(sorted(found), sorted(told), strict=True):
        assert words in sentence


def test_a_store_whose_counts_were_tampered_with_says_so(rig: Rig):
    """INV-15: the stored figures are compared, not figures made for the occasion."""
    rig.do(add("a"), add("b"))
    tamper(rig, +1)
    assert rig.run(rig.store.verify()) == ["count q/available says 3, the rows say 2"]
    tamper(rig, -1)
    assert rig.run(rig.store.verify()) == []


def tamper(rig: Rig, by: int) -> None:
    if isinstance(rig.store, MemoryStore):
        rig.store._world.counts["q", State.AVAILABLE] += by
        return
    if rig.store.name == "postgresql":
        schema = schemas.schema_of_this_process("clock")
        schemas.connection_of_this_process().execute(
            f"INSERT INTO {schema}.count_delta VALUES ('q', 2, {by})"
        )
        return
    with closing(sqlite3.connect(str(rig.path), isolation_level=None)) as connection:
        connection.execute("UPDATE tessera_count SET n = n + ? WHERE n > 0", (by,))
