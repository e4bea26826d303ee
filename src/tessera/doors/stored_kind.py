"""A kind as a door sees it that has no code of it: its defaults from the record that the code's workers
wrote, its arguments as given."""

from __future__ import annotations

import msgspec

from tessera.app import Tessera
from tessera.kinds import JobKind
from tessera.model.changes import After
from tessera.model.job import NEVER, Terms
from tessera.model.policy import Ceiling as CeilingPolicy
from tessera.model.policy import KindPolicy, Policy
from tessera.options import Ceiling, JobOptions, Rate, Retention, Retry, Unique
from tessera.rules.names import validate_kind
from tessera.rules.signature import Signature


def stored_kind(app: Tessera, name: str, policy: Policy) -> JobKind[object]:
    """The kind with what the store says of it, or with the defaults of any kind if it says nothing. Raises
    InvalidArgument."""
    said = policy.kinds.get(validate_kind(name), KindPolicy())
    return JobKind(app, _any_arguments, name, _ANY, _options(said, policy), "auto")


def _any_arguments(**arguments: object) -> None:
    """What stands in for the handler: it takes every argument and is never called."""


_ANY = Signature.of(_any_arguments)


def _options(said: KindPolicy, policy: Policy) -> JobOptions:
    """The options of which ``JobKind.policy`` made the record."""
    terms = msgspec.msgpack.decode(said.body, type=Terms) if said.body else Terms()
    ceilings: list[Ceiling] = []
    rates: list[Rate] = []
    for counter, by, units in said.needs:
        limit = policy.counter(counter)
        if isinstance(limit, CeilingPolicy):
            ceilings.append(Ceiling(counter, limit.limit, by, units))
        elif limit is not None:
            rates.append(
                Rate(counter, limit.limit, limit.per_ms / 1_000, limit.burst, limit.exact, by, units)
            )
    return JobOptions(
        queue=said.queue,
        priority=said.priority,
        due=After(said.delay_ms),
        deadline=said.deadline,
        expires_ms=said.expires_ms,
        tags=said.tags,
        tenant=said.tenant,
        cost=said.cost,
        pending=said.pending,
        events=said.events,
        unique=_unique(said.unique),
        ceilings=tuple(ceilings),
        rates=tuple(rates),
        retry=Retry(
            max_attempts=said.max_attempts,
            base=terms.backoff_base_ms / 1_000,
            factor=terms.backoff_factor,
            cap=terms.backoff_cap_ms / 1_000,
            jitter=terms.backoff_jitter,
            delays=tuple(delay / 1_000 for delay in terms.backoff_delays_ms),
            max_duration=terms.retry_for_ms / 1_000 if terms.retry_for_ms else None,
        ),
        max_crashes=said.max_crashes,
        timeout_ms=terms.timeout_ms,
        retention=_retention(said.keep),
    )


def _unique(said: tuple[tuple[str, ...], bool, bool] | None) -> Unique | None:
    if said is None:
        return None
    by, across_kinds, while_dead = said
    return Unique(by=by, across_kinds=across_kinds, while_dead=while_dead)


def _retention(keep: tuple[int, int, int] | None) -> Retention:
    if keep is None:
        return Retention()
    completed, dead, cancelled = (None if span == NEVER else span / 1_000 for span in keep)
    return Retention(completed=completed, dead=dead, cancelled=cancelled)
