"""Every way an attempt can end, through the engine to the row."""

from __future__ import annotations

import pytest

from tessera.model.changes import After
from tessera.model.errors import StaleLease
from tessera.model.job import Extras, Keep, Progress, extras_of
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
from tessera.model.states import State
from tests.engine.lab import DAY, HOUR, Lab, need

S = State

ENDS: list[tuple[Outcome, State, str, str, str]] = [
    # outcome, state, name of the end, error kept with the end, reason of the row
    (Completed(b"42"), S.COMPLETED, "completed", "", ""),
    (Completed(None), S.COMPLETED, "completed", "", ""),
    (Failed("boom"), S.SCHEDULED, "failed", "boom", ""),
    (Failed("slow", timed_out=True), S.SCHEDULED, "timed_out", "slow", ""),
    (Failed("later", retry_after_ms=90_000), S.SCHEDULED, "failed", "later", ""),
    (Failed("now", retry_after_ms=0), S.AVAILABLE, "failed", "now", ""),
    (Crashed("signal 9"), S.SCHEDULED, "crashed", "signal 9", ""),
    (Snoozed(5_000), S.SCHEDULED, "snoozed", "", ""),
    (Snoozed(0), S.AVAILABLE, "snoozed", "", ""),
    (Released(), S.AVAILABLE, "released", "", ""),
    (Released(2_000, "shutdown"), S.SCHEDULED, "released", "shutdown", ""),
    (Aborted("bad input"), S.DEAD, "aborted", "bad input", "aborted: bad input"),
    (Aborted(), S.DEAD, "aborted", "", "aborted"),
    (Cancelled("by ada"), S.CANCELLED, "cancelled", "by ada", "by ada"),
    (Cancelled(), S.CANCELLED, "cancelled", "", "cancelled"),
    (LimitMet("", 3_000), S.SCHEDULED, "rate_limited", "", ""),
    (Undecodable("to: missing"), S.DEAD, "undecodable", "to: missing", "undecodable"),
    (Expired(), S.DEAD, "expired", "", "expired"),
]


def _name(case: object) -> str:
    return repr(case).replace(" ", "")[:40] if not isinstance(case, str) else ""


@pytest.mark.parametrize("outcome, state, end, error, reason", ENDS, ids=_name)
def test_an_outcome_brings_the_job_where_it_belongs_and_is_told_once(
    lab: Lab, outcome: Outcome, state: State, end: str, error: str, reason: str
):
    """INV-11, INV-14: one end an attempt, one event a transition."""
    job = lab.start()
    lab.advance(1_500)
    row = lab.ended(job, outcome)
    assert (row.state, row.reason) == (state, reason)
    [kept] = row.ends
    assert (kept.attempt, kept.end, kept.error, kept.holder) == (1, end, error, "h")
    assert (kept.started_at, kept.ended_at) == (job.claimed_at, lab.now)
    assert lab.told(job.id) == ["enqueued", "claimed", end]


@pytest.mark.parametrize("outcome", [case[0] for case in ENDS], ids=_name)
def test_whatever_the_end_the_lease_is_over_and_the_fence_grew(lab: Lab, outcome: Outcome):
    """INV-6, INV-7."""
    job = lab.start()
    row = lab.ended(job, outcome)
    assert row.fence > job.fence
    assert (row.holder, row.lease_until, row.claimed_at, row.holds) == ("", 0, 0, ())
    assert isinstance(lab.finish(job, Split(())), StaleLease)


