"""Asking the store for work under the present policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tessera.engine.policies import Policies
from tessera.model.errors import Conflict
from tessera.model.queries import Claimed, ClaimRequest, Want
from tessera.store.protocol import Store

SCAN_LIMIT: Final = 500
_REPLANS: Final = 5


class Claimer:
    """Claims for one holder. Remembers that the last claim met full counters: then it looks at four times as
    many candidates.
    """

    def __init__(
        self,
        store: Store,
        policies: Policies,
        *,
        holder: str,
        lease_ms: int,
        kinds: frozenset[str] | None,
        cap_ms: int = 0,
    ) -> None:
        self._store = store
        self._policies = policies
        self._holder = holder
        self._lease_ms = lease_ms
        self._kinds = kinds
        self._cap_ms = cap_ms
        self._scan = 0

    async def claim(self, queues: Sequence[str], limit: int, *, counted_limit: int) -> Claimed:
        """Up to ``limit`` jobs of the queues, tried in this order; of those that hold a counter at most
        ``counted_limit``.

        Raises what the store raises; after OutcomeUnknown jobs may be held: see ``held``.
        """
        policy = await self._policies.current(self._store)
        for _ in range(_REPLANS):
            claimed = await self._store.claim(
                ClaimRequest(
                    holder=self._holder,
                    wants=tuple(Want(queue, limit) for queue in queues),
                    limit=limit,
                    lease_ms=self._lease_ms,
                    policy=policy,
                    kinds=self._kinds,
                    counted_limit=counted_limit,
                    scan=self._scan,
                    cap_ms=self._cap_ms,
                )
            )
            if not claimed.replan:
                self._scan = min(SCAN_LIMIT, max(limit, self._scan) * 4) if claimed.set_aside else 0
                return claimed
            policy = await self._policies.reread(self._store)
        raise Conflict("policies change faster than a claim can follow; try again")
