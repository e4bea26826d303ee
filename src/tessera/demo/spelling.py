"""File names as one line of printable text, and back.

A name on disk is bytes: it may hold a newline, or bytes that are no UTF-8. A payload is JSON and a report is
read by people, so both hold a spelling: the name where it is printable, ``\\x0a`` for any other byte, and a
backslash twice.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPE: Final = re.compile(rb"\\(?:\\|x([0-9a-f]{2}))")
_FIRST_ESCAPED_BYTE: Final = 0xDC00
"""Python's ``surrogateescape`` puts a byte that is no UTF-8 at this code point plus its value."""


def spell(name: bytes) -> str:
    r"""The spelling of a name or path.

    >>> spell(b"two\nlines \xff")
    'two\\x0alines \\xff'
    """
    text = name.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_spell_character, text))


def read_spelling(text: str) -> bytes:
    r"""The name behind a spelling.

    >>> read_spelling(spell(b"two\nlines \xff"))
    b'two\nlines \xff'
    """
    return _ESCAPE.sub(
        lambda found: b"\\" if found[1] is None else bytes.fromhex(found[1].decode()), text.encode()
    )


def _spell_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    code = ord(character)
    escaped = bytes([code - _FIRST_ESCAPED_BYTE]) if 0xDC80 <= code <= 0xDCFF else character.encode()
    return "".join(f"\\x{byte:02x}" for byte in escaped)
