"""``tessera jobs``: look at jobs, and do to them what an operator does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from tessera.doors.cli.failing import status_of, tell
from tessera.doors.cli.opening import YES, Door, Noun, pass_door
from tessera.doors.cli.shapes import INSTANT, SPAN, STATE, TAGS, listed
from tessera.faces import JobList
from tessera.model.errors import TesseraError
from tessera.model.queries import PAGE_LIMIT
from tessera.model.views import AttemptView, JobView

TITLES: Final = ("id", "state", "kind", "queue", "priority", "attempt", "due", "reason")
_IDS = click.argument("ids", nargs=-1, required=True, metavar="JOB...")


def page_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--limit`` and ``--cursor``."""
    command = click.option(
        "--cursor", default="", metavar="CURSOR", help="Go on where the former page ended."
    )(command)
    limit = click.option(
        "--limit",
        type=click.IntRange(1, PAGE_LIMIT),
        default=50,
        show_default=True,
        help=f"Rows of a page, at most {PAGE_LIMIT}.",
    )
    return limit(command)


@click.group(cls=Noun)
def jobs() -> None:
    """Look at jobs and act on them."""


@jobs.command("list")
@click.option("--queue", multiple=True, help="Only of this queue; may be repeated.")
@click.option("--state", multiple=True, type=STATE, help="Only in this state; may be repeated.")
@click.option("--kind", multiple=True, help="Only of this kind; may be repeated.")
@click.option("--tags-all", type=TAGS, multiple=True, metavar="TAG,...", help="Only with all of these tags.")
@click.option("--tags-any", type=TAGS, multiple=True, metavar="TAG,...", help="Only with one of these tags.")
@click.option("--tenant", help="Only of this tenant.")
@click.option("--parent", metavar="JOB", help="Only children of this job.")
@click.option("--reason", default="", help="Only with a reason that begins so.")
@page_options
@pass_door
def list_jobs(
    door: Door,
    queue: Sequence[str],
    state: Sequence[str],
    kind: Sequence[str],
    tags_all: Sequence[Sequence[str]],
    tags_any: Sequence[Sequence[str]],
    tenant: str | None,
    parent: str | None,
    reason: str,
    limit: int,
    cursor: str,
) -> None:
    """List jobs, newest first, without payloads."""
    found = door.app().jobs.list(
        queue=queue,
        state=state,
        kind=kind,
        tags_all=listed(tags_all),
        tags_any=listed(tags_any),
        tenant=tenant,
        parent=parent,
        reason=reason,
        limit=limit,
        cursor=cursor,
    )
    show_page(door, found, empty="no such jobs")


def show_page(door: Door, found: JobList, *, empty: str) -> None:
    """One page of jobs, and how to get the next."""
    if door.as_json:
        door.out.document(found)
        return
    rows = [
        (j.id, j.state, j.kind, j.queue, j.priority, f"{j.attempt}", j.due_at, j.reason) for j in found.jobs
    ]
    door.out.table(TITLES, rows, empty=empty)
    if found.cursor:
        door.out.note(f"there is more: --cursor {found.cursor}")


@jobs.command("show")
@click.argument("job", metavar="JOB")
@click.option("--reveal", is_flag=True, help="Show payload and result too.")
@pass_door
def show(door: Door, job: str, reveal: bool) -> None:
    """Show one job; JOB is its key or the id it was given."""
    found = door.app().jobs.get(job, reveal=reveal)
    if door.as_json:
        door.out.document(found)
        return
    door.out.facts(_facts(found))
    if found.ends:
        door.out.table(
            ("attempt", "end", "started", "ended", "holder", "error"), map(_attempt, found.ends), empty=""
        )


def _facts(job: JobView) -> list[tuple[str, object]]:
    named = [
        (name, getattr(job, name))
        for name in JobView.__struct_fields__
        if name not in ("ends", "log", "payload", "result")
    ]
    if job.key == job.id:
        named = [(name, value) for name, value in named if name != "key"]
    facts = [(name.removesuffix("_at").replace("_", " "), _nothing(value)) for name, value in named]
    for name in ("payload", "result"):
        value = getattr(job, name)
        if isinstance(value, dict | list | str | int | float | bool | bytes):
            facts.append((name, value if isinstance(value, dict) else repr(value)))
    return [*facts, ("log", "\n".join(job.log))]


