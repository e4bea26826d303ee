"""Rows in dictionaries, with sorted lists that play the part of indexes: the source of the memory store, and
of what an SQL store has loaded of its tables for one transaction.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any, Final

from tessera.model.changes import Counter, Edge, Record, Slot
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.model.queries import Event
from tessera.model.states import State
from tessera.rules.ordering import sort_key
from tessera.store.working import FloorKey, Net, PassKey, Row

_EXPIRES_IN: Final = frozenset({State.PENDING, State.SCHEDULED, State.AVAILABLE, State.BLOCKED})


class Rows:
    """See the module. Implements ``store/working.Source``."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.archive: dict[JobId, Job] = {}
        self.slots: dict[str, Slot] = {}
        self.counters: dict[str, Counter] = {}
        self.records: dict[tuple[str, str], Record] = {}
        self.history: dict[tuple[str, str], list[Record]] = {}
        self.floors: dict[FloorKey, int] = {}
        self.passes: dict[PassKey, int] = {}
        self.edges: dict[tuple[JobId, JobId], Edge] = {}
        self.counts: dict[tuple[str, State], int] = {}
        self.log: list[Event] = []
        self.staged_chunks: dict[str, dict[int, bytes]] = {}
        self.blobs: dict[bytes, list[bytes]] = {}
        self.policy = 0
        self._ready: dict[str, list[Any]] = {}
        self._blocked: dict[str, list[Any]] = {}
        self._woken: dict[str, list[Any]] = {}
        self._from: dict[JobId, dict[JobId, Edge]] = {}
        self._to: dict[JobId, dict[JobId, Edge]] = {}
        self.scheduled: list[Any] = []
        self.leases: list[Any] = []
        self.expiries: list[Any] = []
        self.gone: list[Any] = []

    # Source: see store/working ------------------------------------------------------------------------------

    def load_job(self, job: JobId) -> Job | None:
        return self.jobs.get(job)

    def load_archived(self, job: JobId) -> Job | None:
        return self.archive.get(job)

    def load_slot(self, key: str) -> Slot | None:
        return self.slots.get(key)

    def load_counter(self, key: str) -> Counter | None:
        return self.counters.get(key)

    def load_record(self, key: tuple[str, str]) -> Record | None:
        return self.records.get(key)

    def load_floor(self, key: FloorKey) -> int | None:
        return self.floors.get(key)

    def load_pass(self, key: PassKey) -> int | None:
        return self.passes.get(key)

    def load_edge(self, key: tuple[JobId, JobId]) -> Edge | None:
        return self.edges.get(key)

    def edges_from(self, parent: JobId, limit: int) -> list[Edge]:
        return sorted(self._from.get(parent, {}).values(), key=lambda edge: edge.child)[:limit]

    def edges_to(self, child: JobId) -> list[Edge]:
        return sorted(self._to.get(child, {}).values(), key=lambda edge: edge.parent)

    def ready(self, queue: str, limit: int) -> list[Job]:
        return [self.jobs[key[-1]] for key in self._ready.get(queue, ())[:limit]]

    def blocked(self, key: str, limit: int) -> list[Job]:
        return [self.jobs[row[-1]] for row in self._blocked.get(key, ())[:limit]]

    def woken(self, key: str, limit: int) -> list[Job]:
        return [self.jobs[row[-1]] for row in self._woken.get(key, ())[:limit]]

    def outdated_counters(self, version: int) -> list[str]:
        return [
            key
            for key in sorted(self._blocked)
            if self.counters[key].version < version and not key.startswith("kind:")
        ]

    def blocked_kinds(self, queue: str) -> list[str]:
        return sorted(key for key in self._blocked if key.startswith(f"kind:{queue}:"))

    def staged(self, upload: str) -> tuple[int, int]:
        chunks = self.staged_chunks.get(upload, {})
        if sorted(chunks) != list(range(len(chunks))):
            return 0, -1
        return len(chunks), sum(map(len, chunks.values()))

    def policy_version(self) -> int:
        return self.policy

    def write(self, net: Net) -> None:
        for job in net.jobs:
            self._reindex_job(job)
        for archived in net.archive:
            self._reindex_archived(archived)
        for edge in net.edges:
            self._reindex_edge(edge)
        _replace(self.jobs, net.jobs)
        _replace(self.archive, net.archive)
        _replace(self.edges, net.edges)
        _replace(self.slots, net.slots)
        _replace(self.counters, net.counters)
        _replace(self.records, net.records)
        _replace(self.floors, net.floors)
        _replace(self.passes, net.passes)
        for record in net.history:
            self.history.setdefault((record.space, record.key), []).append(record)
        for key, by in net.counts.items():
            self.counts[key] = self.counts.get(key, 0) + by
        for event in net.events:
            self.log.append(_at_position(event, len(self.log) + 1))
        for upload, sha256, _ in net.blobs:
            chunks = self.staged_chunks.pop(upload, {})
            self.blobs[sha256] = [chunks[number] for number in sorted(chunks)]
        self.policy += net.policy_bumps

    def _reindex_job(self, row: Row[JobId, Job]) -> None:
        for job, change in ((row.before, _remove), (row.after, insort)):
            if job is None:
                continue
            if job.state is State.AVAILABLE:
                change(self._ready.setdefault(job.queue, []), sort_key(job))
                if job.blocked_on:
                    change(self._woken.setdefault(job.blocked_on, []), sort_key(job))
            elif job.state is State.BLOCKED:
                change(self._blocked.setdefault(job.blocked_on, []), sort_key(job))
                if not self._blocked[job.blocked_on]:
                    del self._blocked[job.blocked_on]
            elif job.state is State.SCHEDULED:
                change(self.scheduled, (job.due, job.id))
            elif job.state is State.RUNNING:
                change(self.leases, (job.lease_until, job.id))
            if job.expires_at and job.state in _EXPIRES_IN:
                change(self.expiries, (job.expires_at, job.id))

    def _reindex_archived(self, row: Row[JobId, Job]) -> None:
        for job, change in ((row.before, _remove), (row.after, insort)):
            if job is not None and job.gone_at >= 0:
                change(self.gone, (job.gone_at, job.id))

    def _reindex_edge(self, row: Row[tuple[JobId, JobId], Edge]) -> None:
        parent, child = row.key
        if row.before is not None:
            self._from[parent].pop(child, None)
            self._to[child].pop(parent, None)
        if row.after is not None:
            self._from.setdefault(parent, {})[child] = row.after
            self._to.setdefault(child, {})[parent] = row.after


def _remove(index: list[Any], key: tuple[Any, ...]) -> None:
    del index[bisect_left(index, key)]


def _replace(rows: dict[Any, Any], changes: Iterable[Row[Any, Any]]) -> None:
    for row in changes:
        if row.after is None:
            rows.pop(row.key, None)
        else:
            rows[row.key] = row.after


def _at_position(event: Event, pos: int) -> Event:
    return Event(pos, event.at, event.what, event.queue, event.job, event.number, event.by, event.data)
