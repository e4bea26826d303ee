"""Which state may follow which: one table, from which the documentation's drawing is made."""

from __future__ import annotations

from typing import Final, NamedTuple

from tessera.model.states import EventLevel, State


class Transition(NamedTuple):
    """One edge of the state machine."""

    before: State
    after: State
    because: str
    odd: bool = False
    """Written to the log at level ``odd`` too: an operator would ask about it."""


_P, _S, _A, _B, _R = State.PENDING, State.SCHEDULED, State.AVAILABLE, State.BLOCKED, State.RUNNING
_W, _Q, _C, _D, _X = State.WAITING, State.QUARANTINED, State.COMPLETED, State.DEAD, State.CANCELLED

TRANSITIONS: Final = (
    Transition(_P, _S, "promoted or its last edge settled, due later"),
    Transition(_P, _A, "promoted or its last edge settled"),
    Transition(_P, _D, "expired, or a parent ended badly", odd=True),
    Transition(_P, _X, "cancelled", odd=True),
    Transition(_S, _A, "its time has come"),
    Transition(_S, _D, "expired", odd=True),
    Transition(_S, _X, "cancelled", odd=True),
    Transition(_A, _R, "claimed"),
    Transition(_A, _S, "rescheduled"),
    Transition(_A, _B, "set aside: a counter is full, or no live worker serves its kind"),
    Transition(_A, _Q, "its fingerprint is quarantined", odd=True),
    Transition(_A, _D, "expired", odd=True),
    Transition(_A, _X, "cancelled", odd=True),
    Transition(_B, _A, "a unit is free, or a worker for its kind has come"),
    Transition(_B, _D, "expired", odd=True),
    Transition(_B, _X, "cancelled", odd=True),
    Transition(_R, _C, "completed"),
    Transition(_R, _A, "released, given back or rate-limited"),
    Transition(_R, _S, "failed, crashed, snoozed or released with a delay"),
    Transition(_R, _W, "split, or parked"),
    Transition(_R, _Q, "crashed too often", odd=True),
    Transition(_R, _D, "attempts used up, aborted, expired or undecodable", odd=True),
    Transition(_R, _X, "cancelled", odd=True),
    Transition(_W, _A, "its children ended, or it was resumed"),
    Transition(_W, _S, "its children ended, due later"),
    Transition(_W, _D, "a child died, or nobody answered in time", odd=True),
    Transition(_W, _X, "cancelled", odd=True),
    Transition(_Q, _A, "released by a person", odd=True),
    Transition(_Q, _S, "released by a person, due later", odd=True),
    Transition(_Q, _D, "buried by a person", odd=True),
    Transition(_Q, _X, "cancelled", odd=True),
    Transition(_D, _A, "redriven", odd=True),
    Transition(_D, _S, "redriven, due later", odd=True),
    Transition(_X, _A, "redriven", odd=True),
    Transition(_X, _S, "redriven, due later", odd=True),
)

_BY_EDGE: Final = {(t.before, t.after): t for t in TRANSITIONS}
ODD_ENDS: Final = frozenset({"failed", "crashed", "timed_out"})
"""Ends of an attempt that level ``odd`` records although the job goes on."""


def allowed(before: State, after: State) -> bool:
    """Whether the state machine knows this edge."""
    return (before, after) in _BY_EDGE


def is_logged(level: EventLevel, before: State, after: State, end: str = "") -> bool:
    """Whether a transition is written to the log of a job with this event level."""
    if level is EventLevel.FULL:
        return True
    if level is EventLevel.OFF:
        return False
    return end in ODD_ENDS or _BY_EDGE[before, after].odd


def event_name(before: State | None, after: State, end: str = "") -> str:
    """What a transition is called in the log: past tense, the end of the attempt where one ended."""
    if before is None:
        return "enqueued"
    if end:
        return end
    if before is State.RUNNING and after in (State.AVAILABLE, State.SCHEDULED):
        return "released"
    if before in (State.DEAD, State.CANCELLED):
        return "redriven"
    return {
        State.RUNNING: "claimed",
        State.BLOCKED: "set_aside",
        State.AVAILABLE: "became_available",
        State.SCHEDULED: "scheduled",
    }.get(after, after.value)
