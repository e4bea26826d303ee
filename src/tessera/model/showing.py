"""Values in error texts: short, and safe whatever the value is.

An error about an argument must not fail over it: its ``repr`` may raise, recurse too deeply, or be as long as
a film. And what is told is read by a person and kept in logs.
"""

from __future__ import annotations

import reprlib
from typing import Final

MOST_SHOWN: Final = 200
"""Characters of one value."""
MOST_TOLD: Final = 2_000
"""Characters of a text that tells of several."""

_short: Final = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = MOST_SHOWN
_short.maxlist = _short.maxtuple = _short.maxset = _short.maxfrozenset = _short.maxdict = 10


def shown(value: object) -> str:
    """The value's ``repr``, shortened; only its type where it has none.

    >>> len(shown("x" * 1_000_000))
    200
    """
    try:
        return cut(_short.repr(value), 2 * MOST_SHOWN)
    except Exception:  # noqa: BLE001  the value's own code
        return f"something of type {type(value).__name__} that cannot be shown"


def told(error: BaseException) -> str:
    """What an exception says, shortened; nothing where that fails too."""
    try:
        return cut(str(error), MOST_TOLD)
    except Exception:  # noqa: BLE001  the exception's own code
        return ""


def cut(text: str, most: int = MOST_TOLD) -> str:
    """The text, without its middle where it is longer than so many characters.

    >>> cut("a" * 50 + "b" * 50, 10)
    'aaaa...bbb'
    """
    if len(text) <= most:
        return text
    ahead = (most - 2) // 2
    return f"{text[:ahead]}...{text[len(text) - (most - 3 - ahead) :]}"