@pytest.mark.capability("R1")
@pytest.mark.parametrize(
    "outcome, failures, crashes, snoozes",
    [
        (Completed(), 0, 0, 0),
        (Failed("x"), 1, 0, 0),
        (Failed("x", timed_out=True), 1, 0, 0),
        (Failed("x", retry_after_ms=0), 1, 0, 0),
        (Crashed("x"), 0, 1, 0),
        (Snoozed(1), 0, 0, 1),
        (Released(), 0, 0, 0),
        (LimitMet("", 1), 0, 0, 0),
        (Aborted(), 0, 0, 0),
        (Cancelled(), 0, 0, 0),
        (Undecodable("x"), 0, 0, 0),
        (Expired(), 0, 0, 0),
    ],
    ids=_name,
)
def test_failures_crashes_and_snoozes_are_counted_apart(
    lab: Lab, outcome: Outcome, failures: int, crashes: int, snoozes: int
):
    """INV-11."""
    row = lab.ended(lab.start(), outcome)
    assert (row.attempt, row.failures, row.crashes, row.snoozes) == (1, failures, crashes, snoozes)


# Completed ----------------------------------------------------------------------------------------------


@pytest.mark.capability("H13")
def test_a_result_is_published_with_the_success(lab: Lab):
    row = lab.ended(lab.start(), Completed(b'{"n":1}'))
    assert (row.state, row.result, row.finished_at) == (S.COMPLETED, b'{"n":1}', lab.now)


@pytest.mark.capability("P11")
def test_an_ephemeral_job_leaves_no_row_when_it_completes(lab: Lab):
    job = lab.start(keep=Keep(completed=0))
    assert lab.end(job, Completed(b"1")) is None


def test_an_ephemeral_job_that_dies_is_kept(lab: Lab):
    job = lab.start(keep=Keep(completed=0))
    assert lab.ended(job, Aborted()).state is S.DEAD


def test_what_the_run_said_is_written_with_its_end(lab: Lab):
    job = lab.start()
    extras = Extras(progress=Progress(3, 10), output=b'"half"', log=("one", "two"))
    kept = extras_of(lab.ended(job, Failed("x"), extras))
    assert kept == extras
    job = lab.again(job.id)
    kept = extras_of(lab.ended(job, Completed(), Extras(log=("three",))))
    assert (kept.progress, kept.output, kept.log) == (Progress(3, 10), b'"half"', ("one", "two", "three"))


# Failed -------------------------------------------------------------------------------------------------


@pytest.mark.capability("H5")
@pytest.mark.parametrize("dice, least", [(0.0, 10_000), (0.5, 7_500), (0.999, 5_000)])
def test_a_retry_waits_within_the_stated_interval(lab: Lab, dice: float, least: int):
    """INV-13: d (1 - jitter) to d."""
    lab.seam.dice = dice
    row = lab.ended(lab.start(terms={"backoff_base_ms": 10_000}), Failed("x"))
    assert least <= row.due - lab.now <= least + 10


@pytest.mark.capability("H5")
def test_the_wait_grows_with_each_failure_up_to_the_cap(lab: Lab):
    job = lab.start(terms={"backoff_base_ms": 1_000, "backoff_factor": 3.0, "backoff_cap_ms": 10_000})
    waits = []
    for _ in range(4):
        row = lab.ended(job, Failed("x"))
        waits.append(row.due - lab.now)
        job = lab.again(job.id)
    assert waits == [1_000, 3_000, 9_000, 10_000]


@pytest.mark.capability("H5")
def test_given_delays_replace_the_backoff_and_the_last_repeats(lab: Lab):
    job = lab.start(terms={"backoff_delays_ms": (1_000, 60_000)})
    waits = []
    for _ in range(3):
        waits.append(lab.ended(job, Failed("x")).due - lab.now)
        job = lab.again(job.id)
    assert waits == [1_000, 60_000, 60_000]


@pytest.mark.capability("H5")
def test_a_failure_may_name_its_own_delay(lab: Lab):
    row = lab.ended(lab.start(), Failed("429", retry_after_ms=77_000))
    assert (row.due - lab.now, row.failures) == (77_000, 1)


@pytest.mark.capability("H5")
def test_max_attempts_is_compared_with_failures_not_with_runs(lab: Lab):
    """INV-11."""
    job = lab.start(max_attempts=2)
    for outcome in (Released(), Snoozed(0), LimitMet("", 0), Crashed("x")):
        lab.ended(job, outcome)
        job = lab.again(job.id)
    assert job.attempt == 5
    assert lab.ended(job, Failed("one")).state is S.SCHEDULED
    row = lab.ended(lab.again(job.id), Failed("two"))
    assert (row.state, row.reason, row.failures) == (S.DEAD, "attempts_used", 2)


