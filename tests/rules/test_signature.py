"""Handlers' signatures: binding, casting, refusing, and the way back."""

from __future__ import annotations

import datetime as dt
import functools
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType, NoReturn, TypedDict

import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.model.errors import InvalidArgument, UndecodablePayload
from tessera.rules.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Hashable as OnlyForTypeCheckers


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Word(StrEnum):
    YES = "yes"


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass(eq=False)
class ByIdentity:
    x: int
    more: list[int] = field(default_factory=list)


@dataclass
class Picky:
    x: int

    def __post_init__(self) -> None:
        if self.x == 13:
            raise LookupError(f"no place for {self.x}")
        if self.x == 14:
            raise MemoryError


@dataclass
class WithSet:
    members: set[int]


class Tree(msgspec.Struct):
    value: int
    left: Tree | None = None


class Pair(NamedTuple):
    a: int
    b: str = "b"


class Settings(TypedDict):
    name: str
    size: int


class Person(pydantic.BaseModel):
    name: str
    born: dt.date = dt.date(1815, 12, 10)
    tags: set[str] = set()


class Aliased(pydantic.BaseModel):
    from_: str = pydantic.Field(alias="from")

    @pydantic.computed_field
    def shout(self) -> str:
        return self.from_.upper()


class WithSecret(pydantic.BaseModel):
    word: pydantic.SecretStr


class Checked(pydantic.BaseModel):
    x: int

    @pydantic.model_validator(mode="after")
    def odd(self) -> Checked:
        if self.x % 2 == 0:
            raise ValueError(f"{self.x} is even")
        return self


@pydantic.dataclasses.dataclass
class PydanticDataclass:
    x: int


class Duck:
    """Has a model's methods and is none."""

    def model_dump_json(self, **options: bool) -> str:
        return '"quack"'

    @classmethod
    def model_validate_json(cls, data: bytes) -> Duck:
        raise ValueError("not a duck")

    model_validate = model_validate_json


class Context:
    pass


UserId = NewType("UserId", int)
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]

THE_CONTEXT = Context()
NOT_CHECKED: Any = Point
NAIVE = dt.datetime.fromisoformat("2026-01-01T00:00:00")


def signature_for(annotation: object) -> Signature:
    def handler(x): ...

    handler.__annotations__["x"] = annotation
    return Signature.of(handler)


def round_trip(annotation: object, value: object) -> object:
    signature = signature_for(annotation)
    args, kwargs = signature.decode(signature.bind((), {"x": value}))
    assert args == ()
    return kwargs["x"]


def refusal_of(annotation: object, value: object) -> str:
    with pytest.raises(InvalidArgument) as refusal:
        signature_for(annotation).bind((value,), {})
    assert refusal.value.argument == "x"
    return refusal.value.problem


def undecodable(annotation: object, payload: bytes) -> str:
    with pytest.raises(UndecodablePayload) as refusal:
        signature_for(annotation).decode(payload)
    # Neither the text nor a traceback in a log repeats what was stored.
    assert refusal.value.__suppress_context__
    return refusal.value.problem


# ------------------------------------------------------------------ values keep their types

text = st.text(st.characters(codec="utf-8"))
moments = st.datetimes(timezones=st.just(dt.UTC))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=8,
)
people = st.builds(Person, name=text, born=st.dates(), tags=st.sets(text))

POOL: list[tuple[object, st.SearchStrategy[Any]]] = [
    (Any, plain),
    (object, plain),
    (dict[str, object], st.dictionaries(text, plain)),
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bool, st.booleans()),
    (str, text),
    (bytes, st.binary()),
    (bytearray, st.binary().map(bytearray)),
    (None, st.none()),
    (int | None, st.none() | st.integers()),
    (int | str | None, st.none() | st.integers() | text),
    (list[int], st.lists(st.integers())),
    (tuple[int, str], st.tuples(st.integers(), text)),
    (tuple[bytes, ...], st.lists(st.binary()).map(tuple)),
    (set[int], st.sets(st.integers())),
    (frozenset[str], st.frozensets(text)),
    (dict[str, float], st.dictionaries(text, st.floats(allow_nan=False, allow_infinity=False))),
    (dict[int, bytes], st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.binary())),
    (dict[uuid.UUID, list[Point]], st.dictionaries(st.uuids(), st.lists(st.builds(Point, st.integers())))),
    (dt.datetime, st.datetimes() | moments),
    (Annotated[dt.datetime, msgspec.Meta(tz=True)], moments),
    (dt.date, st.dates()),
    (dt.time, st.times()),
    (dt.timedelta, st.timedeltas()),
    (uuid.UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (dict[Word, int], st.dictionaries(st.sampled_from(Word), st.integers())),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (UserId, st.integers()),
    (Percent, st.integers(0, 100)),
    (Point, st.builds(Point, st.integers(), st.integers())),
    (Tree, st.recursive(st.builds(Tree, st.integers()), lambda t: st.builds(Tree, st.integers(), t))),
    (Pair, st.builds(Pair, st.integers(), text)),
    (Settings, st.fixed_dictionaries({"name": text, "size": st.integers()})),
    (Person, people),
    (Person | None, st.none() | people),
    (list[Person], st.lists(people, max_size=3)),
    (dict[str, list[Person]], st.dictionaries(text, st.lists(people, max_size=2), max_size=2)),
]


