"""``tessera queues``: what waits where, and the switches of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from tessera import seam
from tessera.doors.cli.opening import YES, Door, Noun, pass_door
from tessera.doors.cli.shapes import SPAN, STATE
from tessera.engine.inspecting import QueueInfo
from tessera.model.states import FINAL, State

DROP = (State.PENDING, State.WAITING, State.COMPLETED, "workers", State.BLOCKED, State.SCHEDULED)
"""On a narrow terminal, the first to go first."""
SHOWN = (*(state for state in State if state not in FINAL), State.COMPLETED, State.DEAD)


@click.group(cls=Noun)
def queues() -> None:
    """Look at queues, pause and empty them."""


@queues.command("list")
@click.option("--watch", type=SPAN, help="Show it again every so often, until interrupted.")
@pass_door
def list_queues(door: Door, watch: float | None) -> None:
    """List queues with exact counts; with --json and --watch one line of JSON each time."""
    app = door.app()

    def wait() -> None:
        asyncio.run(seam.sleep(watch or 0))

    def draw() -> tuple[Sequence[str], list[Sequence[object]]]:
        return _drawn(app.queues.list())

    if watch is None:
        found = app.queues.list()
        if door.as_json:
            door.out.document({"queues": [document(queue) for queue in found]})
        else:
            titles, rows = _drawn(found)
            door.out.table(titles, rows, empty="no queues yet", drop=DROP)
    elif door.as_json:
        while True:
            door.out.document({"queues": [document(queue) for queue in app.queues.list()]})
            wait()
    else:
        door.out.live(draw, wait, drop=DROP)


def _drawn(queues: Sequence[QueueInfo]) -> tuple[Sequence[str], list[Sequence[object]]]:
    """Titles and rows, without the states that no queue has a job in. That no worker is there is always
    said."""
    shown = [state for state in SHOWN if any(queue.counts.get(state, 0) for queue in queues)]
    rows: list[Sequence[object]] = [
        (queue.name, *(queue.counts.get(state, 0) for state in shown), queue.workers, queue.paused)
        for queue in queues
    ]
    return ("queue", *shown, "workers", "paused"), rows


def document(queue: QueueInfo) -> dict[str, object]:
    """A queue as JSON: every state is there, also where the count is 0."""
    counts = {state: queue.counts.get(state, 0) for state in State}
    return {"name": queue.name, "counts": counts, "paused": queue.paused, "workers": queue.workers}


@queues.command("pause")
@click.argument("queue")
@pass_door
def pause(door: Door, queue: str) -> None:
    """Let no worker claim from a queue until it is resumed. What runs goes on."""
    door.app().queues.pause(queue)
    door.out.result({"queue": queue, "paused": True}, f"{queue}  paused")


@queues.command("resume")
@click.argument("queue")
@pass_door
def resume(door: Door, queue: str) -> None:
    """Undo a pause."""
    door.app().queues.resume(queue)
    door.out.result({"queue": queue, "paused": False}, f"{queue}  resumed")


@queues.command("purge")
@click.argument("queue")
@click.option(
    "--state", multiple=True, type=STATE, help="Only in this state; may be repeated. Default: all that wait."
)
@click.option("--dry-run", is_flag=True, help="Only count.")
@YES
@pass_door
def purge(door: Door, queue: str, state: Sequence[str], dry_run: bool, yes: bool) -> None:
    """Remove the waiting jobs of a queue for good. Running jobs are never purged."""
    verbs = door.app().queues
    if not dry_run:
        count = 0 if yes else verbs.purge(queue, state=state, dry_run=True)
        if count:
            door.confirm(f"Remove {count} job(s) of the queue {queue!r} for good?", yes=yes)
    removed = verbs.purge(queue, state=state, dry_run=dry_run, by=door.by)
    text = f"{queue}  {removed} job(s) {'would be ' if dry_run else ''}removed"
    if not removed:
        text = f"{queue}  nothing to remove"
    door.out.result({"queue": queue, "removed": removed, "dry_run": dry_run}, text)
