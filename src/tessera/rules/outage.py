"""How rescue behaves after a time in which nobody could renew (INV-37).

A store that was away for longer than a lease lets every lease lapse at once. Taken back as usual, each would
count as a crash and innocent jobs would end in quarantine. So a process whose own sweeps had a gap of over
half a lease first waits one full lease, in which holders that live renew, and then takes back what is still
lapsed without charging anybody. A process that was stopped for as long (SIGSTOP, a suspended machine) cannot
tell the two apart and does the same.

A process knows of no gap before its first sweep: else a payload that kills each worker at once would never be
charged.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Rescue(NamedTuple):
    """What the next sweep may do with lapsed leases."""

    allowed: bool
    charged: bool


class Watch(msgspec.Struct, frozen=True, gc=False):
    """What one process remembers of its sweeps, in seconds of its monotonic clock."""

    swept_at: float | None = None
    """The last sweep that the store answered, or the beginning of the first."""
    waits_until: float = 0.0
    forgives: bool = False
    """The first rescue after the wait is still to come."""


def first_sweep(watch: Watch, now: float) -> Watch:
    """Begin to watch: a first sweep that has to wait for the store has a gap too."""
    return Watch(now) if watch.swept_at is None else watch


def before_sweep(watch: Watch, now: float, lease_seconds: float) -> tuple[Watch, Rescue]:
    """Decide before each sweep, also before one that fails: the wait begins at the first that succeeds."""
    if watch.swept_at is not None and now - watch.swept_at > lease_seconds / 2:
        watch = Watch(watch.swept_at, now + lease_seconds, forgives=True)
    return watch, Rescue(allowed=now >= watch.waits_until, charged=not watch.forgives)


def after_sweep(watch: Watch, now: float, rescue: Rescue, *, more: bool) -> Watch:
    """Note a sweep that the store answered. ``more``: lapsed leases may be left."""
    forgives = watch.forgives and (more or not rescue.allowed)
    return Watch(now, watch.waits_until, forgives)
