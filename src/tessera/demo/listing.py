"""Which files there are to work on: those that git tracks in a checkout, else all below the folder."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Final

import msgspec

from tessera import seam
from tessera.demo.spelling import spell

SKIPPED: Final = frozenset(
    """
    .git .hg .svn .venv venv node_modules __pycache__ .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
    .tox .nox .import_linter_cache tessera-demo
    """.split()
)
"""Folders that hold what tools made, not what people did."""
_MARKS: Final = frozenset({b"CACHEDIR.TAG", b"pyvenv.cfg"})
"""A folder with one of these in it is a cache or an environment, whatever its name."""
_TURN: Final = 500
"""Files after which others may run: looking at one takes some microseconds."""


class Input(msgspec.Struct, frozen=True):
    """One file as it was when it was listed."""

    path: str
    """Spelled, relative to the folder."""
    size: int
    mtime_ns: int


class Listing(msgspec.Struct, frozen=True):
    """What there is to work on."""

    files: tuple[Input, ...]
    how: str
    """``tracked by git`` or ``found below it``."""
    closed: tuple[str, ...] = ()
    """Folders that could not be looked into."""


async def list_files(folder: str) -> Listing:
    """The files of a folder by name; symbolic links are listed and not followed. Raises OSError."""
    root = os.fsencode(folder)
    closed: list[str] = []
    tracked = await _tracked(folder)
    how = "tracked by git" if tracked else "found below it"
    names = tracked or [name async for name in _below(root, closed)]
    files = [found async for found in _looked_at(root, sorted(names))]
    return Listing(tuple(files), how, tuple(closed))


async def _tracked(folder: str) -> list[bytes]:
    """What git tracks below the folder; empty if it tracks nothing, is no git, or will not say."""
    try:
        git = await seam.start_process(
            ["git", "ls-files", "-z"], cwd=folder, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        )
    except (FileNotFoundError, PermissionError):
        return []
    out, _ = await git.communicate()
    # A path in conflict is listed once a side.
    return list(dict.fromkeys(filter(None, out.split(b"\0")))) if git.returncode == 0 else []


async def _below(root: bytes, closed: list[str]) -> AsyncIterator[bytes]:
    folders = [b""]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(os.path.join(root, folder)))
        except OSError as error:
            if not folder:
                raise
            closed.append(f"{spell(folder)}: {error.strerror}")
            continue
        if folder and _MARKS.intersection(entry.name for entry in entries):
            continue
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if entry.is_dir(follow_symlinks=False):
                if os.fsdecode(entry.name) not in SKIPPED:
                    folders.append(path)
            elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                yield path
        await seam.sleep(0)


async def _looked_at(root: bytes, names: Iterable[bytes]) -> AsyncIterator[Input]:
    for number, name in enumerate(names):
        if number % _TURN == 0:
            await seam.sleep(0)
        try:
            now = os.lstat(os.path.join(root, name))
        except OSError:
            continue  # tracked and deleted, or gone since
        if stat.S_ISREG(now.st_mode) or stat.S_ISLNK(now.st_mode):  # a tracked folder is a submodule
            yield Input(spell(name.replace(os.sep.encode(), b"/")), now.st_size, now.st_mtime_ns)


def write_listing(path: Path, listing: Listing) -> None:
    """Keep a listing in a file, which is there wholly or not at all."""
    replace_file(path, msgspec.json.encode(listing))


def read_listing(path: Path) -> Listing:
    """A listing that was kept."""
    return msgspec.json.decode(path.read_bytes(), type=Listing)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content)
    beside.replace(path)
