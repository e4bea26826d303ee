"""The states of a job. Which may follow which is one table in ``rules/lifecycle``."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a job is in its life."""

    PENDING = "pending"
    """Held: waits for edges or for an explicit promote."""
    SCHEDULED = "scheduled"
    """Due in the future, a wait before a retry included."""
    AVAILABLE = "available"
    """May be claimed now."""
    BLOCKED = "blocked"
    """Due, but set aside: a counter it needs is full, or no live worker serves its kind."""
    RUNNING = "running"
    """Leased to a holder."""
    WAITING = "waiting"
    """Has given up its lease until its children, a signal, a timer or a person is done."""
    QUARANTINED = "quarantined"
    """Its fingerprint crashed workers; only a person releases it."""
    COMPLETED = "completed"
    DEAD = "dead"
    """The dead letter: attempts used up, aborted, undecodable or expired."""
    CANCELLED = "cancelled"


FINAL: Final = frozenset({State.COMPLETED, State.DEAD, State.CANCELLED})
"""States that end a run. Only a redrive opens a new one."""

LIVE: Final = frozenset(State) - FINAL
"""States of a job that still has something before it."""


class EventLevel(StrEnum):
    """How much of a queue's life is written to the event log."""

    FULL = "full"
    """Every transition."""
    ODD = "odd"
    """What an operator would ask about: failures, crashes, dead, cancelled, quarantined, operator acts."""
    OFF = "off"