def test_max_attempts_of_one_is_no_retry(lab: Lab):
    row = lab.ended(lab.start(max_attempts=1), Failed("x", retry_after_ms=10))
    assert (row.state, row.reason) == (S.DEAD, "attempts_used")


@pytest.mark.capability("H5")
def test_retry_for_gives_up_so_long_after_the_enqueue(lab: Lab):
    terms = {"retry_for_ms": 60_000, "backoff_delays_ms": (30_000,)}
    job = lab.start(terms=terms)
    assert lab.ended(job, Failed("x")).state is S.SCHEDULED
    job = lab.again(job.id)
    lab.advance(29_999)
    assert lab.ended(job, Failed("x")).state is S.SCHEDULED
    row = lab.ended(lab.again(job.id), Failed("x"))
    assert (row.state, row.reason) == (S.DEAD, "retry_time_used")


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
def test_a_worker_whose_clock_is_wrong_gives_up_no_sooner_and_no_later(lab: Lab, skew: int):
    """INV-29."""
    lab.seam.skew = skew
    early, late = lab.start(terms={"retry_for_ms": 10_000}), lab.start(terms={"retry_for_ms": 10_000})
    lab.advance(9_999)
    assert lab.ended(early, Failed("x")).state is S.SCHEDULED
    lab.advance(1)
    assert lab.ended(late, Failed("x")).reason == "retry_time_used"


@pytest.mark.parametrize("skew", [-2 * DAY, 2 * DAY])
def test_a_worker_whose_clock_is_wrong_quarantines_as_any_other(lab: Lab, skew: int):
    """INV-29: the window of crashes is measured on the store's clock."""
    lab.seam.skew = skew
    job = lab.start(max_crashes=2)
    lab.ended(job, Crashed("x"))
    assert lab.ended(lab.again(job.id), Crashed("x")).state is S.QUARANTINED


def test_a_long_error_keeps_its_beginning_and_its_end(lab: Lab):
    row = lab.ended(lab.start(), Failed("first" + "x" * 10_000 + "last\0"))
    error = row.ends[0].error
    assert error.startswith("first")
    assert error.endswith("last\N{REPLACEMENT CHARACTER}")
    assert len(error) <= 4_000


def test_the_row_keeps_the_last_ten_ends(lab: Lab):
    job = lab.start()
    for _ in range(12):
        lab.ended(job, Failed("x", retry_after_ms=0))
        job = lab.take(job.id)
    assert [end.attempt for end in job.ends] == list(range(3, 13))


def test_a_retry_keeps_the_deadline_as_its_last_start(lab: Lab):
    """``expires`` bounds the first start only, the deadline all of them."""
    job = lab.start(expires_ms=1_000, deadline=After(DAY))
    row = lab.ended(job, Failed("x", retry_after_ms=0))
    assert row.expires_at == row.deadline == lab.now + DAY


# Snoozed and released -----------------------------------------------------------------------------------


@pytest.mark.capability("H6")
def test_a_snooze_charges_nothing_and_comes_back_in_time(lab: Lab):
    job = lab.start(max_attempts=1, max_crashes=1)
    row = lab.ended(job, Snoozed(5_000))
    assert (row.state, row.due, row.failures, row.crashes, row.snoozes) == (
        S.SCHEDULED,
        lab.now + 5_000,
        0,
        0,
        1,
    )


@pytest.mark.capability("H6")
def test_snoozes_without_end_are_a_death_with_a_reason(lab: Lab):
    job = lab.start(terms={"max_snoozes": 3})
    for _ in range(2):
        lab.ended(job, Snoozed(0))
        job = lab.take(job.id)
    row = lab.ended(job, Snoozed(0))
    assert (row.state, row.reason, row.snoozes) == (S.DEAD, "claims_exhausted", 3)


