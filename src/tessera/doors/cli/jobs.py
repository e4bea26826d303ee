"""``tessera jobs``: look at jobs, and do to them what an operator does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click
import msgspec

from tessera.doors.cli.failing import status_of, tell
from tessera.doors.cli.opening import YES, Door, Noun, pass_door
from tessera.doors.cli.shapes import INSTANT, SPAN, STATE, TAGS, listed
from tessera.faces import JobList
from tessera.model.errors import NotFound, TesseraError
from tessera.model.queries import PAGE_LIMIT
from tessera.model.states import State
from tessera.model.views import AttemptView, JobView

TITLES: Final = ("id", "state", "kind", "queue", "priority", "attempt", "due", "reason")
JOBS_DROP: Final = ("attempt", "priority", "due", "queue", "kind", "reason", "state")
"""On a narrow terminal, the first to go first."""
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
    """List jobs by key, without payloads.

    Keys made by Tessera come newest first; a job with an id of the caller's own comes where its key, which is
    derived from that id, falls.
    """
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


def show_page(door: Door, found: JobList, *, empty: str, drop: Sequence[str] = JOBS_DROP) -> None:
    """One page of jobs, and how to get the next."""
    if door.as_json:
        door.out.document(found)
        return
    rows = [
        (j.id, j.state, j.kind, j.queue, j.priority, f"{j.attempt}", j.due_at, _reason(j)) for j in found.jobs
    ]
    door.out.table(TITLES, rows, empty=empty, drop=drop, cut="reason")
    if found.cursor:
        door.out.note(f"there is more: --cursor {found.cursor}")


def _reason(job: JobView) -> str:
    """Why it is where it is: the reason, and what its last attempt ended with unless that says the same."""
    if job.state is State.COMPLETED or not job.ends:
        return job.reason
    error = _last_line(job.ends[-1].error)
    if not error or error in job.reason:
        return job.reason
    return f"{job.reason}: {error}" if job.reason else error


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


@jobs.command("show")
@click.argument("job", metavar="JOB")
@click.option("--reveal", is_flag=True, help="Show payload and result too.")
@pass_door
def show(door: Door, job: str, reveal: bool) -> None:
    """Show one job; JOB is its key or the id it was given."""
    verbs = door.app().jobs
    found = verbs.get(job, reveal=reveal)
    if door.as_json:
        door.out.document(found)
        return
    door.out.facts(_facts(found))
    if found.ends:
        door.out.table(
            ("attempt", "end", "started", "ended", "holder", "error"),
            map(_attempt, found.ends),
            empty="",
            drop=("holder", "started", "ended", "error"),
            cut="error",
        )
    if not reveal and (hidden := _hidden(verbs.get(job, reveal=True))):
        shows = "shows them" if len(hidden) > 1 else "shows it"
        door.out.note(f"({' and '.join(hidden)} hidden; --reveal {shows})")


def _hidden(job: JobView) -> list[str]:
    """What only ``--reveal`` shows of a job; nothing is not hidden."""
    values = {"payload": job.payload, "result": job.result}
    return [name for name, value in values.items() if value not in (msgspec.UNSET, None, {}, [], b"")]


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
    return end.attempt, end.end, end.started_at, end.ended_at, end.holder, _last_line(end.error)


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
    status = 0
    if not yes:
        ids, status = _found(door, ids)
        if ids:
            door.confirm(f"Remove {len(ids)} job(s) for good?", yes=yes)

    def act(job: str) -> str:
        verbs.delete(job, force=force, by=door.by)
        return "deleted"

    return max(status, _each(door, ids, "", act))


def _found(door: Door, ids: Sequence[str]) -> tuple[list[str], int]:
    """Those of the ids that are there, and the exit status; of the others it is said that they are not."""
    found, status = [], 0
    for job in ids:
        try:
            door.app().jobs.get(job)
        except NotFound as error:
            tell(error, as_json=door.as_json)
            status = max(status, status_of(error))
        else:
            found.append(job)
    return found, status


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
