"""A lock file that outlives the process that held it, and how the next one finds that out.

A live holder writes its lock anew from time to time (its ``beat``). Whoever meets the lock notes what it saw
and goes away; who finds that it looked the same on two visits before breaks it. A job fails with that reason
while its patience lasts, and its retries are the visits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from tessera.demo.listing import replace_file

PATIENCE: Final = 2
"""Visits that must have seen the same lock before it is broken."""


class LockHeld(Exception):
    """Somebody else has the lock, or seems to."""


class Lock(msgspec.Struct, frozen=True):
    """The content of a lock file."""

    holder: str
    beat: int


class Sightings(msgspec.Struct, frozen=True):
    """What was seen at a lock, and on how many visits in a row."""

    seen: Lock
    visits: int


@contextmanager
def holding(path: Path, holder: str) -> Iterator[None]:
    """Hold a lock while the block runs. Raises LockHeld if somebody else has it and may be alive."""
    _take(path, holder)
    try:
        yield
    finally:
        path.unlink()


def leave_behind(path: Path, holder: str) -> None:
    """What a process leaves that was killed while it held the lock."""
    replace_file(path, msgspec.json.encode(Lock(holder, 1)))


def _take(path: Path, holder: str) -> None:
    notes = path.with_name(f"{path.name}.seen")
    mine = msgspec.json.encode(Lock(holder, 1))
    try:
        with path.open("xb") as file:
            file.write(mine)
        return
    except FileExistsError:
        found = msgspec.json.decode(path.read_bytes(), type=Lock)
    visits = _visits(notes, found)
    if visits < PATIENCE:
        replace_file(notes, msgspec.json.encode(Sightings(found, visits + 1)))
        raise LockHeld(
            f"{path.name} is held by {found.holder}; unchanged on visit {visits + 1}, broken after {PATIENCE}"
        )
    replace_file(path, mine)
    notes.unlink()


def _visits(notes: Path, found: Lock) -> int:
    """On how many visits just before this one the lock looked the same."""
    try:
        before = msgspec.json.decode(notes.read_bytes(), type=Sightings)
    except FileNotFoundError:
        return 0
    return before.visits if before.seen == found else 0
