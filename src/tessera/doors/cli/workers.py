"""``tessera workers``: who is there to work."""

from __future__ import annotations

import click

from tessera.doors.cli.opening import Door, Noun, pass_door
from tessera.engine import inspecting
from tessera.model.views import as_time
from tessera.model.worker import WorkerInfo

TITLES = ("name", "host", "pid", "state", "queues", "running", "started", "seen", "version")
DROP = ("version", "pid", "host", "started", "seen", "running", "queues")
"""On a narrow terminal, the first to go first."""


@click.group(cls=Noun)
def workers() -> None:
    """Look at workers."""


@workers.command("list")
@pass_door
def list_workers(door: Door) -> None:
    """List the workers that gave a sign of life within half a minute."""
    found = door.run(inspecting.workers)
    if door.as_json:
        door.out.document({"workers": [document(worker) for worker in found]})
        return
    rows = [
        (
            worker.name or worker.incarnation,
            worker.host,
            worker.pid,
            worker.state,
            worker.queues,
            f"{worker.in_flight}/{worker.concurrency}",
            as_time(worker.started_at),
            as_time(worker.seen_at),
            worker.version,
        )
        for worker in found
    ]
    door.out.table(TITLES, rows, empty="no live worker", drop=DROP)


def document(worker: WorkerInfo) -> dict[str, object]:
    """A worker as JSON, its times as times."""
    told: dict[str, object] = {name: getattr(worker, name) for name in worker.__struct_fields__}
    return told | {"started_at": as_time(worker.started_at), "seen_at": as_time(worker.seen_at)}