@pytest.mark.parametrize("outcome", [Snoozed(0), Released()], ids=_name)
def test_claims_are_exhausted_by_what_charges_nothing_else(lab: Lab, outcome: Outcome):
    job = lab.start(terms={"max_claims": 2})
    assert lab.ended(job, outcome).state is S.AVAILABLE
    row = lab.ended(lab.take(job.id), outcome)
    assert (row.state, row.reason) == (S.DEAD, "claims_exhausted")


# Given back ---------------------------------------------------------------------------------------------


def test_a_job_given_back_was_never_run(lab: Lab):
    job = lab.start()
    row = lab.ended(job, GivenBack())
    assert (row.state, row.attempt, row.ends, row.failures, row.crashes) == (S.AVAILABLE, 0, (), 0, 0)


@pytest.mark.capability("A9")
def test_a_give_back_returns_the_units_of_a_ceiling(lab: Lab):
    """INV-25."""
    lab.ceiling("one", 1)
    job = lab.start(needs=need("one"))
    assert lab.used("one") == (1, 0)
    lab.ended(job, GivenBack())
    assert lab.used("one") == (0, 0)


@pytest.mark.capability("A9")
def test_a_give_back_returns_the_cost_of_a_rate(lab: Lab):
    lab.rate("api", 2, per_ms=60_000)
    first, second = lab.start(needs=need("api")), lab.start(needs=need("api"))
    lab.ended(first, GivenBack())
    lab.ended(second, Completed())
    assert lab.take().id == first.id


def test_a_failure_returns_no_cost_of_a_rate(lab: Lab):
    """INV-26: what started, started."""
    lab.rate("api", 1, per_ms=60_000)
    job = lab.start(needs=need("api"))
    lab.ended(job, Failed("x", retry_after_ms=0))
    assert lab.claim() == []
    assert lab.state(job.id) is S.BLOCKED


def test_a_job_given_back_keeps_its_place(lab: Lab):
    first = lab.start("first")
    lab.enqueue("second")
    lab.ended(first, GivenBack())
    assert lab.take().id == first.id


# Aborted, discarded, cancelled, limits ------------------------------------------------------------------


@pytest.mark.capability("R10")
def test_an_aborted_job_is_kept_and_a_discarded_one_is_not(lab: Lab):
    aborted, discarded = lab.start(), lab.start()
    assert lab.ended(aborted, Aborted("no")).state is S.DEAD
    assert lab.end(discarded, Discarded()) is None
    assert lab.told(discarded.id)[-1] == "discarded"


@pytest.mark.capability("R16")
def test_a_limit_met_outside_closes_its_counter_for_everybody(lab: Lab):
    lab.ceiling("api", 10)
    first = lab.start(needs=need("api"))
    lab.enqueue("second", needs=need("api"))
    row = lab.ended(first, LimitMet("api", 20_000))
    assert (row.due, row.failures, row.crashes) == (lab.now + 20_000, 0, 0)
    assert lab.claim() == []
    lab.advance(20_000)
    lab.sweep()
    assert len(lab.claim(n=5)) == 2


@pytest.mark.capability("R16")
def test_a_limit_met_without_a_counter_holds_only_the_job_itself(lab: Lab):
    lab.ceiling("api", 10)
    first = lab.start(needs=need("api"))
    second = lab.enqueue("second", needs=need("api"))
    lab.ended(first, LimitMet("", 20_000))
    assert lab.take().id == second


def test_units_come_back_with_the_end_and_wake_who_waits_for_them(lab: Lab):
    """INV-25, INV-28: in the same commit."""
    lab.ceiling("one", 1)
    first = lab.start(needs=need("one"))
    second = lab.enqueue(needs=need("one"))
    assert lab.claim() == []
    assert lab.state(second) is S.BLOCKED
    lab.ended(first, Failed("x"))
    assert lab.state(second) is S.AVAILABLE
