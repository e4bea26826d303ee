"""``tessera maintain``: the store's own upkeep, now and by whoever may."""

from __future__ import annotations

import click

from tessera.doors.cli.opening import Door, Verb, pass_door
from tessera.model.errors import Unsupported
from tessera.store.protocol import Maintains, Store


@click.command(cls=Verb)
@click.option(
    "--indexes",
    is_flag=True,
    help="Also rebuild bloated indexes, beside the work; takes two connections and may take long.",
)
@pass_door
def maintain(door: Door, indexes: bool) -> None:
    """Do the upkeep of the store that workers do from time to time: fold counts, make the partitions of the
    archive for the days to come and drop those that are over.

    Of use where workers may not change tables, for a scheduled run by the user who owns them.
    """
    rebuilt = door.run(lambda store: _maintain(store, indexes=indexes))
    if door.as_json:
        door.out.document({"rebuilt": rebuilt})
    else:
        door.out.note("done")
        if indexes:
            door.out.table(("rebuilt",), [(name,) for name in rebuilt], empty="no index is bloated")


async def _maintain(store: Store, *, indexes: bool) -> list[str]:
    if not isinstance(store, Maintains):
        raise Unsupported(store.name, "upkeep of its own: it needs none")
    await store.maintain()
    return await store.rebuild_indexes() if indexes else []
