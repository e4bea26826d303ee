"""A small world loaded from the database, for the one evaluator.

An SQL store loads what a transaction will look at, lets the evaluator (or the claim) run over it as over the
memory store, and writes the difference. What was not foreseen raises ``Missing``, which says what to load
before the evaluation begins again: each answer is made of rows that were really read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from tessera.model.changes import Counter, Edge, Record, Slot
from tessera.model.ids import JobId
from tessera.model.job import Job
from tessera.rules.ordering import sort_key
from tessera.store.rowsets import Rows
from tessera.store.working import FloorKey, Net, PassKey, Row

K = TypeVar("K")
V = TypeVar("V")
_KEYED: Final = ("jobs", "archive", "slots", "counters", "records", "floors", "passes", "edges")


class Wanted(msgspec.Struct):
    """Keys of rows, and beginnings of ordered lists with how many of their rows."""

    jobs: set[JobId] = msgspec.field(default_factory=set)
    """To be changed: locked."""
    archive: set[JobId] = msgspec.field(default_factory=set)
    slots: set[str] = msgspec.field(default_factory=set)
    counters: set[str] = msgspec.field(default_factory=set)
    records: set[tuple[str, str]] = msgspec.field(default_factory=set)
    floors: set[FloorKey] = msgspec.field(default_factory=set)
    passes: set[PassKey] = msgspec.field(default_factory=set)
    edges: set[tuple[JobId, JobId]] = msgspec.field(default_factory=set)
    edges_to: set[JobId] = msgspec.field(default_factory=set)
    edges_from: dict[JobId, int] = msgspec.field(default_factory=dict)
    ready: dict[str, int] = msgspec.field(default_factory=dict)
    blocked: dict[str, int] = msgspec.field(default_factory=dict)
    woken: dict[str, int] = msgspec.field(default_factory=dict)
    kinds: set[str] = msgspec.field(default_factory=set)
    """Queues whose ``kind:`` counters are asked for."""
    outdated: set[int] = msgspec.field(default_factory=set)
    """Policy versions that counters with jobs set aside are compared with."""
    staged: set[str] = msgspec.field(default_factory=set)

    def add(self, other: Wanted) -> None:
        """Want what the other wants as well; of a list the longer beginning."""
        for name in self.__struct_fields__:
            mine, more = getattr(self, name), getattr(other, name)
            if isinstance(mine, set):
                mine |= more
            else:
                for key, limit in more.items():
                    mine[key] = max(limit, mine.get(key, 0))


class Missing(Exception):
    """The evaluation needs rows that were not loaded."""

    def __init__(self, **wanted: Any) -> None:
        super().__init__(wanted)
        self.wanted = Wanted(**wanted)


class Mirror(Rows):
    """See the module. Implements ``store/working.Source``."""

    def __init__(self) -> None:
        super().__init__()
        self.known = Wanted()
        """Of what is known whether it is there, and with what content."""
        self.uploads: dict[str, tuple[int, int]] = {}
        self.revs: dict[JobId, int] = {}
        """Row versions of the jobs, as read."""
        self._ends: dict[tuple[str, Any], Any] = {}
        """Where the known beginning of a list ends: the last key read. A list without an end is known
        whole."""
        self._written: list[Net] = []

    # Taking in what was read --------------------------------------------------------------------------------

    def learn(self, table: str, keys: Iterable[Any], rows: Iterable[tuple[Any, Any]]) -> None:
        """Rows of a table by key; keys without a row are known to have none. What is known stays as it is: it
        was read, and locked, before.
        """
        known = getattr(self.known, table)
        changed = [Row(key, None, row) for key, row in rows if key not in known]
        known.update(keys)
        known.update(row.key for row in changed)
        super().write(_net({table: changed}))

    def learn_jobs(self, keys: Iterable[JobId], jobs: Iterable[tuple[Job, int]]) -> None:
        """Live jobs with their row versions. A job is in one of the two tables."""
        found = list(jobs)
        for job, rev in found:
            self.revs.setdefault(job.id, rev)
        self.learn("jobs", keys, [(job.id, job) for job, _ in found])
        self.known.archive.update(job.id for job, _ in found)

    def learn_list(self, name: str, key: Any, limit: int, last: Any, size: int) -> None:  # noqa: ANN401
        """The first rows of an ordered list were read, ``limit`` asked and ``size`` found, the last with
        this sort key.
        """
        getattr(self.known, name)[key] = limit
        if size < limit:
            self._ends.pop((name, key), None)
        else:
            self._ends[name, key] = last

    # Source: see store/working ------------------------------------------------------------------------------

    def load_job(self, job: JobId) -> Job | None:
        if job not in self.known.jobs:
            raise Missing(jobs={job})
        return self.jobs.get(job)

    def load_archived(self, job: JobId) -> Job | None:
        if job not in self.known.archive:
            raise Missing(archive={job})
        return self.archive.get(job)

    def load_slot(self, key: str) -> Slot | None:
        if key not in self.known.slots:
            raise Missing(slots={key})
        return self.slots.get(key)

    def load_counter(self, key: str) -> Counter | None:
        if key not in self.known.counters:
            raise Missing(counters={key})
        return self.counters.get(key)

    def load_record(self, key: tuple[str, str]) -> Record | None:
        if key not in self.known.records:
            raise Missing(records={key})
        return self.records.get(key)

    def load_floor(self, key: FloorKey) -> int | None:
        if key not in self.known.floors:
            raise Missing(floors={key})
        return self.floors.get(key)

    def load_pass(self, key: PassKey) -> int | None:
        if key not in self.known.passes:
            raise Missing(passes={key})
        return self.passes.get(key)

    def load_edge(self, key: tuple[JobId, JobId]) -> Edge | None:
        if key not in self.known.edges and key[1] not in self.known.edges_to:
            raise Missing(edges={key})
        return self.edges.get(key)

    def edges_from(self, parent: JobId, limit: int) -> list[Edge]:
        found = super().edges_from(parent, limit)
        self._check("edges_from", parent, limit, [edge.child for edge in found])
        return found

    def edges_to(self, child: JobId) -> list[Edge]:
        if child not in self.known.edges_to:
            raise Missing(edges_to={child})
        return super().edges_to(child)

    def ready(self, queue: str, limit: int) -> list[Job]:
        return self._listed("ready", queue, limit, super().ready(queue, limit))

    def blocked(self, key: str, limit: int) -> list[Job]:
        return self._listed("blocked", key, limit, super().blocked(key, limit))

    def woken(self, key: str, limit: int) -> list[Job]:
        return self._listed("woken", key, limit, super().woken(key, limit))

    def outdated_counters(self, version: int) -> list[str]:
        if version not in self.known.outdated:
            raise Missing(outdated={version})
        return sorted(
            key
            for key, counter in self.counters.items()
            if counter.blocked and counter.version < version and not key.startswith("kind:")
        )

    def blocked_kinds(self, queue: str) -> list[str]:
        if queue not in self.known.kinds:
            raise Missing(kinds={queue})
        first = f"kind:{queue}:"
        return sorted(
            key for key, counter in self.counters.items() if counter.blocked and key.startswith(first)
        )

    def staged(self, upload: str) -> tuple[int, int]:
        if upload not in self.uploads:
            raise Missing(staged={upload})
        return self.uploads[upload]

    def write(self, net: Net) -> None:
        super().write(_net({name: getattr(net, name) for name in _KEYED}))
        self._written.append(net)
        for name in _KEYED:
            # What was written is known, whether it was read before or not.
            known = getattr(self.known, name)
            known.update(row.key for row in getattr(net, name))

    # The end ------------------------------------------------------------------------------------------------

    def take_back(self) -> None:
        """Forget what was written, and stand as loaded."""
        for net in reversed(self._written):
            undone = {
                name: [Row(row.key, row.after, row.before) for row in reversed(getattr(net, name))]
                for name in _KEYED
            }
            super().write(_net(undone))
        self._written.clear()

    def net(self) -> Net:
        """All that was written, each row once, from how it was loaded to how it shall stand."""
        if len(self._written) == 1:
            return self._written[0]
        whole = _net({name: _joined(getattr(net, name) for net in self._written) for name in _KEYED})
        for net in self._written:
            whole.history += net.history
            whole.events += net.events
            whole.blobs += net.blobs
            whole.policy_bumps += net.policy_bumps
            whole.counts |= net.counts
            whole.shifts |= net.shifts
        return whole

    def _listed(self, name: str, key: str, limit: int, found: list[Job]) -> list[Job]:
        self._check(name, key, limit, [sort_key(job) for job in found])
        return found

    def _check(self, name: str, key: Any, limit: int, found: list[Any]) -> None:  # noqa: ANN401
        """Whether these are the first rows of the list, and not only the first that were loaded."""
        known = getattr(self.known, name)
        if key not in known:
            raise Missing(**{name: {key: limit}})
        end = self._ends.get((name, key))
        if end is not None and sum(one <= end for one in found) < limit:
            raise Missing(**{name: {key: known[key] + limit}})


def _net(parts: dict[str, Any]) -> Net:
    return Net(**parts)


def _joined(parts: Iterable[list[Row[K, V]]]) -> list[Row[K, V]]:
    """Rows that several writes changed, as one change each; what came back to where it was is left out."""
    rows: dict[K, Row[K, V]] = {}
    for part in parts:
        for row in part:
            first = rows.get(row.key)
            rows[row.key] = row if first is None else Row(row.key, first.before, row.after)
    return [row for row in rows.values() if row.before != row.after]
