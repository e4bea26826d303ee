"""What each process saw, in a file of its own: one line an event, one ``write`` a line, so that kill -9 takes
nothing back.

Instants are nanoseconds of the monotonic clock, which all processes of one machine share. A line is
written *after* what it tells of: what a killed process did last may be missing, what is there happened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

VARIABLE = "FAULTS_HISTORY"
"""The file of a process and of the children that it starts."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line.

    Producers: trying, acked, refused, committed, rolled_back. Workers: lives, claimed, renewed, finished,
    stale, rescued. Handlers: started, effect, returned, raised, stopped. The rig: killed, paused,
    continued, asked, marked.
    """

    at: int
    what: str
    pid: int = 0
    who: str = ""
    job: str = ""
    fence: int = 0
    attempt: int = 0
    kind: str = ""
    how: str = ""
    """Of an end its name, of a refusal the error, of a rescue whether it was charged."""
    key: str = ""
    holder: str = ""
    claimed_at: int = 0
    """Milliseconds of the store's clock, as are those that follow."""
    until: int = 0
    number: int = 0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


class History:
    """An open history file. Callable from any thread."""

    def __init__(self, path: Path | str, who: str = "") -> None:
        self._who = who
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, what: str, **fields: object) -> None:
        """Append one event."""
        self.note_all([(what, fields)])

    def note_all(self, events: Iterable[tuple[str, dict[str, object]]]) -> None:
        """Append several by one write."""
        now = time.monotonic_ns()
        lines = [
            _encoder.encode(Event(at=now, what=what, **{"pid": os.getpid(), "who": self._who, **fields}))  # type: ignore[arg-type]
            for what, fields in events
        ]
        if lines:
            os.write(self._fd, b"\n".join(lines) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@cache
def mine() -> History:
    """The history of this process, where ``FAULTS_HISTORY`` says; a child of a worker writes to its
    worker's."""
    return History(os.environ[VARIABLE], Path(os.environ[VARIABLE]).stem)


def read(folder: Path) -> list[Event]:
    """All events of all processes in the order of time. A half line at the end of a file is a broken
    history."""
    events = [event for file in folder.glob("*.history") for event in read_file(file)]
    return sorted(events, key=lambda event: event.at)


def read_file(path: Path) -> list[Event]:
    """The events of one process."""
    return [_decoder.decode(line) for line in path.read_bytes().splitlines()]
