"""What an operator wants to know of the file: where it lies, what a power cut can take, whether the ballast
is there."""

from __future__ import annotations

import os
import sqlite3
from typing import Final

from tessera.store.sqlite.file import SqliteFile
from tessera.store.sqlite.filesystem import MOUNTS, mount_of

DURABILITY: Final = {
    "full": "full: an acknowledged write survives a power cut",
    "normal": "normal: an acknowledged write survives the death of the process; a power cut may lose some",
}


def describe(file: SqliteFile) -> dict[str, str]:
    """Facts by name, for display."""
    return {
        "sqlite": sqlite3.sqlite_version,
        "file": file.path,
        "size": f"{_size(file.path)} bytes, and {_size(file.path + '-wal')} in the log",
        "durability": DURABILITY[file.synchronous],
        "file system": _filesystem(file.path),
        "ballast": _ballast(file),
    }


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _filesystem(path: str) -> str:
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
            kind, place = mount_of(os.path.realpath(path), mounts.read())
    except OSError:
        return "unknown here"
    return f"{kind} on {place}" if kind else "unknown here"


def _ballast(file: SqliteFile) -> str:
    if file.ballast.size_bytes == 0:
        return "none"
    if os.path.exists(file.ballast.path):
        return f"{file.ballast.size_bytes} bytes in reserve"
    return "given up: the disk is or was full, and nothing is enqueued until there is room for it again"
