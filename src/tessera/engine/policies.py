"""The installation's policies, compiled: records in two layers, of which the operator's wins until it is
reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from tessera import seam
from tessera.model.changes import AtVersion, Done, Group, PutRecord, Record
from tessera.model.errors import Conflict
from tessera.model.policy import POLICY_SPACE, CounterPolicy, KindPolicy, Policy, QueuePolicy
from tessera.rules.endings import QUARANTINE_PREFIX
from tessera.store.protocol import Store

_TRIES: Final = 20
RECENT_SECONDS: Final = 5.0
"""Producers use what they read at most so long ago: weights and event levels are no matter of safety. A claim
always knows better.
"""
_P = TypeVar("_P", QueuePolicy, CounterPolicy, KindPolicy)


class Policies:
    """What this process knows of the policies. A claim under an outdated version is answered "read again"."""

    def __init__(self) -> None:
        self._known: Policy | None = None
        self._read_at = 0.0

    async def current(self, store: Store) -> Policy:
        """The policies as last read; read now if never."""
        return self._known or await self.reread(store)

    async def recent(self, store: Store) -> Policy:
        """The policies as they were at most ``RECENT_SECONDS`` ago."""
        if self._known is not None and seam.monotonic() - self._read_at < RECENT_SECONDS:
            return self._known
        if self._known is not None and await store.policy_version() == self._known.version:
            self._read_at = seam.monotonic()
            return self._known
        return await self.reread(store)

    async def reread(self, store: Store) -> Policy:
        """The policies of one version: reads until no write came between."""
        for _ in range(_TRIES):
            version = await store.policy_version()
            records = await _all_records(store)
            if await store.policy_version() == version:
                self._known = _compile(version, records)
                self._read_at = seam.monotonic()
                return self._known
        raise Conflict("policies change faster than they can be read; try again")


async def declare(
    store: Store,
    *,
    queues: Mapping[str, QueuePolicy] | None = None,
    counters: Mapping[str, CounterPolicy] | None = None,
    kinds: Mapping[str, KindPolicy] | None = None,
) -> bool:
    """Write the ``code`` layer where it differs from what is stored. True if anything was written."""
    wanted: dict[str, bytes] = {}
    for what, policies in (("queue", queues), ("counter", counters), ("kind", kinds)):
        for name, policy in (policies or {}).items():
            wanted[f"{what}/{name}/code"] = msgspec.json.encode(policy)
    keys = [(POLICY_SPACE, key) for key in wanted]
    stored = await store.get(keys) if keys else []
    groups = [
        Group(changes=(PutRecord(POLICY_SPACE, key, value),))
        for (key, value), record in zip(wanted.items(), stored, strict=True)
        if record is None or record.value != value
    ]
    if groups:
        await store.commit(groups)
    return bool(groups)


async def override_queue(store: Store, queue: str, **fields: object) -> QueuePolicy:
    """Lay fields over the operator's layer of a queue's policy and write it."""
    key = f"queue/{queue}/operator"
    for _ in range(_TRIES):
        [record] = await store.get([(POLICY_SPACE, key)])
        old = (
            msgspec.json.decode(record.value, type=QueuePolicy) if record and record.value else QueuePolicy()
        )
        new = replace(old, **fields)
        guard = AtVersion(POLICY_SPACE, key, record.version if record else 0)
        [answer] = await store.commit(
            [Group((guard,), (PutRecord(POLICY_SPACE, key, msgspec.json.encode(new)),))]
        )
        if isinstance(answer, Done):
            return new
    raise Conflict(f"the policy of queue {queue!r} is being changed by somebody else; try again")


async def _all_records(store: Store) -> list[Record]:
    records: list[Record] = []
    after = ""
    while True:
        page = await store.scan(POLICY_SPACE, after=after)
        records += page
        if len(page) < 200:
            return records
        after = page[-1].key


def _compile(version: int, records: list[Record]) -> Policy:
    layers: dict[str, dict[str, dict[str, bytes]]] = {"queue": {}, "counter": {}, "kind": {}}
    quarantined: set[bytes] = set()
    for record in records:
        if record.value is None:
            continue
        if record.key.startswith(QUARANTINE_PREFIX):
            quarantined.add(bytes.fromhex(record.key.removeprefix(QUARANTINE_PREFIX)))
            continue
        what, _, rest = record.key.partition("/")
        name, _, layer = rest.rpartition("/")
        if what in layers:
            layers[what].setdefault(name, {})[layer] = record.value
    return Policy(
        version=version,
        queues={name: _queue(both) for name, both in layers["queue"].items()},
        counters={
            name: msgspec.json.decode(_top(both), type=CounterPolicy)
            for name, both in layers["counter"].items()
        },
        kinds={
            name: msgspec.json.decode(_top(both), type=KindPolicy) for name, both in layers["kind"].items()
        },
        quarantined=frozenset(quarantined),
    )


def _top(both: dict[str, bytes]) -> bytes:
    return both.get("operator") or both["code"]


def _queue(both: dict[str, bytes]) -> QueuePolicy:
    """The operator's fields over the code's, field by field."""
    fields: dict[str, object] = {}
    for layer in ("code", "operator"):
        if layer in both:
            policy = msgspec.json.decode(both[layer], type=QueuePolicy)
            fields |= {name: value for name, value in asdict(policy).items() if value is not None}
    return msgspec.convert(fields, QueuePolicy)
