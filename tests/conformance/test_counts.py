"""Counts: exact after every commit, whatever brought a job where it is."""

from collections import Counter as Tally

import pytest

from tessera.model.changes import After, DropJob, Edge, MoveJob, PutRecord
from tessera.model.job import Keep
from tessera.model.policy import Ceiling
from tessera.model.queries import Filter
from tessera.model.states import State
from tests.conformance.rig import LEASE, Rig, add, key_of, sweep


def rows(rig: Rig) -> dict[tuple[str, State], int]:
    return dict(Tally((job.queue, job.state) for job in rig.all_jobs()))


@pytest.mark.capability("W11")
def test_counts_are_the_rows_grouped_by_queue_and_state_after_every_commit(rig: Rig):
    """INV-15: through every state, ends, evictions, cascades and refusals."""
    rig.declare({"c": Ceiling(1)})
    steps = [
        lambda: rig.do(add("a"), add("b", due=After(10)), add("c", held=True), add("d", "other")),
        lambda: rig.do(
            add("e", after=[Edge(key_of("a"), key_of("e"))]), add("f", needs="c"), add("g", needs="c")
        ),
        lambda: rig.claim("q", "other", n=9),
        lambda: rig.refused(add("new"), DropJob(key_of("nobody"))),
        lambda: rig.move("c", State.CANCELLED),
        lambda: rig.move("f", State.WAITING),
        lambda: rig.advance(LEASE),
        lambda: sweep(rig),
        lambda: rig.move("a", State.DEAD),
        lambda: rig.do(DropJob(key_of("d"))),
        lambda: rig.do(add("h", keep=Keep(cancelled=0)), MoveJob(key_of("h"), State.CANCELLED)),
        lambda: rig.move("a", State.AVAILABLE),
        lambda: rig.advance(86_400_000),
        lambda: sweep(rig),
    ]
    for number, step in enumerate(steps):
        step()
        assert rig.counts() == rows(rig), f"step {number}"
        assert rig.run(rig.store.verify()) == [], f"step {number}"
    assert rig.state("c") is None


def test_counts_of_a_thousand_jobs_in_one_call(rig: Rig):
    """INV-15."""
    rig.do(*(add(f"{n:05}", f"q{n % 3}") for n in range(1_000)))
    assert rig.counts() == {
        ("q0", State.AVAILABLE): 334,
        ("q1", State.AVAILABLE): 333,
        ("q2", State.AVAILABLE): 333,
    }


def test_a_sound_store_has_nothing_to_tell(rig: Rig):
    rig.do(add("a", slots=("u:x",)), PutRecord("notes", "n", b"1"))
    assert rig.run(rig.store.verify()) == []
    assert rig.all_jobs(Filter(queues=("none",))) == []
