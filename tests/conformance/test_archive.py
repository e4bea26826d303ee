"""After the end: what is kept and for how long, and how a dead job gets another run."""

import pytest

from tessera.model.changes import After, DropJob, Edge, Edits, InState, MoveJob
from tessera.model.job import NEVER, Keep
from tessera.model.queries import Filter
from tessera.model.states import FINAL, State
from tests.conformance.rig import Rig, add, end_of, key_of, sweep

DAY = 86_400_000


@pytest.mark.capability("H13")
def test_a_result_is_published_with_the_success_and_kept_as_long_as_the_job(rig: Rig):
    """INV-7."""
    job = rig.start("a")
    rig.finish(job, edits=Edits(result=b'"done"'))
    ended = rig.job("a")
    assert (ended.state, ended.result, ended.finished_at) == (State.COMPLETED, b'"done"', rig.now)
    rig.advance(DAY)
    sweep(rig)
    assert rig.find("a") is None


@pytest.mark.capability("F12")
@pytest.mark.parametrize(
    "end,kept", [(State.COMPLETED, 1_000), (State.DEAD, 2_000), (State.CANCELLED, 3_000)]
)
def test_each_end_has_its_own_retention(rig: Rig, end: State, kept: int):
    """INV-1."""
    rig.do(add("a", keep=Keep(1_000, 2_000, 3_000)))
    rig.finish(rig.take(), end, end.value)
    assert rig.job("a").gone_at == rig.now + kept
    rig.advance(kept - 1)
    assert rig.due().gone == ()
    rig.advance(1)
    assert rig.due().gone == (key_of("a"),)
    sweep(rig)
    assert rig.find("a") is None
    assert rig.events()[-1].what == "evicted"


@pytest.mark.capability("F12")
def test_dead_jobs_are_kept_until_somebody_deletes_them_unless_told_otherwise(rig: Rig):
    """INV-1."""
    rig.bury("a")
    assert rig.job("a").gone_at == NEVER
    rig.advance(10_000 * DAY)
    assert rig.due().gone == ()
    rig.do(DropJob(key_of("a"), "deleted"), given=[InState(key_of("a"), (State.DEAD,))])
    assert rig.find("a") is None


@pytest.mark.capability("P11")
@pytest.mark.parametrize("end", sorted(FINAL))
def test_a_retention_of_zero_keeps_nothing(rig: Rig, end: State):
    """INV-15."""
    job = rig.start("a", keep=Keep(0, 0, 0))
    rig.finish(job, end, end.value)
    assert rig.find("a") is None
    assert rig.counts() == {}
    assert rig.due().gone == ()


def test_an_ended_job_is_seen_like_any_other(rig: Rig):
    rig.do(add("a", tags=("x",)), add("b", tags=("x",)))
    rig.complete(rig.take())
    assert [job.id for job in rig.all_jobs(Filter(tags_all=("x",)))] == [key_of("b"), key_of("a")]


@pytest.mark.capability("R6")
@pytest.mark.parametrize("end", [State.DEAD, State.CANCELLED])
def test_a_redrive_brings_the_job_back_with_its_history(rig: Rig, end: State):
    """INV-2, INV-6: a new run, the fence goes on."""
    job = rig.start("a", payload=b"p")
    rig.finish(job, end, "aborted", edits=Edits(failures=25, result=b"in part"))
    dead = rig.job("a")
    assert dead.result == b"in part"
    rig.advance(5)
    rig.move("a", State.AVAILABLE, Edits(failures=0, crashes=0), by="ada")
    back = rig.job("a")
    assert (back.state, back.failures, back.payload, back.due) == (State.AVAILABLE, 0, b"p", rig.now)
    assert (back.finished_at, back.gone_at, back.result, back.reason) == (0, 0, None, "")
    assert back.fence > dead.fence
    assert back.ends == dead.ends
    again = rig.take()
    assert (again.attempt, again.fence > back.fence) == (2, True)
    rig.complete(again)
    assert rig.told("a") == ["enqueued", "claimed", "aborted", "redriven", "claimed", "completed"]


def test_a_completed_job_is_never_run_again(rig: Rig):
    """INV-2."""
    rig.complete(rig.start("a"))
    rig.refused(MoveJob(key_of("a"), State.AVAILABLE))
    rig.refused(MoveJob(key_of("a"), State.DEAD))


@pytest.mark.capability("R6")
def test_a_redriven_job_owns_its_keys_again(rig: Rig):
    """INV-17."""
    rig.do(add("a", slots=("u:x",)), MoveJob(key_of("a"), State.DEAD))
    rig.move("a", State.AVAILABLE)
    refused = rig.refused(add("b", slots=("u:x",)))
    assert refused.job is not None
    assert refused.job.id == key_of("a")


def test_a_redrive_is_refused_while_its_key_is_anothers(rig: Rig):
    """INV-17: and the refusal names who has it."""
    rig.do(add("a", slots=("u:w", "u:x")), MoveJob(key_of("a"), State.DEAD), add("b", slots=("u:x",)))
    refused = rig.refused(MoveJob(key_of("a"), State.AVAILABLE))
    assert refused.job is not None
    assert (refused.job.id, refused.why) == (key_of("b"), "its key u:x was taken meanwhile")
    rig.complete(rig.take())
    rig.move("a", State.AVAILABLE)


def test_a_dead_job_that_kept_its_key_is_redriven_with_it(rig: Rig):
    """INV-17."""
    rig.do(add("a", slots=("ud:x",)), MoveJob(key_of("a"), State.DEAD))
    rig.refused(add("b", slots=("ud:x",)))
    rig.move("a", State.AVAILABLE)
    rig.complete(rig.take())
    rig.do(add("b", slots=("ud:x",)))


def test_a_job_redriven_at_the_end_of_its_retention_is_not_swept_away(rig: Rig):
    """INV-1, INV-2: the sweep is guarded by what it saw."""
    rig.do(add("a", keep=Keep(dead=10)), MoveJob(key_of("a"), State.DEAD))
    rig.advance(10)
    due = rig.due()
    rig.move("a", State.AVAILABLE)
    for key in due.gone:
        rig.refused(DropJob(key), given=[InState(key, tuple(FINAL))])
    assert rig.claim_names() == ["a"]


def test_a_redriven_job_that_dies_again_has_a_new_retention(rig: Rig):
    rig.do(add("a", keep=Keep(dead=10)), MoveJob(key_of("a"), State.DEAD))
    rig.advance(10)
    rig.move("a", State.AVAILABLE)
    rig.move("a", State.DEAD)
    assert rig.due().gone == ()
    assert rig.job("a").gone_at == rig.now + 10


def test_a_job_that_waited_and_was_cancelled_waits_for_nobody_after_a_redrive(rig: Rig):
    """INV-20."""
    rig.do(add("p"), add("c", after=[Edge(key_of("p"), key_of("c"))], due=After(5)))
    rig.move("c", State.CANCELLED)
    rig.move("c", State.AVAILABLE)
    assert sorted(rig.claim_names(n=9)) == ["c", "p"]
    assert rig.job("c").open == 0


def test_an_end_keeps_its_error(rig: Rig):
    job = rig.start("a")
    rig.do(
        MoveJob(
            job.id,
            State.DEAD,
            end=end_of(job, "failed", "ValueError: no\nsecond line"),
            reason="attempts_used",
        )
    )
    assert rig.job("a").ends[0].error == "ValueError: no\nsecond line"
