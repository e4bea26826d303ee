"""What follows from the end of an attempt, as values. What a store makes of it is shown with the engine."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from tessera.model import outcomes
from tessera.model.changes import (
    AddJob,
    After,
    Count,
    DropJob,
    Edge,
    Group,
    Held,
    Lapsed,
    Link,
    MoveJob,
    PutRecord,
)
from tessera.model.ids import JobId
from tessera.model.job import End, Extras, Job, Progress, Terms, encode_extras, encode_terms, extras_of
from tessera.model.outcomes import (
    Aborted,
    Cancelled,
    Completed,
    Crashed,
    Discarded,
    Expired,
    Failed,
    GivenBack,
    LimitMet,
    Outcome,
    Released,
    Snoozed,
    Split,
    Undecodable,
)
from tessera.model.policy import POLICY_SPACE
from tessera.model.states import State
from tessera.rules import endings, lifecycle
from tessera.rules.payload import fingerprint

S = State
NOW = 1_800_000_000_000
KEY = JobId(b"k" * 16)
DAY = 86_400_000

EVERY: list[tuple[Outcome, str]] = [
    (Completed(b"1"), "completed"),
    (Failed("x"), "failed"),
    (Failed("x", timed_out=True), "timed_out"),
    (Crashed("x"), "crashed"),
    (Snoozed(1), "snoozed"),
    (Released(), "released"),
    (GivenBack(), "given_back"),
    (Aborted(), "aborted"),
    (Discarded(), "discarded"),
    (Cancelled(), "cancelled"),
    (LimitMet("api", 1), "rate_limited"),
    (Undecodable("x"), "undecodable"),
    (Expired(), "expired"),
    (Split(()), "split"),
]


def running(terms: dict[str, Any] | None = None, **fields: Any) -> Job:
    body = encode_terms(Terms(**terms)) if terms else b""
    held = {"state": S.RUNNING, "holder": "h", "fence": 7, "attempt": 1, "claimed_at": NOW - 1_000}
    row: dict[str, Any] = {
        "id": KEY,
        "kind": "work",
        "queue": "q",
        "created_at": NOW - 5_000,
        "payload": b"{}",
    }
    return Job(**row | held | {"body": body} | fields)


def crashes(*ages_ms: int) -> tuple[End, ...]:
    return tuple(End(1, "crashed", 0, NOW - age) for age in ages_ms)


def move_of(group: Group) -> MoveJob:
    [move] = [change for change in group.changes if isinstance(change, MoveJob)]
    return move


def end(job: Job, outcome: Outcome, extras: Extras | None = None, dice: float = 0.0) -> Group:
    return endings.ending(job, outcome, random=dice, now=NOW, extras=extras)


def test_every_outcome_has_a_case_here():
    assert {type(outcome) for outcome, _ in EVERY} == set(get_args(outcomes.Outcome))


@pytest.mark.capability("R3")
@pytest.mark.parametrize("outcome, name", EVERY, ids=[name for _, name in EVERY])
def test_every_end_is_fenced_and_named_so_that_a_repeat_is_recognised(outcome: Outcome, name: str):
    """INV-3, INV-7."""
    assert endings.end_name(outcome) == name
    assert end(running(), outcome).guards == (Held(KEY, 7, name),)


@pytest.mark.parametrize("outcome, name", EVERY, ids=[name for _, name in EVERY])
def test_every_end_is_a_move_that_the_state_machine_knows(outcome: Outcome, name: str):
    """INV-14."""
    changes = [change for change in end(running(), outcome).changes if isinstance(change, MoveJob | DropJob)]
    assert len(changes) == 1
    if isinstance(changes[0], MoveJob):
        assert lifecycle.allowed(S.RUNNING, changes[0].to)


@pytest.mark.parametrize(
    "outcome, name", [case for case in EVERY if case[1] not in ("given_back", "discarded")]
)
def test_every_end_of_a_run_is_kept_with_what_the_run_left(outcome: Outcome, name: str):
    extras = Extras(output=b"1")
    move = move_of(end(running(), outcome, extras))
    assert move.end is not None
    assert (move.end.attempt, move.end.end, move.end.started_at, move.end.holder) == (
        1,
        name,
        NOW - 1_000,
        "h",
    )
    assert (move.edits.ext, move.by) == (encode_extras(extras), "h")
    assert move_of(end(running(), outcome)).edits.ext is UNSET


def test_a_run_that_never_began_leaves_no_end_and_no_attempt():
    move = move_of(end(running(attempt=4), GivenBack()))
    assert (move.end, move.refund, move.edits.attempt) == (None, True, 3)


def test_a_discard_drops_the_row_and_says_who_did_it():
    assert end(running(), Discarded()).changes == (DropJob(KEY, "discarded", "h"),)


@pytest.mark.parametrize("counter, close", [("api/acme", (Count("api/acme", close=After(9)),)), ("", ())])
def test_a_limit_closes_the_counter_it_names(counter: str, close: tuple[Count, ...]):
    *before, move = end(running(), LimitMet(counter, 9)).changes
    assert (tuple(before), isinstance(move, MoveJob)) == (close, True)


@pytest.mark.parametrize("on_child_dead, otherwise", [("continue", "go"), ("fail", "dead"), ("wait", "hold")])
def test_a_split_stores_its_children_before_it_waits_for_them(on_child_dead: str, otherwise: str):
    """INV-20: a link needs both of its ends."""
    children = tuple(AddJob(Job(id=JobId(bytes([n]) * 16), kind="work", queue="q")) for n in range(2))
    first, second, move, *links = end(running(), Split(children, on_child_dead)).changes
    assert (first, second) == children
    assert isinstance(move, MoveJob)
    assert move.to is S.WAITING
    assert links == [Link(Edge(child.job.id, KEY, "completed", otherwise)) for child in children]


@pytest.mark.parametrize(
    "max_attempts, failures, to",
    [(1, 0, S.DEAD), (2, 0, S.AVAILABLE), (2, 1, S.DEAD), (25, 23, S.AVAILABLE), (25, 24, S.DEAD)],
)
def test_failures_up_to_max_attempts(max_attempts: int, failures: int, to: State):
    """INV-11."""
    move = move_of(end(running(max_attempts=max_attempts, failures=failures, attempt=99), Failed("x")))
    assert (move.to, move.edits.failures) == (to, failures + 1)


@pytest.mark.parametrize(
    "retry_for_ms, to", [(0, S.AVAILABLE), (4_999, S.DEAD), (5_000, S.DEAD), (5_001, S.AVAILABLE)]
)
def test_retry_for_is_measured_from_the_enqueue(retry_for_ms: int, to: State):
    assert move_of(end(running({"retry_for_ms": retry_for_ms}), Failed("x"))).to is to


@pytest.mark.parametrize(
    "max_crashes, count, ends, condemned",
    [
        (3, 0, (), False),
        (3, 1, crashes(1_000), False),
        (3, 2, crashes(2_000, 1_000), True),
        (3, 2, crashes(DAY - 1, 1_000), True),
        (3, 2, crashes(DAY, 1_000), False),
        (3, 5, crashes(3_000, 2_000, 1_000), True),
        (3, 2, (*crashes(1_000), End(1, "failed", 0, NOW - 500)), False),
        (1, 0, (), True),
        (0, 50, crashes(*range(10)), False),
        (12, 11, crashes(*range(9)), True),
        (12, 11, crashes(*range(8)), False),
        (12, 10, crashes(*range(10)), False),
    ],
)
def test_a_job_is_condemned_by_enough_crashes_within_a_day(
    max_crashes: int, count: int, ends: tuple[End, ...], condemned: bool
):
    """INV-12."""
    job = running(max_crashes=max_crashes, crashes=count, ends=ends)
    assert endings.is_condemned(job, NOW) is condemned
    to = move_of(end(job, Crashed("x"))).to
    assert to is (S.QUARANTINED if condemned else S.AVAILABLE)
    lapsed = endings.lapse(job, random=0.0, now=NOW, charged=True)
    assert (lapsed.guards, move_of(lapsed).to) == ((Lapsed(KEY, 7),), to)


@pytest.mark.parametrize(
    "max_crashes, count, alone", [(3, 1, False), (3, 2, True), (3, 9, True), (1, 0, True), (0, 9, False)]
)
def test_the_run_that_could_condemn_a_job_is_the_only_one_of_its_process(
    max_crashes: int, count: int, alone: bool
):
    assert endings.runs_alone(running(max_crashes=max_crashes, crashes=count)) is alone


def test_a_condemned_payload_is_named_by_its_fingerprint():
    changes = end(running(max_crashes=1), Crashed("x")).changes
    key = "quarantine/" + fingerprint("work", b"{}").hex()
    assert changes[1] == PutRecord(POLICY_SPACE, key, KEY.hex().encode())


def test_a_condemned_job_may_be_buried_instead():
    [change] = end(running({"on_crashes": "dead"}, max_crashes=1), Crashed("x")).changes
    assert isinstance(change, MoveJob)
    assert (change.to, change.reason) == (S.DEAD, "crashes_used")


@pytest.mark.parametrize("charged", [True, False])
def test_a_lapse_of_a_job_that_shall_stop_is_its_cancel(charged: bool):
    group = endings.lapse(running(cancel_requested=True, max_crashes=1), random=0.0, now=NOW, charged=charged)
    move = move_of(group)
    assert (move.to, move.reason, move.edits.crashes) == (S.CANCELLED, "cancelled", UNSET)


@pytest.mark.parametrize(
    "snoozes, max_snoozes, attempt, max_claims, to",
    [
        (0, 1_000, 1, 0, S.AVAILABLE),
        (998, 1_000, 1, 0, S.AVAILABLE),
        (999, 1_000, 1, 0, S.DEAD),
        (0, 1_000, 4, 5, S.AVAILABLE),
        (0, 1_000, 5, 5, S.DEAD),
    ],
)
def test_a_job_cannot_snooze_for_ever(
    snoozes: int, max_snoozes: int, attempt: int, max_claims: int, to: State
):
    terms = {"max_snoozes": max_snoozes, "max_claims": max_claims}
    move = move_of(end(running(terms, snoozes=snoozes, attempt=attempt), Snoozed(1)))
    assert (move.to, move.edits.snoozes) == (to, snoozes + 1)


@given(
    st.text(max_size=3)
    | st.text(min_size=3_900, max_size=4_100)
    | st.integers(0, 30_000).map(lambda n: "ab" * n)
)
def test_an_error_is_cut_in_its_middle_and_holds_no_nul(error: str):
    kept = endings.shorten(error)
    assert len(kept) <= endings.ERROR_LIMIT
    assert "\0" not in kept
    shown = error.replace("\0", "\N{REPLACEMENT CHARACTER}")
    if len(shown) <= endings.ERROR_LIMIT:
        assert kept == shown
    else:
        head, tail = kept.split("\n[... cut ...]\n")
        assert shown.startswith(head)
        assert shown.endswith(tail)
        assert len(head) == len(tail) > 1_900


def test_what_a_run_says_is_laid_over_what_was_said_before():
    old = Extras(
        progress=Progress(1), output=b"1", log=("a",), origin="before", join_note="note", split=2, child_no=3
    )
    job = running(ext=encode_extras(old))
    assert endings.merged_extras(job, Extras()) == old
    new = endings.merged_extras(job, Extras(progress=Progress(2), output=b"2", log=("b",)))
    assert (new.progress, new.output, new.log) == (Progress(2), b"2", ("a", "b"))
    assert (new.origin, new.join_note, new.split, new.child_no) == ("before", "note", 2, 3)
    assert extras_of(job) == old


def test_a_job_keeps_its_last_two_hundred_lines():
    job = running(ext=encode_extras(Extras(log=tuple(map(str, range(150))))))
    log = endings.merged_extras(job, Extras(log=tuple(map(str, range(150, 250))))).log
    assert (len(log), log[0], log[-1]) == (200, "50", "249")


@pytest.mark.parametrize("extras", [None, Extras(output=b"1")])
def test_the_note_of_a_split_is_kept_with_what_the_run_left(extras: Extras | None):
    moved = move_of(end(running(), Split((), note="squares"), extras))
    assert moved.edits.ext == encode_extras(
        Extras(output=extras.output if extras else b"", join_note="squares")
    )
