"""One file measured in one pass: bytes, hash, type, lines, words. Blocking; memory stays the same."""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
from collections.abc import Callable, Iterator

import msgspec

from tessera.demo.filetypes import BINARY, EMPTY, by_magic, by_name
from tessera.demo.spelling import read_spelling

CHUNK = 1 << 20
"""Bytes read at once. hashlib lets other threads run while it works on so many."""
_ROOM_TO_GROW = 64 << 20
_FLAGS = (
    os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
)
"""Never follow a link that was put in a file's place, never wait at a pipe's end."""


class Measured(msgspec.Struct, frozen=True):
    """What was found out about one file."""

    path: str
    size: int = 0
    sha256: str = ""
    type: str = ""
    lines: int | None = None
    """None for what is no text."""
    words: int | None = None
    problem: str = ""
    """Why nothing is known, in words; all else is empty then."""


class CannotMeasure(Exception):
    """A file that is no file any more, or never ends."""


def measure(folder: str, path: str, told: Callable[[int, int], None]) -> Measured:
    """Measure a file below a folder, both spelled. ``told(done, total)`` is called between chunks.

    What cannot be read is a finding and no error: it says so in ``problem``.
    """
    place = os.path.join(read_spelling(folder), read_spelling(path))
    try:
        if stat.S_ISLNK(os.lstat(place).st_mode):
            text = os.readlink(place)
            return Measured(path, len(text), hashlib.sha256(text).hexdigest(), "symbolic link")
        return _measure_file(place, path, told)
    except FileNotFoundError:
        return Measured(path, problem="vanished before it was read")
    except OSError as error:
        return Measured(path, problem=f"{type(error).__name__}: {error.strerror or error}")
    except CannotMeasure as error:
        return Measured(path, problem=str(error))


def _measure_file(place: bytes, path: str, told: Callable[[int, int], None]) -> Measured:
    digest = hashlib.sha256()
    text = _TextCounter()
    size = 0
    start = b""
    for chunk, total in _chunks(place):
        start = start or chunk[:512]
        digest.update(chunk)
        text.take(chunk)
        size += len(chunk)
        if size < total:
            told(size, total)
    if not size:
        return Measured(path, 0, digest.hexdigest(), EMPTY, 0, 0)
    if not text.is_text():
        return Measured(path, size, digest.hexdigest(), by_magic(start) or BINARY)
    return Measured(path, size, digest.hexdigest(), by_name(path, start), text.lines, text.words)


def _chunks(place: bytes) -> Iterator[tuple[bytes, int]]:
    """The content piece by piece, each with the size the whole had when it was opened."""
    with open(os.open(place, _FLAGS), "rb", buffering=0) as file:
        now = os.fstat(file.fileno())
        if not stat.S_ISREG(now.st_mode):
            raise CannotMeasure("not a regular file")
        read = 0
        while chunk := file.read(CHUNK):
            yield chunk, now.st_size
            read += len(chunk)
            if read > now.st_size + _ROOM_TO_GROW:
                raise CannotMeasure("grows faster than it can be read")


class _TextCounter:
    """Lines and words of UTF-8 text that comes in pieces; gives up at the first byte that is none."""

    def __init__(self) -> None:
        self._decoder: codecs.IncrementalDecoder | None = codecs.getincrementaldecoder("utf-8")()
        self._newlines = 0
        self._ends_in_word = False
        self._last = b""
        self.words = 0

    def take(self, chunk: bytes) -> None:
        if self._decoder is None:
            return
        try:
            if b"\0" in chunk:
                raise UnicodeDecodeError("utf-8", chunk, 0, 1, "NUL is no text")
            self._decoder.decode(chunk)
        except UnicodeDecodeError:
            self._decoder = None
            return
        self._newlines += chunk.count(b"\n")
        self.words += len(chunk.split()) - (self._ends_in_word and not chunk[:1].isspace())
        self._last = chunk[-1:]
        self._ends_in_word = not self._last.isspace()

    def is_text(self) -> bool:
        """Whether all of it was UTF-8, no character cut off at the end."""
        return self._decoder is not None and self._decoder.getstate()[0] == b""

    @property
    def lines(self) -> int:
        """Lines; a last one without a newline counts."""
        return self._newlines + (self._last not in (b"", b"\n"))