def _nothing(value: object) -> object:
    """None for what says nothing, so that it is left out."""
    return None if value in (0, False, (), "") else value


def _attempt(end: AttemptView) -> tuple[object, ...]:
    lines = end.error.strip().splitlines()
    return end.attempt, end.end, end.started_at, end.ended_at, end.holder, lines[-1] if lines else ""


@jobs.command("retry")
@_IDS
@pass_door
def retry(door: Door, ids: Sequence[str]) -> int:
    """Run jobs again: dead, cancelled and quarantined ones afresh, scheduled ones now, of completed ones a
    copy."""
    verbs = door.app().jobs
    return _each(door, ids, "retried", lambda job: verbs.retry(job, by=door.by).id)


@jobs.command("promote")
@_IDS
@pass_door
def promote(door: Door, ids: Sequence[str]) -> int:
    """Let pending jobs go, and make scheduled ones due now."""
    verbs = door.app().jobs
    return _each(door, ids, "promoted", lambda job: verbs.promote(job, by=door.by).id)


@jobs.command("cancel")
@_IDS
@click.option("--reason", default="", help="Kept with the job.")
@click.option("--hard", is_flag=True, help="Take a running job's lease away instead of asking it to stop.")
@pass_door
def cancel(door: Door, ids: Sequence[str], reason: str, hard: bool) -> int:
    """Cancel jobs and their children. A running one is asked to stop."""
    verbs = door.app().jobs

    def act(job: str) -> str:
        state = verbs.cancel(job, reason=reason, hard=hard, by=door.by)
        return "cancelled" if state == "cancelled" else "asked to stop"

    return _each(door, ids, "", act)


@jobs.command("delete")
@_IDS
@click.option("--force", is_flag=True, help="Also running jobs.")
@YES
@pass_door
def delete(door: Door, ids: Sequence[str], force: bool, yes: bool) -> int:
    """Remove jobs for good. Those that wait for them see them as cancelled."""
    verbs = door.app().jobs
    door.confirm(f"Remove {len(ids)} job(s) for good?", yes=yes)

    def act(job: str) -> str:
        verbs.delete(job, force=force, by=door.by)
        return "deleted"

    return _each(door, ids, "", act)


@jobs.command("edit")
@click.argument("job", metavar="JOB")
@click.option("--priority", type=int, help="-32768 to 32767, higher first.")
@click.option(
    "--tags", type=TAGS, multiple=True, metavar="TAG,...", help="Replaces all tags; '' removes them."
)
@click.option("--run-at", type=INSTANT, help="When it is due.")
@click.option("--delay", type=SPAN, help="When it is due, from now.")
@click.option("--max-attempts", type=int, help="Failures until it is dead.")
@pass_door
def edit(door: Door, /, job: str, tags: Sequence[Sequence[str]], **changes: Any) -> None:
    """Change a job that waits."""
    if not tags and all(value is None for value in changes.values()):
        raise click.UsageError(
            "Nothing to change; give --priority, --tags, --run-at, --delay or --max-attempts."
        )
    handle = door.app().jobs.edit(job, tags=listed(tags) if tags else None, by=door.by, **changes)
    door.out.result({"jobs": [{"id": handle.id, "done": "edited"}]}, f"{handle.id}  edited")


def _each(door: Door, ids: Sequence[str], done: str, act: Callable[[str], str]) -> int:
    """Do it to every job; one that is refused does not keep the others from it. The worst exit status of all.

    ``act`` answers the id of the job that goes on, or, where ``done`` is empty, what was done.
    """
    status = 0
    answers = []
    for job in ids:
        try:
            answer = act(job)
        except TesseraError as error:
            tell(error, as_json=door.as_json)
            status = max(status, status_of(error))
            continue
        answers.append({"id": answer, "done": done} if done else {"id": job, "done": answer})
    if door.as_json:
        door.out.document({"jobs": answers})
    else:
        for one in answers:
            door.out.result(one, f"{one['id']}  {one['done']}")
    return status
