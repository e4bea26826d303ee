"""``tessera capabilities``: what a store offers, and the test that shows it."""

from __future__ import annotations

from collections import Counter as Tally
from importlib.resources import files
from typing import Final

import click
import msgspec

from tessera.connect import connect
from tessera.doors.cli.opening import Door, Verb, pass_door
from tessera.model.errors import TesseraError

TABLE: Final = "capabilities.json"
WHY: Final = "test, or what is missing"


class Cell(msgspec.Struct, frozen=True):
    """One capability on one store: the test that showed it, whole or in part, or why it is not offered."""

    yes: str = ""
    part: str = ""
    lacks: str = ""
    no: str = ""

    @property
    def answer(self) -> str:
        """yes, in part, no, or nothing where it is not built."""
        return "yes" if self.yes else "in part" if self.part else "no" if self.no else ""

    @property
    def why(self) -> str:
        """The test that showed it, what is missing, or why it is not offered."""
        return self.yes or (f"lacks {self.lacks}" if self.part else self.no)


class Capability(msgspec.Struct, frozen=True):
    """One row of the table."""

    title: str
    stores: dict[str, Cell] = {}


class Table(msgspec.Struct, frozen=True):
    """The packaged table; it is made from a run of the tests."""

    capabilities: dict[str, Capability]


def read_table() -> Table:
    """The table of this release. Raises TesseraError where it is absent: in a checkout whose tests have not
    run."""
    file = files("tessera") / TABLE
    if not file.is_file():
        raise TesseraError(
            "this build has no capability table: it is made by a full run of the tests (make test)"
        )
    try:
        return msgspec.json.decode(file.read_bytes(), type=Table)
    except msgspec.DecodeError as error:
        raise TesseraError(f"the capability table of this build is broken: {error}") from error


@click.command(cls=Verb)
@click.argument("store_url", metavar="[URL]", required=False)
@click.option("--all", "everything", is_flag=True, help="Also what this store has no answer for yet.")
@pass_door
def capabilities(door: Door, store_url: str | None, everything: bool) -> None:
    """Say what the store behind a URL offers. Nothing is opened: the URL only says which store it is."""
    store = connect(store_url or door.settings.url).handle(blocking=True).name
    cells = [
        (id_, row.title, row.stores.get(store, Cell())) for id_, row in read_table().capabilities.items()
    ]
    if door.as_json:
        rows = [
            {"id": id_, "title": title, "answer": cell.answer, "why": cell.why, "test": cell.yes or cell.part}
            for id_, title, cell in cells
        ]
        door.out.document({"store": store, "capabilities": rows})
        return
    shown = [(id_, title, cell.answer, cell.why) for id_, title, cell in cells if cell.answer or everything]
    door.out.table(
        ("id", "capability", store, WHY),
        shown,
        empty=f"nothing is said of {store}",
        cut=WHY,
    )
    count = Tally(cell.answer for _, _, cell in cells)
    door.out.note(
        f"{store}: {count['yes']} offered, {count['in part']} in part, {count['no']} not offered, "
        f"{count['']} not built"
    )
