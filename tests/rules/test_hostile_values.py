"""Values whose own code raises, that are endless, or as long as a film: taken or refused in few words, and
never a foreign error.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pydantic
import pytest

from tessera.model.errors import InvalidArgument, TesseraError
from tessera.model.showing import MOST_SHOWN, MOST_TOLD, cut, shown, told
from tessera.rules.signature import Signature

HUGE = 10_000_000


class NoWords(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("repr")

    __str__ = __repr__


class NoText(str):
    __slots__ = ()
    __repr__ = __str__ = NoWords.__repr__


class NoEquals:
    __hash__ = None  # type: ignore[assignment]  # nothing of it works

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")


@dataclass
class HoldsAny:
    x: Any = None


@dataclass
class Checks:
    x: int = 0

    def __post_init__(self) -> None:
        raise NoWords


class Odd(type):
    def __getattr__(cls, name: str) -> Any:
        raise RuntimeError(name)


class OddOne(metaclass=Odd):
    pass


class Model(pydantic.BaseModel):
    x: int


class Unwritable(pydantic.BaseModel):
    x: Any

    @pydantic.field_serializer("x")
    def refuse(self, value: object) -> object:
        raise KeyError(value)


class Word(enum.Enum):
    A = "a"


def nested(levels: int, holds: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = holds(value)
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


VALUES: dict[str, Callable[[], Any]] = {
    "no words": NoWords,
    "a list of no words": lambda: [NoWords()],
    "a text without words": lambda: NoText("a"),
    "no equals": NoEquals,
    "a dataclass of no equals": lambda: HoldsAny([NoEquals()]),
    "a class that raises": lambda: OddOne,
    "an instance of a class that raises": OddOne,
    "a model that cannot be written": lambda: Unwritable(x=1),
    "a deep list": lambda: nested(100_000, lambda value: [value]),
    "a deep dict": lambda: nested(100_000, lambda value: {"a": value}),
    "a list of middling depth": lambda: nested(700, lambda value: [value]),
    "an endless list": endless,
    "a long text": lambda: "x" * HUGE,
    "a list of a long text": lambda: ["x" * HUGE],
    "a long key": lambda: {"x" * HUGE: 1},
    "long bytes": lambda: b"x" * HUGE,
    "a number of 5,000 digits": lambda: 10**5_000,
    "a generator": lambda: (n for n in range(3)),
    "a mixed set": lambda: {1, "a"},
    "keys of no text": lambda: {(1, 2): 3, b"a": 1},
    "a lone surrogate": lambda: "\ud800",
}
ANNOTATIONS = [
    None, Any, int, str, bytes, float, list[int], dict[str, int], set[int], tuple[int, str], int | str, Word,
    Literal["a", "b"], HoldsAny, Checks, Model,
]  # fmt: skip


def annotated(name: str, annotation: object) -> Signature:
    def handler(x): ...

    if annotation is not None:
        handler.__annotations__[name] = annotation
    return Signature.of(handler)


def is_taken_or_refused(call: Callable[[], object]) -> None:
    try:
        call()
    except InvalidArgument as error:
        assert len(str(error)) <= MOST_SHOWN + MOST_TOLD + 2  # noqa: PT017  a value that is taken is no failure


@pytest.mark.parametrize("value", VALUES)
def test_any_argument_and_any_result_is_taken_or_refused_in_few_words(value: str) -> None:
    made = VALUES[value]()
    for annotation in ANNOTATIONS:
        takes, gives = annotated("x", annotation), annotated("return", annotation)
        is_taken_or_refused(lambda takes=takes: takes.bind([made], {}))  # type: ignore[misc]
        is_taken_or_refused(lambda gives=gives: gives.encode_result(made))  # type: ignore[misc]


@pytest.mark.parametrize("value", VALUES)
def test_any_default_and_any_further_argument_is_taken_or_refused_in_few_words(value: str) -> None:
    made = VALUES[value]()

    def takes_all(**more): ...

    def has_default(x=made): ...

    is_taken_or_refused(lambda: Signature.of(takes_all).bind([], {"a": made}))
    is_taken_or_refused(lambda: Signature.of(has_default))


@pytest.mark.parametrize("name", ["x" * HUGE, "\ud800"])
def test_any_name_of_an_argument_is_refused_in_few_words(name: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        annotated("x", int).bind([], {name: 1})
    assert len(str(refusal.value)) < 1_000


@pytest.mark.parametrize("value", VALUES)
def test_any_value_can_be_shown(value: str) -> None:
    text = shown(VALUES[value]())
    assert 0 < len(text) <= 2 * MOST_SHOWN
    assert text.isprintable()


def test_what_cannot_be_said_is_left_out() -> None:
    assert told(NoWords()) == ""
    assert told(ValueError("no")) == "no"
    assert "NoText" in shown(NoText("a"))


@pytest.mark.parametrize("length", range(8, 40))
def test_what_is_cut_has_the_length_asked_for_and_both_ends(length: int) -> None:
    text = "".join(chr(ord("a") + n % 26) for n in range(39))
    short = cut(text, length)
    assert len(short) == min(length, 39)
    assert (short[0], short[-1]) == (text[0], text[-1])


def test_errors_about_arguments_are_short_whoever_makes_them() -> None:
    error = InvalidArgument("x" * HUGE, "y" * HUGE)
    assert len(str(error)) <= MOST_SHOWN + MOST_TOLD + 2
    assert isinstance(error, TesseraError)
    assert msgspec.json.encode(str(error))
