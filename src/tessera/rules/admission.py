"""The arithmetic of counters: may this job start now, and if not, when should one look again.

A ceiling holds units while jobs run. A rate is a bucket kept in whole numbers: its level is counted in *level
units* of 1/unit, so that ``refill`` of them flow back each millisecond and nothing is ever rounded. One unit
of the counter costs ``unit`` level units.

* token bucket, N per W with burst B: capacity B*W, refill N: within any window of length W at most N + B
  start.
* exact, never more than N in any window of length W: capacity B*W, refill N - B + 1. From a full bucket B
  start at once, the next ones W / (N - B + 1) apart, so within any half-open window [t, t + W) at most B + (N
  - B) = N start.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from tessera.model.changes import Counter, Shift
from tessera.model.job import Need
from tessera.model.policy import Ceiling, CounterPolicy, Rate

UNLIMITED: Final = 1 << 52
"""More units than anybody counts; stays exact in a double."""


def configure(counter: Counter, policy: CounterPolicy | None, version: int, now: int) -> Counter:
    """The counter under the policy of this version. A new rate starts full; a changed one keeps its level,
    cut to the new capacity.
    """
    if isinstance(policy, Rate):
        burst = _burst(policy)
        refill = policy.limit - burst + 1 if policy.exact and policy.limit else policy.limit
        capacity = burst * policy.per_ms if policy.limit else 0
        was_rate = counter.unit > 0
        level = settled_level(counter, now) * policy.per_ms // counter.unit if was_rate else capacity
        return replace(
            counter,
            ceiling=-1,
            refill=refill,
            capacity=capacity,
            unit=policy.per_ms,
            level=min(level, capacity),
            level_at=now,
            version=version,
        )
    ceiling = policy.limit if isinstance(policy, Ceiling) else -1
    return replace(
        counter, ceiling=ceiling, refill=0, capacity=0, unit=0, level=0, level_at=0, version=version
    )


def _burst(policy: Rate) -> int:
    """Units that may start at once. A burst above an exact limit would break it at the first instant."""
    if policy.exact:
        return min(policy.burst or 1, policy.limit)
    return policy.burst or policy.limit


def settled_level(counter: Counter, now: int) -> int:
    """A rate's level at this instant."""
    return min(counter.capacity, counter.level + counter.refill * max(0, now - counter.level_at))


def free_units(counter: Counter, now: int) -> int:
    """Units that could start now, units promised to woken jobs not subtracted. Never negative."""
    if now < counter.closed_until:
        return 0
    if counter.unit:
        return settled_level(counter, now) // counter.unit
    if counter.ceiling < 0:
        return UNLIMITED
    return max(0, counter.ceiling - counter.used)


def units_in_use(counter: Counter, now: int) -> int:
    """Units of a ceiling that run, or units of a rate that are not back yet: one that is back in part cannot
    start."""
    if counter.unit:
        return counter.capacity // counter.unit - settled_level(counter, now) // counter.unit
    return counter.used


def most_units(policy: CounterPolicy) -> int:
    """Units that can be in use at once."""
    if isinstance(policy, Rate):
        return _burst(policy) if policy.limit else 0
    return policy.limit


def admits(counter: Counter, units: int, now: int) -> bool:
    """Whether a job may take its units, if its turn has come.

    Units promised to a woken job are not kept from one whose turn comes before: the promise says how many
    to wake, no more, so that one whose queue is paused keeps nobody from them.
    """
    return units <= free_units(counter, now)


def take(counter: Counter, units: int, now: int, *, woken: bool) -> Counter:
    """The counter after a job started."""
    awake = counter.awake - units if woken else counter.awake
    if counter.unit:
        return replace(
            counter, level=settled_level(counter, now) - units * counter.unit, level_at=now, awake=awake
        )
    return replace(counter, used=counter.used + units, awake=awake)


def shifted(counter: Counter, shift: Shift, now: int) -> Counter:
    """The counter after a shift; its numbers never fall below nothing.

    Units that a run held were a ceiling's when it began, whatever the policy says now: as a credit to a rate
    they would let more start than it allows. A refund is a rate's: a ceiling holds nothing of a run that
    never began.
    """
    level, level_at = counter.level, counter.level_at
    if shift.refund and counter.unit:
        level = min(counter.capacity, settled_level(counter, now) + shift.refund * counter.unit)
        level_at = now
    return replace(
        counter,
        used=max(0, counter.used + shift.used),
        blocked=max(0, counter.blocked + shift.blocked),
        awake=max(0, counter.awake + shift.awake),
        closed_until=max(counter.closed_until, shift.close_until),
        level=level,
        level_at=level_at,
    )


def both(first: Shift, second: Shift) -> Shift:
    """One shift for two."""
    return Shift(
        used=first.used + second.used,
        blocked=first.blocked + second.blocked,
        awake=first.awake + second.awake,
        refund=first.refund + second.refund,
        close_until=max(first.close_until, second.close_until),
    )


def looks_again_at(counter: Counter, units: int, now: int) -> int:
    """When the next so many units of a rate can be free, or a closed counter opens; 0 = no clock will bring
    them.
    """
    at = counter.closed_until if counter.closed_until > now else 0
    if not counter.unit:
        return at
    missing = (units + counter.awake) * counter.unit - settled_level(counter, now)
    if missing <= 0:
        return max(at, now + 1)
    if counter.refill == 0:
        return at
    return max(at, now + -(-missing // counter.refill))


def full_at(counter: Counter, now: int) -> int:
    """When a counter that nobody uses says nothing any more and can be forgotten: it is open and, as a rate,
    full again. 0 = it does already, or the clock alone will not bring it there."""
    opens = counter.closed_until if counter.closed_until > now else 0
    missing = counter.capacity - settled_level(counter, now)
    if missing <= 0:
        return opens
    return max(opens, now + -(-missing // counter.refill)) if counter.refill else 0


def is_idle(counter: Counter, now: int) -> bool:
    """Whether forgetting the counter would lose nothing: it would be made anew as it is."""
    if counter.used or counter.blocked or counter.awake or counter.closed_until > now:
        return False
    return settled_level(counter, now) >= counter.capacity


def impossible(policy: CounterPolicy | None, need: Need) -> bool:
    """Whether the need is above what the counter can ever give, so that the job would wait for ever."""
    if isinstance(policy, Ceiling):
        return need.units > policy.limit > 0
    if isinstance(policy, Rate):
        return need.units > _burst(policy) > 0
    return False
