"""``tessera explain``: why a job is not running, and when it could."""

from __future__ import annotations

from typing import Final

import click

from tessera.doors.cli.opening import Door, Verb, pass_door
from tessera.model.states import State
from tessera.model.views import as_time, view

WHAT_TO_DO: Final = {
    "no_worker": "start one: tessera worker MODULE:APP",
    "kind_not_served": "start one with code that has it: tessera worker MODULE:APP",
    "queue_paused": "let it go on: tessera queues resume {queue}",
    "held": "let it go: tessera jobs promote {job}",
    "scheduled": "not to wait for it: tessera jobs promote {job}",
    "quarantined": "run it again: tessera jobs retry {job}",
    "dead": "run it again: tessera jobs retry {job}; all of the dead letter: tessera dead redrive",
    "cancelled": "run it after all: tessera jobs retry {job}",
}
"""What a person can type against a cause. Causes that clear by themselves, or in a way that no command has,
are not here."""


@click.command(cls=Verb)
@click.argument("job", metavar="JOB")
@pass_door
def explain(door: Door, job: str) -> None:
    """Say why a job is not running, what clears each cause, and when."""
    found = door.app().jobs.explain(job)
    shown = view(found.job)
    if door.as_json:
        causes = [
            {"code": cause.code, "text": cause.text, "clears": cause.clears, "at": as_time(cause.at)}
            for cause in found.causes
        ]
        document = {
            "job": shown.id,
            "kind": shown.kind,
            "queue": shown.queue,
            "state": shown.state,
            "now": as_time(found.now),
        }
        door.out.document({**document, "causes": causes})
        return
    lines = [f"job {shown.id} ({shown.kind} in {shown.queue}) is {shown.state}"]
    if shown.state is State.RUNNING:
        asked = ", and is asked to stop" if shown.cancel_requested else ""
        lines.append(
            f"  attempt {shown.attempt} by {shown.holder}, "
            f"its lease lasts until {shown.lease_until:%H:%M:%S}Z{asked}"
        )
    elif shown.state is State.COMPLETED:
        lines.append("  nothing holds it: it is done")
    elif not found.causes:
        lines.append("  nothing holds it: a worker will take it")
    for cause in found.causes:
        at = as_time(cause.at)
        lines.append(
            f"  {cause.text}; clears {cause.clears}" + (f", at {at:%Y-%m-%d %H:%M:%S}Z" if at else "")
        )
        if cause.code in WHAT_TO_DO:
            lines.append("    " + WHAT_TO_DO[cause.code].format(job=shown.id, queue=shown.queue))
    door.out.result(None, "\n".join(lines))
