"""Parameters, packed by hand into PostgreSQL's binary forms.

An array is a header and its elements, each behind its length; to join them is half the cost of having a
driver look at the type of each (a bulk insert of 1,000 rows was twice as fast). The classes say the type, so
that nobody has to guess what an empty list or a list of NULLs means.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, ClassVar, Final

from psycopg import postgres
from psycopg.adapt import AdaptersMap, Buffer, Dumper
from psycopg.pq import Format

from tessera.model.errors import InvalidArgument

_HEADER: Final = Struct("!iiIii").pack
_NULL: Final = b"\xff\xff\xff\xff"
_LENGTH: Final = Struct("!i").pack
_OF_8: Final = Struct("!iq").pack
_OF_4: Final = Struct("!ii").pack
_UUID_LENGTH: Final = _LENGTH(16)
_TRUE: Final = b"\x00\x00\x00\x01\x01"
_FALSE: Final = b"\x00\x00\x00\x01\x00"


class Array:
    """A list of values of one type."""

    __slots__ = ("values",)
    element: ClassVar[int]
    """Type id of an element."""
    array: ClassVar[int]
    """Type id of the array."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def packed(self) -> bytes:
        """The binary form."""
        values = self.values
        if not values:
            return _HEADER(0, 0, self.element, 0, 1)[:12]
        has_nulls = 1 if None in values else 0
        try:
            return _HEADER(1, has_nulls, self.element, len(values), 1) + b"".join(self._elements(values))
        except struct.error as error:
            raise InvalidArgument("number", f"PostgreSQL cannot hold it: {error}") from None

    def _elements(self, values: Sequence[Any]) -> Iterable[bytes]:
        raise NotImplementedError


class Uuids(Array):
    """Keys of 16 bytes, or None."""

    element, array = 2950, 2951

    def _elements(self, values: Sequence[bytes | None]) -> Iterable[bytes]:
        return [_NULL if value is None else _UUID_LENGTH + value for value in values]


class Bigints(Array):
    """Whole numbers of 64 bits."""

    element, array = 20, 1016

    def _elements(self, values: Sequence[int]) -> Iterable[bytes]:
        return [_OF_8(8, value) for value in values]


class Ints(Array):
    """Whole numbers of 32 bits."""

    element, array = 23, 1007

    def _elements(self, values: Sequence[int]) -> Iterable[bytes]:
        return [_OF_4(4, value) for value in values]


class Texts(Array):
    """Texts without NUL."""

    element, array = 25, 1009

    def _elements(self, values: Sequence[str]) -> Iterable[bytes]:
        encoded = [encoded_text(value) for value in values]
        return [_LENGTH(len(value)) + value for value in encoded]


class Byteas(Array):
    """Bytes, or None."""

    element, array = 17, 1001

    def _elements(self, values: Sequence[bytes | None]) -> Iterable[bytes]:
        return [_NULL if value is None else _LENGTH(len(value)) + value for value in values]


class Bools(Array):
    """Truth values."""

    element, array = 16, 1000

    def _elements(self, values: Sequence[bool]) -> Iterable[bytes]:
        return [_TRUE if value else _FALSE for value in values]


class Uuid:
    """One key of 16 bytes."""

    __slots__ = ("value",)

    def __init__(self, value: bytes) -> None:
        self.value = value


def encoded_text(value: str) -> bytes:
    """UTF-8. Raises InvalidArgument for what PostgreSQL's text cannot hold."""
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("text", "holds half of a surrogate pair, which is no text") from None
    if b"\0" in encoded:
        raise InvalidArgument("text", "holds a NUL, which PostgreSQL's text cannot")
    return encoded


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Array) -> Buffer:
        return obj.packed()


class _UuidDumper(Dumper):
    format = Format.BINARY
    oid = 2950

    def dump(self, obj: Uuid) -> Buffer:
        return obj.value


class _IntDumper(Dumper):
    """Always 64 bits: the type of a parameter must not change with its size, nor a plan with it."""

    format = Format.BINARY
    oid = 20

    def dump(self, obj: int) -> Buffer:
        try:
            return obj.to_bytes(8, "big", signed=True)
        except OverflowError:
            raise InvalidArgument("number", f"{obj} needs more than 64 bits") from None


class _TextDumper(Dumper):
    format = Format.BINARY
    oid = 25

    def dump(self, obj: str) -> Buffer:
        return encoded_text(obj)


class _ByteaDumper(Dumper):
    format = Format.BINARY
    oid = 17

    def dump(self, obj: bytes) -> Buffer:
        return obj


def _our_adapters() -> AdaptersMap:
    # Not a copy of psycopg.adapters: the application may have registered its own there before.
    found = AdaptersMap(types=postgres.types)
    postgres.register_default_adapters(found)
    for kind in (Uuids, Bigints, Ints, Texts, Byteas, Bools):
        found.register_dumper(kind, type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": kind.array}))
    for other, dumper in ((Uuid, _UuidDumper), (int, _IntDumper), (str, _TextDumper), (bytes, _ByteaDumper)):
        found.register_dumper(other, dumper)
    return found


ADAPTERS: Final = _our_adapters()
"""For our own cursors; what an application registers with psycopg means nothing to them."""
