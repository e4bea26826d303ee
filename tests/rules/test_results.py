"""What a handler returns: nothing of it is lost without a word."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pydantic
import pytest

from tessera.model.errors import InvalidArgument
from tessera.rules.signature import Signature


class Model(pydantic.BaseModel):
    value: Any


class Open(pydantic.BaseModel, extra="allow"):
    pass


def open_model(value: object) -> Open:
    return Open.model_validate({"value": value})


class ByAttrs:
    """As attrs makes a class, to msgspec: the package itself is not needed here."""

    __attrs_attrs__ = (SimpleNamespace(name="value"),)

    def __init__(self, value: object) -> None:
        self.value = value


def result_signature(annotation: object) -> Signature:
    def handler(): ...

    handler.__annotations__["return"] = annotation
    return Signature.of(handler)


NAMELESS = [None, Any, object, list[Any], dict[str, Any], tuple[Any, ...]]


@dataclass
class Holds:
    value: Any


def inside(value: object) -> list[object]:
    """The value, and what may hold it."""

    class Named(enum.Enum):
        ONE = value
        PAIR = (1, value)

    member = Named.ONE
    return [
        value, [value], {"a": (1, [value])}, Holds(value), Model(value=value), open_model(value),
        ByAttrs(value), member, [member], {"a": member}, Holds(member), Named.PAIR,
    ]  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("annotation", [*NAMELESS, float, float | None, list[float | None], Model])
def test_no_result_reads_nothing_where_there_was_a_number(annotation: object, value: float) -> None:
    signature = result_signature(annotation)
    refused = 0
    for given in inside(value):
        with pytest.raises(InvalidArgument, match=r"^result: ") as refusal:
            signature.encode_result(given)
        refused += "NaN and infinity have no JSON form" in str(refusal.value)
    assert refused


@pytest.mark.parametrize("value", [b"\xff", bytearray(b"a"), memoryview(b"a")])
@pytest.mark.parametrize("annotation", NAMELESS)
def test_no_result_reads_text_where_there_were_bytes(annotation: object, value: object) -> None:
    signature = result_signature(annotation)
    refused = 0
    for given in inside(value):
        with pytest.raises(InvalidArgument, match=r"^result: ") as refusal:
            signature.encode_result(given)
        refused += "would come back as base64 text" in str(refusal.value)
    assert refused


@pytest.mark.parametrize("annotation", [bytes, list[bytes], dict[str, bytes | None], tuple[int, bytes]])
def test_bytes_that_an_annotation_names_are_kept_in_a_result(annotation: Any) -> None:
    signature = result_signature(annotation)
    value = {bytes: b"\xff", list[bytes]: [b"a", b""], tuple[int, bytes]: (1, b"a")}.get(
        annotation, {"a": b"a"}
    )
    assert signature.decode_result(signature.encode_result(value)) == value


@pytest.mark.parametrize("value", [b"a", bytearray(b"a"), memoryview(b"a")])
@pytest.mark.parametrize(
    "annotation, make",
    [
        (Model, lambda value: Model(value=value)),
        (Open, open_model),
        (Holds, lambda value: Holds([value])),
        (list[Any], lambda value: [{"a": value}]),
        (list[Any], lambda value: [{bytes(value): 1}]),
        # What holds a set is written in the order of its keys, so what comes back stands elsewhere.
        (tuple[set[int], dict[str, Any]], lambda value: ({1}, {"b": value, "a": 1})),
        (tuple[bytes, Any], lambda value: (b"kept", value)),
    ],
)
def test_no_type_hides_bytes_that_it_does_not_name(annotation: Any, make: Any, value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^result: "):
        result_signature(annotation).encode_result(make(value))


def test_bytes_that_a_model_keeps_to_itself_are_no_loss() -> None:
    class Private(pydantic.BaseModel):
        name: str
        raw: bytes = pydantic.Field(default=b"", exclude=True)

    signature = result_signature(Private)
    written = signature.encode_result(Private(name="a", raw=b"b"))
    assert signature.decode_result(written) == Private(name="a")
