"""``tessera migrate``: the store's schema, forwards and back."""

from __future__ import annotations

from typing import Final

import click

from tessera._version import __version__
from tessera.doors.cli.opening import YES, Door, Verb, pass_door
from tessera.engine import inspecting
from tessera.model.errors import SchemaTooOld, Unsupported
from tessera.store.protocol import Evolves, Store, run_blocking

DIRECTIONS: Final = ("up", "down", "contract", "adopt")


@click.command(cls=Verb)
@click.argument("direction", type=click.Choice(DIRECTIONS), default="up")
@click.option(
    "--to",
    type=click.IntRange(min=0),
    metavar="N",
    help="To this version; else the newest, or with down one step back.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done, for PostgreSQL in SQL.")
@YES
@pass_door
def migrate(door: Door, direction: str, to: int | None, dry_run: bool, yes: bool) -> None:
    """Bring the store's schema to the version this Tessera works on. A new store has it from the start.

    On PostgreSQL workers of the release before go on meanwhile, and after: when the last of them is gone,
    contract does what they would mind. adopt takes tables that somebody made by hand from the printed SQL.

    The way down gives up what the newer schema holds; 0 removes every table of Tessera. It asks first.
    """
    if to is not None and direction in ("contract", "adopt"):
        raise click.UsageError(f"--to goes with up and down; {direction} is for the whole schema.")
    app = door.app(makes_store=direction in ("up", "adopt") and not dry_run)
    store = app._connected().handle(blocking=True)
    try:
        steps, script = _carry_out(door, store, direction, to, dry_run=dry_run, yes=yes)
    finally:
        run_blocking(store.close())
    if door.as_json:
        door.out.document({"steps": steps, "dry_run": dry_run, **({} if script is None else {"sql": script})})
    elif not steps:
        door.out.note("nothing to do: the schema is where it should be")
    elif script is not None:
        door.out.note(f"would take: {', '.join(steps)}")
        door.out.result(None, script.removesuffix("\n"))
    else:
        door.out.table((["would take"] if dry_run else ["taken"]), [(step,) for step in steps], empty="")


def _carry_out(
    door: Door, store: Store, direction: str, to: int | None, *, dry_run: bool, yes: bool
) -> tuple[list[str], str | None]:
    """The steps, and on a dry run the SQL of a store that can say it."""
    if direction == "adopt":
        return run_blocking(_evolving(store, "adopting tables").adopt()), None
    if direction == "contract":
        evolving = _evolving(store, "a schema in two parts: migrate does all of it")
        if not dry_run:
            _ask_before_contracting(door, store, yes=yes)
            return run_blocking(evolving.contract()), None
        return run_blocking(evolving.contract(True)), run_blocking(evolving.script(contract=True))
    found = _version(store)
    if direction == "down":
        to = _below(found, to)
        if not dry_run:
            door.confirm(
                f"Take the schema back from {found} to {to}? What only the newer one holds is lost.", yes=yes
            )
    elif to is not None and found is not None and to < found:
        raise click.UsageError(
            f"The store is at version {found}; the way to {to} is: tessera migrate down --to {to}."
        )
    steps = run_blocking(store.migrate(to, dry_run))
    return steps, run_blocking(store.script(to)) if dry_run and isinstance(store, Evolves) else None


def _evolving(store: Store, what: str) -> Evolves:
    if not isinstance(store, Evolves):
        raise Unsupported(store.name, what)
    return store


def _ask_before_contracting(door: Door, store: Store, *, yes: bool) -> None:
    """Older code finds the tables changed under it, and there is no way back to it but ``down``."""
    run_blocking(store.open())
    workers = run_blocking(inspecting.workers(store))
    others = [one for one in workers if one.version != __version__]
    if others:
        told = ", ".join(f"{one.name or one.incarnation} ({one.version})" for one in others)
        door.confirm(
            f"Workers of another Tessera than {__version__} are alive: {told}. Contract all the same?",
            yes=yes,
        )


def _version(store: Store) -> int | None:
    """The version in the store; None for one that is too old to be opened, which is what migrating is for."""
    if isinstance(store, Evolves):
        return run_blocking(store.schema())[0]  # opening one that is empty would fill it
    try:
        run_blocking(store.open())
    except SchemaTooOld:
        return None
    return run_blocking(store.schema())[0]


def _below(found: int | None, to: int | None) -> int:
    if to is None and found is None:
        raise click.UsageError("The store's schema is old already; say with --to where it shall go.")
    target = to if to is not None else max(0, (found or 0) - 1)
    if found is not None and target > found:
        raise click.UsageError(f"The store is at version {found}, which is below {target}.")
    return target