@pytest.mark.parametrize("annotation,values", POOL)
def test_a_handler_receives_what_was_given(annotation: object, values: st.SearchStrategy[object]) -> None:
    signature = signature_for(annotation)

    @settings(max_examples=30)
    @given(values)
    def holds(value: object) -> None:
        payload = signature.bind((value,), {})
        args, kwargs = signature.decode(payload)
        assert args == ()
        assert kwargs == {"x": value}
        assert type(kwargs["x"]) is type(value)
        # And so he does when the payload came through a door that speaks JSON.
        assert signature.decode(signature.check(payload)) == (args, kwargs)

    holds()


@settings(max_examples=50)
@given(plain)
def test_a_result_makes_the_round_trip(value: object) -> None:
    def plain_result(): ...

    def typed_result() -> dict[str, object]:
        return {}

    assert Signature.of(plain_result).decode_result(Signature.of(plain_result).encode_result(value)) == value
    typed = Signature.of(typed_result)
    assert typed.decode_result(typed.encode_result({"v": value})) == {"v": value}


@pytest.mark.parametrize(
    "annotation,given_,received",
    [
        (float, 3, 3.0),
        (list[int], (1, 2), [1, 2]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (set[int], [1, 2, 2], {1, 2}),
        (bytes, bytearray(b"ab"), b"ab"),
        (dt.date, "2026-11-30", dt.date(2026, 11, 30)),
        (uuid.UUID, str(uuid.UUID(int=7)), uuid.UUID(int=7)),
        (Decimal, "1.50", Decimal("1.50")),
        (Colour, "red", Colour.RED),
        (Point, {"x": 1}, Point(1, 0)),
        (Person, {"name": "Ada", "tags": ["a"]}, Person(name="Ada", tags={"a"})),
        (list[Person], [{"name": "Ada"}], [Person(name="Ada")]),
        (Aliased, {"from": "here"}, Aliased(**{"from": "here"})),
    ],
)
def test_a_cast_that_loses_nothing_is_made(annotation: object, given_: object, received: object) -> None:
    assert round_trip(annotation, given_) == received
    assert type(round_trip(annotation, given_)) is type(received)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**300])
def test_integers_have_any_size(value: int) -> None:
    assert round_trip(int, value) == value
    assert round_trip(Any, value) == value


def test_text_may_hold_nul() -> None:
    assert round_trip(str, "a\0b") == "a\0b"


def test_a_class_that_compares_by_identity_keeps_its_contents() -> None:
    received = round_trip(list[ByIdentity], [ByIdentity(1, [2]), ByIdentity(3)])
    assert isinstance(received, list)
    assert [(each.x, each.more) for each in received] == [(1, [2]), (3, [])]


SET_HOLDERS: list[tuple[object, Callable[[set[int]], object]]] = [
    (set[int], set),
    (frozenset[int], frozenset),
    (dict[str, list[set[int]]], lambda value: {"a": [value]}),
    (WithSet, WithSet),
]


def test_equal_sets_make_equal_payloads() -> None:
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)  # else this test shows nothing
    for annotation, holding in SET_HOLDERS:
        signature = signature_for(annotation)
        payload = signature.bind((holding(one),), {})
        assert payload == signature.bind((holding(other),), {})
        assert payload == signature.check(payload.replace(b"0,8", b"8,0"))


def test_a_dict_keeps_its_order() -> None:
    assert signature_for(dict[str, int]).bind(({"b": 1, "a": 2},), {}) == b'{"x":{"b":1,"a":2}}'


