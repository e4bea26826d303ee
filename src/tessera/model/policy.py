"""What operators and code declare about queues and counters, and the compiled form that a claim carries."""

from __future__ import annotations

from typing import Final

import msgspec

from tessera.model.changes import Time
from tessera.model.states import EventLevel

POLICY_SPACE: Final = "~policy"
"""The record space of policies. Any write to it raises the installation's policy version."""


class Ceiling(msgspec.Struct, frozen=True, gc=False, tag=True):
    """At most ``limit`` units running at once per key. 0 lets nothing start."""

    limit: int


class Rate(msgspec.Struct, frozen=True, gc=False, tag=True):
    """At most ``limit`` units started per ``per_ms`` and key.

    ``exact=False`` is a token bucket: ``limit`` per window plus a burst on top. ``exact=True`` never lets
    more than ``limit`` start in any window of that length: the bucket holds ``burst`` and the rest flows in.
    """

    limit: int
    per_ms: int
    burst: int = 0
    """Bucket size; 0 = ``limit`` for a token bucket, 1 for an exact rate."""
    exact: bool = False


CounterPolicy = Ceiling | Rate


class QueuePolicy(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What holds for one queue. Fields left at None say nothing, so that two layers can be laid over one
    another.
    """

    paused: bool | None = None
    weights: dict[str, float] | None = None
    """Share of each tenant; 1 for those not named. Tenants share a queue from its first job that names one.
    """
    events: EventLevel | None = None


class KindPolicy(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Defaults of a kind, for producers that have no code of it (the command line, HTTP)."""

    queue: str = "default"
    body: bytes = b""
    max_attempts: int = 25
    max_crashes: int = 3
    priority: int = 0
    keep: tuple[int, int, int] | None = None
    needs: tuple[tuple[str, str, int | str], ...] = ()
    """(counter name, path of the argument it is kept by or '', units or the argument that says them)."""
    unique: tuple[tuple[str, ...], bool, bool] | None = None
    """(arguments that make the key, across kinds, kept while dead)."""
    delay_ms: int = 0
    deadline: Time = 0
    expires_ms: int = 0
    tags: tuple[str, ...] = ()
    tenant: str = ""
    cost: int = 1
    pending: bool = False
    events: EventLevel | None = None


class Policy(msgspec.Struct, frozen=True):
    """All policies of an installation at one version, both layers laid over one another."""

    version: int = 0
    queues: dict[str, QueuePolicy] = {}
    counters: dict[str, CounterPolicy] = {}
    kinds: dict[str, KindPolicy] = {}
    quarantined: frozenset[bytes] = frozenset()
    """Fingerprints whose jobs are not claimed."""

    def queue(self, name: str) -> QueuePolicy:
        return self.queues.get(name, _NOTHING_SAID)

    def counter(self, key: str) -> CounterPolicy | None:
        """The policy behind a counter key ``name`` or ``name/value``; None = unlimited."""
        return self.counters.get(key.split("/", 1)[0])


_NOTHING_SAID: Final = QueuePolicy()
