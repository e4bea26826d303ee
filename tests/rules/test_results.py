"""What a handler returns: nothing of it is lost without a word."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from tessera.model.errors import InvalidArgument
from tessera.rules.signature import Signature


class Model(pydantic.BaseModel):
    value: Any


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
    return [value, [value], {"a": (1, [value])}, Holds(value), Model(value=value)]


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
