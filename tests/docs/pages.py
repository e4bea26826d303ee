"""Documentation pages as data: their code blocks in order, and what the page says about each.

A block is run unless a comment on the line before it says otherwise:

    <!-- file: mail.py -->          saved under this name in the page's folder, for blocks after it
    <!-- not run: the reason -->    left out

``python`` and ``bash`` blocks run; an ``output`` block right after one is what it must print. In it ``...``
stands for any text within a line, and alone on a line for any lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RUN = frozenset({"python", "bash"})
SHOWN = frozenset({"output", "mermaid", "toml", "text"})
"""What is not meant to be run."""

_FENCE = re.compile(r"^```(\S*)\s*$")
_REMARK = re.compile(r"^<!-- (file|not run): (.+?) -->$")


class Block(NamedTuple):
    """One fenced block."""

    line: int
    language: str
    text: str
    file: str = ""
    not_run: str = ""


def pages() -> list[Path]:
    """The README and every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    return list(_blocks(page.splitlines()))


def _blocks(lines: list[str]) -> Iterator[Block]:
    number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        if opened is None:
            number += 1
            continue
        end = next(i for i in range(number + 1, len(lines)) if lines[i].rstrip() == "```")
        remark = _REMARK.match(lines[number - 1]) if number else None
        said = {remark[1].replace(" ", "_"): remark[2]} if remark else {}
        text = "\n".join(lines[number + 1 : end]) + "\n"
        yield Block(number + 1, opened[1], text, said.get("file", ""), said.get("not_run", ""))
        number = end + 1


def agrees(printed: str, expected: str) -> bool:
    """Whether a program printed what its page shows."""
    return re.fullmatch("".join(_pattern(expected)), printed.rstrip() + "\n", re.DOTALL) is not None


def _pattern(expected: str) -> Iterator[str]:
    for line in expected.rstrip().split("\n"):
        if line == "...":
            yield r"(?:[^\n]*\n)*"
        else:
            yield r"[^\n]*".join(map(re.escape, line.rstrip().split("..."))) + r"[ ]*\n"
