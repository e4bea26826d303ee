"""``tessera dead``: the dead letter, which waits for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from tessera.doors.cli.jobs import page_options, show_page
from tessera.doors.cli.opening import YES, Door, Noun, pass_door
from tessera.doors.cli.shapes import TAGS, listed
from tessera.engine.redriving import DEAD_LETTER

DROP: Final = ("attempt", "priority", "state", "due", "queue", "kind")
"""On a narrow terminal, the first to go first. Why a job died is what one looks for here."""


@click.group(cls=Noun)
def dead() -> None:
    """Look at dead and quarantined jobs, and bring them back."""


@dead.command("list")
@click.option("--queue", multiple=True, help="Only of this queue; may be repeated.")
@click.option("--kind", multiple=True, help="Only of this kind; may be repeated.")
@click.option("--tags-any", type=TAGS, multiple=True, metavar="TAG,...", help="Only with one of these tags.")
@click.option("--reason", default="", help="Only with a reason that begins so.")
@page_options
@pass_door
def list_dead(
    door: Door,
    queue: Sequence[str],
    kind: Sequence[str],
    tags_any: Sequence[Sequence[str]],
    reason: str,
    limit: int,
    cursor: str,
) -> None:
    """List dead and quarantined jobs by key.

    Keys made by Tessera come newest first; a job with an id of the caller's own comes where its key, which is
    derived from that id, falls.
    """
    found = door.app().jobs.list(
        queue=queue,
        kind=kind,
        state=DEAD_LETTER,
        tags_any=listed(tags_any),
        reason=reason,
        limit=limit,
        cursor=cursor,
    )
    show_page(door, found, empty="the dead letter is empty", drop=DROP)


@dead.command("redrive")
@click.option("--queue", multiple=True, help="Only of this queue; may be repeated.")
@click.option("--kind", multiple=True, help="Only of this kind; may be repeated.")
@click.option("--tags-any", type=TAGS, multiple=True, metavar="TAG,...", help="Only with one of these tags.")
@click.option("--reason", default="", help="Only with a reason that begins so.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="At most so many, in the order of dead list.",
)
@click.option("--dry-run", is_flag=True, help="Only count.")
@YES
@pass_door
def redrive(
    door: Door,
    queue: Sequence[str],
    kind: Sequence[str],
    tags_any: Sequence[Sequence[str]],
    reason: str,
    limit: int,
    dry_run: bool,
    yes: bool,
) -> None:
    """Start dead and quarantined jobs afresh, all their counts at 0. Without a filter it asks first."""
    verbs = door.app().jobs
    tags = listed(tags_any)
    if not (queue or kind or tags or reason or dry_run):
        count = 0 if yes else verbs.redrive(limit=limit, dry_run=True).matched
        if count:
            door.confirm(f"Start {count} dead and quarantined job(s) afresh?", yes=yes)
    done = verbs.redrive(
        queue=queue, kind=kind, tags_any=tags, reason=reason, limit=limit, dry_run=dry_run, by=door.by
    )
    document = {
        "matched": done.matched,
        "redriven": done.redriven,
        "refused": done.refused,
        "dry_run": dry_run,
    }
    if dry_run:
        text = f"{done.matched} job(s) would be redriven"
    else:
        text = f"{done.redriven} of {done.matched} job(s) redriven"
    door.out.result(document, text)
    if done.refused:
        door.out.note(
            f"{done.refused} left where they are: their unique key is taken by now, or somebody was faster"
        )
