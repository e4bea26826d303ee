"""``tessera migrate``: the store's schema, forwards and back."""

from __future__ import annotations

import click

from tessera.doors.cli.opening import YES, Door, Verb, pass_door
from tessera.model.errors import SchemaTooOld
from tessera.store.protocol import Store, run_blocking


@click.command(cls=Verb)
@click.argument("direction", type=click.Choice(["up", "down"]), default="up")
@click.option(
    "--to",
    type=click.IntRange(min=0),
    metavar="N",
    help="To this version; else the newest, or with down one step back.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@YES
@pass_door
def migrate(door: Door, direction: str, to: int | None, dry_run: bool, yes: bool) -> None:
    """Bring the store's schema to the version this Tessera works on. A new store has it from the start.

    The way down gives up what the newer schema holds; 0 removes every table of Tessera. It asks first.
    """
    app = door.app(makes_store=direction == "up" and not dry_run)
    store = app._connected().handle(blocking=True)
    try:
        found = _version(store)
        if direction == "down":
            to = _below(found, to)
            if not dry_run:
                door.confirm(
                    f"Take the schema back from {found} to {to}? What only the newer one holds is lost.",
                    yes=yes,
                )
        elif to is not None and found is not None and to < found:
            raise click.UsageError(
                f"The store is at version {found}; the way to {to} is: tessera migrate down --to {to}."
            )
        steps = run_blocking(store.migrate(to, dry_run))
    finally:
        run_blocking(store.close())
    if door.as_json:
        door.out.document({"steps": steps, "dry_run": dry_run})
    elif steps:
        door.out.table((["would take"] if dry_run else ["taken"]), [(step,) for step in steps], empty="")
    else:
        door.out.note("nothing to do: the schema is where it should be")


def _version(store: Store) -> int | None:
    """The version in the store; None for one that is too old to be opened, which is what migrating is for."""
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
