"""Parameters arrive as they were given, arrays of every kind and length among them."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tessera.model.errors import InvalidArgument
from tessera.model.states import State
from tessera.store.postgres import params
from tessera.store.postgres.params import ADAPTERS, Bigints, Bools, Byteas, Ints, Texts, Uuid, Uuids
from tests.servers.schemas import connection_of_this_process
from tests.store.postgres.driver_rig import Flyer

MANY = 100_000
ARRAYS: dict[Any, tuple[str, list[Any]]] = {
    Uuids: ("uuid", [bytes(range(16)), None, b"\0" * 16]),
    Bigints: ("bigint", [0, -1, 2**63 - 1, -(2**63)]),
    Ints: ("integer", [0, -1, 2**31 - 1, -(2**31)]),
    Texts: ("text", ["", "a", "ü", "𝄞", "a\nb", "NULL", "{}", '"', "\\"]),
    Byteas: ("bytea", [b"", None, b"\0", b"\xff" * 5]),
    Bools: ("boolean", [True, False]),
}
PLAIN = {"uuid": "uuid_send(u)"}


def unnested(flyer: Flyer, array: Any, values: list[Any]) -> list[Any]:
    name = ARRAYS[array][0]
    query = f"SELECT {PLAIN.get(name, 'u')} FROM unnest($1::{name}[]) WITH ORDINALITY x(u, n) ORDER BY n"
    [rows] = flyer.flight((query, [array(values)]))
    return [value for (value,) in rows]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.__name__)
def test_an_array_arrives_element_by_element(flyer: Flyer, array: Any):
    _, values = ARRAYS[array]
    assert unnested(flyer, array, values) == values
    assert unnested(flyer, array, []) == []
    assert unnested(flyer, array, values[:1]) == values[:1]


@pytest.mark.parametrize("array", [Uuids, Byteas], ids=lambda array: array.__name__)
def test_an_array_of_nothing_but_null(flyer: Flyer, array: Any):
    assert unnested(flyer, array, [None] * 3) == [None] * 3


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.__name__)
def test_an_array_of_100_000_elements(flyer: Flyer, array: Any):
    chance = random.Random(5)
    values = [chance.choice(ARRAYS[array][1]) for _ in range(MANY)]
    assert unnested(flyer, array, values) == values


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.__name__)
def test_an_array_needs_no_cast(flyer: Flyer, array: Any):
    name, values = ARRAYS[array]
    asked = ("SELECT pg_typeof($1)::text, pg_typeof($2)::text", [array(values), array([])])
    assert flyer.flight(asked) == [[(f"{name}[]", f"{name}[]")]]


@pytest.mark.parametrize(
    "value, name",
    [
        (Uuid(bytes(range(16))), "uuid"),
        (0, "bigint"),
        (-(2**63), "bigint"),
        (2**63 - 1, "bigint"),
        ("", "text"),
        ("ü", "text"),
        (State.RUNNING, "text"),
        (b"", "bytea"),
        (b"\0\xff", "bytea"),
        (True, "boolean"),
    ],
)
def test_a_single_value_has_one_type_whatever_it_is(flyer: Flyer, value: Any, name: str):
    plain = PLAIN.get(name, "u").replace("u)", "$1)") if name == "uuid" else "$1"
    expected = value.value if isinstance(value, Uuid | State) else value
    assert flyer.flight((f"SELECT pg_typeof($1)::text, {plain}", [value])) == [[(name, expected)]]


def test_null_arrives_as_null(flyer: Flyer):
    assert flyer.flight(("SELECT $1::bytea IS NULL, $1", [None])) == [[(True, None)]]


@pytest.mark.parametrize(
    "parameter",
    [
        Texts(["a", "a\0b"]),
        Texts(["\ud800"]),
        "a\0",
        Bigints([1, 2**63]),
        Ints([2**31]),
        2**64,
        -(2**63) - 1,
    ],
    ids=["NUL among texts", "half a pair", "NUL", "bigints", "ints", "too long", "too low"],
)
def test_what_postgresql_cannot_hold_is_refused_before_it_is_sent(flyer: Flyer, parameter: Any):
    with pytest.raises(InvalidArgument):
        flyer.flight(("SELECT $1", [parameter]))
    assert flyer.flight(("SELECT 1", [])) == [[(1,)]]


@given(
    some.lists(some.text(some.characters(exclude_categories=["Cs"], exclude_characters="\0"))),
    some.lists(some.none() | some.binary()),
    some.lists(some.none() | some.binary(min_size=16, max_size=16)),
)
def test_arrays_are_packed_as_postgresql_packs_them(texts: list[str], blobs: list[Any], keys: list[Any]):
    query = "SELECT array_send($1), array_send($2), array_send($3)"
    cursor = psycopg.RawCursor(connection_of_this_process())
    cursor._adapters = ADAPTERS
    arrays = [Texts(texts), Byteas(blobs), Uuids(keys)]
    [sent] = cursor.execute(query, arrays, binary=True).fetchall()
    assert [bytes(one) for one in sent] == [array.packed() for array in arrays]


def test_what_the_application_registers_with_psycopg_means_nothing_to_us(flyer: Flyer):
    class Shouting(psycopg.adapt.Dumper):
        def dump(self, obj: str) -> bytes:
            return obj.upper().encode()

    mine = psycopg.adapters.get_dumper(str, psycopg.adapt.PyFormat.AUTO)
    psycopg.adapters.register_dumper(str, Shouting)
    try:
        with flyer.other() as other:
            assert other.flight(("SELECT $1", ["quiet"])) == [[("quiet",)]]
        application = connection_of_this_process().execute("SELECT %s::int", (7,)).fetchone()
        assert application == (7,)
    finally:
        psycopg.adapters.register_dumper(str, mine)


def test_nor_does_what_it_registered_before_we_came():
    class Odd(psycopg.adapt.Loader):
        format = psycopg.pq.Format.BINARY

        def load(self, data: Any) -> str:
            return "odd"

    number = psycopg.adapters.types["int8"].oid
    mine = psycopg.adapters.get_loader(number, psycopg.pq.Format.BINARY)
    assert mine is not None
    psycopg.adapters.register_loader(number, Odd)
    try:
        cursor = psycopg.RawCursor(connection_of_this_process())
        cursor._adapters = params._our_adapters()
        assert cursor.execute("SELECT $1", [5], binary=True).fetchone() == (5,)
    finally:
        psycopg.adapters.register_loader(number, mine)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "UTF8"])
def test_text_arrives_whatever_encoding_the_url_or_the_database_prefers(flyer: Flyer, encoding: str):
    with flyer.other(options=f"-cclient_encoding={encoding}") as other:
        assert other.flight(("SELECT $1, length($1)", ["Zoë"])) == [[("Zoë", 3)]]
