"""How a table is made to fit a terminal: whole columns go before a word of one is broken."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from tessera import seam
from tessera.model.views import as_time

GAP: Final = 2
"""Cells between two columns."""
LEAST_TEXT: Final = 16
"""A text that is cut shorter than this says nothing; rather another column goes."""
ELLIPSIS: Final = "…"

Cells = Sequence[str]


def fit(
    titles: Cells, rows: Sequence[Cells], width: int, *, drop: Collection[str] = (), cut: str = ""
) -> tuple[list[str], list[list[str]]]:
    """The titles and rows that fit into ``width`` cells of a terminal.

    Columns of ``drop`` go until the rest fits: first those that are empty in every row, then the others in
    the order given. The text column ``cut`` is shortened at its end. What then is still too wide stays whole.

    >>> fit(["id", "queue", "reason"], [["0190", "mail", "ConnectionError: bank"]], 24,
    ...     drop=["queue"], cut="reason")
    (['id', 'reason'], [['0190', 'ConnectionError:…']])
    """
    widths = {
        title: max(cells_of(cell) for cell in (title, *column))
        for title, column in zip(titles, zip(*rows, strict=True), strict=True)
    }
    empty = {title for index, title in enumerate(titles) if not any(row[index] for row in rows)}
    least = dict(widths)
    if cut in least:
        least[cut] = min(widths[cut], LEAST_TEXT)
    for title in sorted(drop, key=lambda title: title not in empty):  # stable: the order given holds in each
        if _total(least) <= width:
            break
        widths.pop(title, None)
        least.pop(title, None)
    if cut in widths:
        widths[cut] = max(least[cut], widths[cut] - max(0, _total(widths) - width))
    kept = [(index, title) for index, title in enumerate(titles) if title in widths]
    shown = [
        [shorten(row[index], widths[cut]) if title == cut else row[index] for index, title in kept]
        for row in rows
    ]
    return [title for _, title in kept], shown


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def cells_of(text: str) -> int:
    """How many cells of a terminal a text takes: Chinese characters take two, accents of their own none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def shorten(text: str, width: int) -> str:
    """The text in at most ``width`` cells, an ellipsis where something is missing.

    >>> shorten("bank is down", 8)
    'bank is…'
    """
    if cells_of(text) <= width:
        return text
    while text and cells_of(text) > width - 1:
        text = text[:-1]
    return text.rstrip() + ELLIPSIS


def short_time(time: datetime) -> str:
    """An instant on the clock of this machine, as short as can be: today only the time of day."""
    local = time.astimezone()
    now = as_time(seam.now_ms())
    today = local if now is None else now.astimezone()
    if local.date() == today.date():
        return f"{local:%H:%M:%S}"
    return f"{local:%m-%d %H:%M}" if local.year == today.year else f"{local:%Y-%m-%d}"
