"""``tessera check``: whether the code about to be deployed fits what waits in the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from tessera.app import Tessera
from tessera.config import read
from tessera.doors.cli.failing import DONE, REFUSED
from tessera.doors.cli.opening import Door, Verb, pass_door
from tessera.engine import inspecting
from tessera.model.errors import ConfigError, UndecodablePayload
from tessera.model.ids import show_id
from tessera.model.queries import PAGE_LIMIT, Filter, Page
from tessera.model.states import LIVE
from tessera.store.protocol import Store


@click.command(cls=Verb)
@click.option(
    "--sample",
    type=click.IntRange(0, PAGE_LIMIT),
    default=50,
    show_default=True,
    help="Waiting payloads of each kind that are tried against its handler, newest first.",
)
@pass_door
def check(door: Door, sample: int) -> int:
    """Import an application and compare it with what waits in its store; for CI before a deploy.

    Found wrong: unknown or broken settings, a module that cannot be imported, kinds declared twice, kinds
    that wait and have no handler any more, waiting payloads that their handler's parameters no longer fit.
    The status is then 1 (5 for the settings and the import).
    """
    settings, problems = read(door.arguments(), **door.places)
    try:
        app = door.code(settings.app)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from error
    if problems:
        raise ConfigError(problems)
    problems = _wrong_in_store(door, app, sample)
    if door.as_json:
        door.out.document({"app": settings.app, "kinds": sorted(app.kinds), "problems": problems})
    else:
        text = "\n".join(f"wrong: {problem}" for problem in problems)
        door.out.result(None, text or f"{settings.app}: {len(app.kinds)} kind(s), nothing wrong")
    return REFUSED if problems else DONE


def _wrong_in_store(door: Door, app: Tessera, sample: int) -> list[str]:
    if not door.is_there(app.url):
        door.out.note("there is no store yet: nothing waits in it")
        return []
    return door.run(lambda store: _compare(store, app, sample), app)


async def _compare(store: Store, app: Tessera, sample: int) -> list[str]:
    waiting = await inspecting.waiting_kinds(store)
    problems = [
        f"{count} job(s) of the kind {kind!r} wait and the application has no handler for it"
        for kind, count in sorted(waiting.items())
        if kind not in app.kinds
    ]
    for kind in sorted(waiting.keys() & app.kinds.keys()) if sample else ():
        found = await store.find_jobs(Filter(kinds=(kind,), states=tuple(LIVE)), Page(limit=sample))
        problems += _misfits(app, kind, found.jobs)
    return problems


def _misfits(app: Tessera, kind: str, jobs: Sequence[Any]) -> list[str]:
    """Each different misfit once, with the newest job that shows it."""
    seen: dict[str, list[str]] = {}
    for job in jobs:
        try:
            app.kinds[kind].signature.decode(job.payload)
        except UndecodablePayload as error:
            seen.setdefault(str(error), []).append(job.given_id or show_id(job.id))
    return [
        f"{len(ids)} of {len(jobs)} waiting payload(s) of the kind {kind!r} do not fit its handler: "
        f"{problem} (e.g. job {ids[0]})"
        for problem, ids in seen.items()
    ]