def test_a_job_shares_nothing_with_its_producer() -> None:
    def handler(x: list[int], y): ...

    signature = Signature.of(handler)
    numbers, anything = [1], {"a": [1]}
    payload = signature.bind((numbers, anything), {})
    numbers.append(2)
    anything["a"].append(2)
    assert signature.decode(payload)[1] == {"x": [1], "y": {"a": [1]}}


# ------------------------------------------------------------------ values that do not fit


@pytest.mark.parametrize(
    "annotation,value,problem",
    [
        (int, "3", "expected `int`, got `str`"),
        (int, True, "expected `int`, got `bool`"),
        (int, 3.0, "expected `int`, got `float`"),
        (float, "1", "expected `float`, got `str`"),
        (str, b"ab", "expected `str`, got `bytes`"),
        (str, uuid.UUID(int=1), "expected `str`, got `uuid`"),
        (str, None, "expected `str`, got `null`"),
        (bytes, "YWJj", "expected `bytes`, got `str`"),
        (bytearray, "YWJj", "expected `bytes`, got `str`"),
        (list[str], "ab", "expected `array`, got `str`"),
        (Percent, 101, "expected `int` <= 100"),
        (Annotated[str, msgspec.Meta(max_length=2)], "abc", "length <= 2"),
        (Colour, "pink", "invalid enum value 'pink'"),
        (Literal["a"], "b", "invalid enum value 'b'"),
        (list[dict[str, int]], [{"a": "b"}], "expected `int`, got `str` (at [0][...])"),
        (dict[int, int], {"a": 1}, "expected `int`, got `str` (a key)"),
        (Point, {"y": 1}, "object missing required field `x`"),
        (list[Point], [{"y": 1}], "object missing required field `x` (at [0])"),
        (Point, NOT_CHECKED("a"), "expected `int`, got `str` (at .x)"),
        (Picky, {"x": 13}, "LookupError: no place for 13"),
        (Annotated[dt.datetime, msgspec.Meta(tz=True)], NAIVE, "timezone"),
        (dt.datetime, "yesterday", "invalid RFC3339"),
        # What JSON cannot say.
        (float, math.nan, "NaN and infinity"),
        (float | None, math.inf, "NaN and infinity"),
        (list[Any], [1, [math.nan]], "NaN and infinity"),
        (dict[str, float], {"a": -math.inf}, "NaN and infinity"),
        (Point, NOT_CHECKED(math.nan), "NaN and infinity"),
        (Any, {math.nan}, "NaN and infinity"),
        (str, "\ud800", "lone surrogate"),
        (Any, {"a": ["\ud800"]}, "lone surrogate"),
        (Any, object(), "a object has no JSON form"),
        (Any, 1j, "a complex has no JSON form"),
        (Any, {(1, 2): 3}, "a tuple has no JSON form"),
        # What would reach the handler as something else.
        (Any, (1, 2), "a tuple would reach the handler as a list"),
        (Any, {"a": [(1, 2)]}, "a tuple would reach the handler as a list"),
        (Any, dt.date(2026, 1, 1), "a date would reach the handler as a str"),
        (Any, {1: "a"}, "keys of a dict that are not text would change"),
        (dict[str, object], {"a": Decimal(1)}, "a Decimal would reach the handler as a str"),
        (Any, Person(name="Ada"), "a Person would reach the handler as a dict"),
        (
            WithSecret,
            WithSecret(word=pydantic.SecretStr("x")),
            "a WithSecret would reach the handler with other contents",
        ),
        # Models.
        (Person, {"name": 7}, "name: Input should be a valid string"),
        (list[Person], [{}], "name: Field required (at [0])"),
        (Checked, {"x": 2}, "Checked: Value error, 2 is even"),
        (Duck, Duck(), "the type's own check refused it (ValueError)"),
        (Duck, 1, "ValueError: not a duck"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_job_is_built(annotation, value: object, problem: str) -> None:
    assert problem in refusal_of(annotation, value)


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def test_endless_and_deep_values_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert "contains itself" in refusal_of(Any, endless)
    assert "nested too deeply" in refusal_of(Any, deep(100_000))


def test_a_comparison_that_recurses_too_deeply_is_a_refusal() -> None:
    class Bottomless(dict):
        def __eq__(self, other: object) -> bool:
            raise RecursionError

    assert refusal_of(Any, [Bottomless()]) == "is nested too deeply"


def test_want_of_memory_is_not_blamed_on_the_argument() -> None:
    with pytest.raises(MemoryError):
        signature_for(Picky).bind(({"x": 14},), {})
    with pytest.raises(MemoryError):
        signature_for(Picky).decode(b'{"x":{"x":14}}')


def test_the_argument_at_fault_is_found_among_many() -> None:
    def handler(a, b: str, c): ...

    signature = Signature.of(handler)
    for wrong, name in [((1, "\ud800", 2), "b"), ((1, "b", (1,)), "c"), ((math.nan, "b", 1), "a")]:
        with pytest.raises(InvalidArgument) as refusal:
            signature.bind(wrong, {})
        assert refusal.value.argument == name


def test_a_value_that_fits_only_when_tried_alone_is_refused_all_the_same() -> None:
    class Fickle(dict):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Fickle.compared += 1
            return Fickle.compared > 2

    with pytest.raises(InvalidArgument) as refusal:
        signature_for(Any).bind((Fickle(),), {})
    assert refusal.value.argument == "arguments"


# ------------------------------------------------------------------ binding


def mail(to: str, /, subject: str = "hi", *copies_not_taken: str) -> None: ...


def send(to: str, subject: str = "hi", *, priority: int = 0, ctx: Context) -> None: ...


def open_ended(a: int, *, b: str = "b", **rest: float) -> None: ...


@pytest.mark.parametrize(
    "args,kwargs,payload",
    [
        (("a",), {}, b'{"to":"a","subject":"hi","priority":0}'),
        (("a", "b"), {"priority": 2}, b'{"to":"a","subject":"b","priority":2}'),
        ((), {"priority": 1, "to": "a"}, b'{"to":"a","subject":"hi","priority":1}'),
    ],
)
def test_arguments_are_written_in_the_order_of_declaration(args, kwargs, payload: bytes) -> None:
    assert Signature.of(send).bind(args, kwargs) == payload


@pytest.mark.parametrize(
    "args,kwargs,message",
    [
        ((), {}, "to: is missing; send requires it"),
        (("a", "b", 3), {}, "arguments: send takes 2 by position, 3 were given"),
        (("a",), {"to": "b"}, "to: was given twice, by position and by name"),
        (("a",), {"subjet": "b"}, "subjet: send takes no such argument; did you mean subject?"),
        (("a",), {"zzz": 1}, "zzz: send takes no such argument"),
        (("a",), {"ctx": 1}, "ctx: is given by the worker, not by the producer"),
    ],
)
def test_a_call_that_python_would_refuse_is_refused(args, kwargs, message: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        Signature.of(send).bind(args, kwargs)
    assert str(refusal.value) == message


def test_positional_only_arguments_go_by_position() -> None:
    def handler(a: int, ctx, b: int = 2, /, c: int = 3): ...

    signature = Signature.of(handler)
    assert signature.names == ("a", "b", "c")
    payload = signature.bind((1, 5), {"c": 7})
    assert signature.decode(payload, THE_CONTEXT) == ((1, THE_CONTEXT, 5), {"c": 7})
    with pytest.raises(InvalidArgument, match=r"a: can be given by position only"):
        signature.bind((), {"a": 1})


def test_further_keywords_are_written_after_the_others() -> None:
    signature = Signature.of(open_ended)
    payload = signature.bind((1,), {"c": 2, "d": 0.5})
    assert payload == b'{"a":1,"b":"b","c":2.0,"d":0.5}'
    assert signature.decode(payload) == ((), {"a": 1, "b": "b", "c": 2.0, "d": 0.5})
    assert signature.decode(signature.bind((1,), {})) == ((), {"a": 1, "b": "b"})
    assert signature.check(b'{"c":2,"a":1}') == b'{"a":1,"b":"b","c":2.0}'


def test_further_keywords_alone_make_a_payload() -> None:
    def handler(**rest): ...

    signature = Signature.of(handler)
    assert signature.bind((), {}) == b"{}"
    assert signature.bind((), {"a": [1]}) == b'{"a":[1]}'
    assert signature.decode(b'{"a":[1]}') == ((), {"a": [1]})


def test_further_keywords_are_checked_by_name() -> None:
    signature = Signature.of(open_ended)
    with pytest.raises(InvalidArgument, match=r"^c: expected `float`, got `str`$"):
        signature.bind((1,), {"c": "x"})
    with pytest.raises(UndecodablePayload, match=r"^c: expected `float`, got `str`$"):
        signature.decode(b'{"a":1,"c":"x"}')


def test_a_payload_cannot_smuggle_in_a_context() -> None:
    def handler(ctx, **rest): ...

    for take in (Signature.of(handler).decode, Signature.of(send).decode):
        with pytest.raises(UndecodablePayload, match=r"^ctx: "):
            take(b'{"to":"a","ctx":1}')


# ------------------------------------------------------------------ the context


def test_the_context_is_found_by_its_name() -> None:
    def handler(ctx: OnlyForTypeCheckers, to: str): ...

    signature = Signature.of(handler)
    assert (signature.context_name, signature.names) == ("ctx", ("to",))
    assert signature.decode(signature.bind(("a",), {}), THE_CONTEXT) == ((), {"to": "a", "ctx": THE_CONTEXT})


def test_the_context_is_found_by_its_annotation() -> None:
    def handler(to: str, *, job: Context): ...

    signature = Signature.of(handler, is_context=lambda annotation: annotation is Context)
    assert (signature.context_name, signature.names) == ("job", ("to",))
    assert signature.decode(b'{"to":"a"}', THE_CONTEXT)[1]["job"] is THE_CONTEXT


def test_a_handler_without_context_is_given_none() -> None:
    assert Signature.of(mail_without_copies).context_name is None
    assert Signature.of(mail_without_copies).decode(b'{"to":"a"}', THE_CONTEXT) == ((), {"to": "a"})


def mail_without_copies(to: str) -> None: ...


def test_two_contexts_are_refused() -> None:
    def handler(ctx, job: Context): ...

    with pytest.raises(InvalidArgument, match=r"handler\(job\): ctx is the context already"):
        Signature.of(handler, is_context=lambda annotation: annotation is Context)


# ------------------------------------------------------------------ stored payloads


def test_a_default_is_filled_in_when_a_payload_lacks_it_and_is_never_shared() -> None:
    def handler(to: str, copies: list[str] = ["me"]): ...  # noqa: B006  the mistake that must not matter

    signature = Signature.of(handler)
    first: dict[str, Any] = signature.decode(b'{"to":"a"}')[1]
    assert first == {"to": "a", "copies": ["me"]}
    first["copies"].append("you")
    assert signature.decode(b'{"to":"a"}')[1] == {"to": "a", "copies": ["me"]}


@pytest.mark.parametrize(
    "annotation,payload,problem",
    [
        (int, b"{}", "x: is missing; handler requires it"),
        (int, b'{"x":1,"xx":2}', "xx: handler takes no such argument; did you mean x?"),
        (int, b'{"x":"secret"}', "x: expected `int`, got `str`"),
        (list[int], b'{"x":[1,"secret"]}', "x: expected `int`, got `str` (at [1])"),
        (dict[int, int], b'{"x":{"secret":1}}', "x: expected `int`, got `str` (a key)"),
        (Colour, b'{"x":"secret"}', "x: invalid enum value"),
        (Percent, b'{"x":111}', "x: expected `int` <= 100"),
        (Picky, b'{"x":{"x":13}}', "the type's own check refused it (LookupError)"),
        (Person, b'{"x":{"name":{"secret":"secret"}}}', "x: string_type at name"),
        (list[Checked], b'{"x":[{"x":1},{"x":44}]}', "x: value_error at Checked (at [1])"),
        (Duck, b'{"x":"secret"}', "x: the type's own check refused it (ValueError)"),
        (int, b"[]", "not a JSON object of arguments: expected `object`, got `array`"),
        (int, b'{"x":', "not a JSON object of arguments: input data was truncated"),
        (int, b"nonsense", "not a JSON object of arguments: JSON is malformed"),
        (Any, b'{"x":' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_payload_that_does_not_fit_is_undecodable(annotation, payload: bytes, problem: str) -> None:
    told = undecodable(annotation, payload)
    assert problem in told
    assert "secret" not in told
    assert "13" not in told
    assert "44" not in told


def test_a_payload_through_a_json_door_is_checked_and_completed() -> None:
    def handler(to: str, data: bytes = b"abc", at: dt.date | None = None): ...

    signature = Signature.of(handler)
    assert (
        signature.check(b' {"at": "2026-01-02", "to": "a"}') == b'{"to":"a","data":"YWJj","at":"2026-01-02"}'
    )
    with pytest.raises(InvalidArgument) as refusal:
        signature.check(b'{"to":1}')
    assert (refusal.value.argument, refusal.value.problem) == ("to", "expected `str`, got `int`")
    with pytest.raises(InvalidArgument) as refusal:
        signature.check(b"[]")
    assert refusal.value.argument == "arguments"


# ------------------------------------------------------------------ results


def result_signature(annotation: object) -> Signature:
    def handler(): ...

    handler.__annotations__["return"] = annotation
    return Signature.of(handler)


@pytest.mark.parametrize("annotation", [None, Any, object, NoReturn, type(None)])
def test_a_result_without_a_type_is_plain_json(annotation: object) -> None:
    signature = result_signature(annotation)
    assert signature.encode_result((1, dt.date(2026, 1, 1), None)) == b'[1,"2026-01-01",null]'
    assert signature.encode_result(Person(name="Ada")).startswith(b'{"name":"Ada"')
    assert signature.decode_result(b'{"a":[1]}') == {"a": [1]}


def test_a_result_keeps_its_annotated_type() -> None:
    signature = result_signature(tuple[Person, dt.timedelta])
    value = (Person(name="Ada"), dt.timedelta(seconds=3))
    assert signature.decode_result(signature.encode_result(value)) == value


@pytest.mark.parametrize(
    "annotation,value,problem",
    [
        (str, None, "expected `str`, got `null`"),
        (list[int], [1, "a"], "expected `int`, got `str` (at [1])"),
        (float, math.nan, "NaN and infinity have no JSON form"),
        (None, object(), "a object has no JSON form"),
    ],
)
def test_a_result_that_does_not_fit_is_refused(annotation, value: object, problem: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        result_signature(annotation).encode_result(value)
    assert (refusal.value.argument, refusal.value.problem) == ("result", problem)


def test_a_stored_result_that_does_not_fit_is_undecodable() -> None:
    with pytest.raises(UndecodablePayload, match=r"^result: expected `int`, got `str` \(at \[0\]\)$"):
        result_signature(list[int]).decode_result(b'["secret"]')
    with pytest.raises(UndecodablePayload, match=r"^result: "):
        result_signature(None).decode_result(b"nonsense")


# ------------------------------------------------------------------ registration


class Service:
    def run(self, to: Colour) -> Colour: ...  # type: ignore[empty-body]

    def __call__(self, to: Colour) -> None: ...


def wrapped(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "function,name",
    [
        (Service().run, "run"),
        (Service(), "__call__"),
        (wrapped(Service().run), "run"),
        (functools.partial(Service.run, Service()), "run"),
    ],
)
def test_anything_callable_can_be_a_handler(function, name: str) -> None:
    signature = Signature.of(function)
    assert signature.function_name == name
    assert signature.decode(signature.bind((Colour.RED,), {})) == ((), {"to": Colour.RED})


def test_the_default_none_takes_none_too() -> None:
    def handler(to: str = None): ...  # type: ignore[assignment]  # noqa: RUF013  old code says so

    signature = Signature.of(handler)
    assert signature.bind((), {}) == signature.bind((None,), {}) == b'{"to":null}'
    assert signature.bind(("a",), {}) == b'{"to":"a"}'


def unresolvable(to: OnlyForTypeCheckers) -> None: ...


def unresolvable_result() -> OnlyForTypeCheckers: ...


def bad_default(to: int = "3") -> None: ...  # type: ignore[assignment]


def constrained(to: Annotated[list[Annotated[int, pydantic.Field(gt=0)]], "note"]) -> None: ...


def hidden(__to: str) -> None: ...


def two_texts(to: str | dt.date) -> None: ...


def a_file(to: list[Callable[[], None]]) -> None: ...


def pydantic_dataclass(to: dict[str, PydanticDataclass]) -> None: ...


def stream() -> Context: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    "function,argument,problem",
    [
        (mail, "mail(copies_not_taken)", "take a list instead of *args"),
        (unresolvable, "unresolvable(to)", "name 'OnlyForTypeCheckers' is not defined"),
        (unresolvable_result, "unresolvable_result(return)", "cannot be resolved"),
        (bad_default, "bad_default(to)", "its default does not fit: expected `int`, got `str`"),
        (constrained, "constrained(to)", "use msgspec.Meta or a model"),
        (hidden, "hidden(__to)", "two underscores"),
        (two_texts, "two_texts(to)", "more than one str-like type"),
        (a_file, "a_file(to)", "Callable has no JSON form"),
        (pydantic_dataclass, "pydantic_dataclass(to)", "use a BaseModel"),
        (stream, "stream(return)", "Context has no JSON form"),
        (5, "int", "its parameters cannot be read"),
    ],
)
def test_a_handler_that_could_not_be_called_is_refused_at_registration(function, argument, problem) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        Signature.of(function)
    assert refusal.value.argument == argument
    assert problem in refusal.value.problem
