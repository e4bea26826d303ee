"""What a worker says of itself: a record that expires unless it is refreshed. For display and for
``explain``; no lease depends on it.
"""

from __future__ import annotations

from typing import Final

import msgspec

WORKER_SPACE: Final = "~worker"
WORKER_EXPIRES_MS: Final = 30_000
WORKER_REFRESH_MS: Final = 10_000


class WorkerInfo(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One live worker process."""

    incarnation: str
    """Random, one life of one process; what ``Job.holder`` names."""
    name: str = ""
    host: str = ""
    pid: int = 0
    queues: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    concurrency: int = 0
    in_flight: int = 0
    buffered: int = 0
    started_at: int = 0
    seen_at: int = 0
    version: str = ""
    state: str = "running"
    """running, draining or unhealthy."""
