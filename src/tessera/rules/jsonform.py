"""The JSON form of one annotated type: cast what a caller gave, write it, read it back.

What a handler receives must equal what the caller gave. JSON breaks that quietly: NaN becomes null, a tuple
without an annotation a list, a pydantic ``SecretStr`` a row of asterisks. So what is written is read back at
once and compared, while the caller is still there to be told; a value that changes is refused.

There are two sorts of error text. What the caller gave may be quoted to the caller. What was stored may not:
those texts go to logs and consoles, so ``read`` describes types and places and never repeats a value.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar, get_args

import msgspec

from tessera.model.showing import told

T = TypeVar("T")

# Text that a caller gives for bytes is a mistake and not base64.
_NOT_FROM_TEXT: Final = (bytes, bytearray, memoryview)

# msgspec ends its texts with the place: " - at `$.to[0]`", or "`key` in" it.
_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<where>.*)`)?", re.DOTALL)


_NON_FINITE: Final = "NaN and infinity have no JSON form"
_BYTES: Final = "bytes would come back as base64 text; annotate them as bytes, or give text"


class Misfit(ValueError):
    """A value does not fit a type. ``where`` is a path such as ``.to[0]``, empty for the value itself."""

    def __init__(self, where: str, problem: str) -> None:
        self.where = where
        self.problem = problem
        super().__init__(f"{where}: {problem}" if where else problem)

    @property
    def told(self) -> str:
        """The problem first, then the place: for a reader who is told the argument's name already."""
        return f"{self.problem} (at {self.where})" if self.where else self.problem


class _Model(Protocol):
    """What is used of a pydantic model. A class with the methods is one; pydantic is not imported here."""

    def model_dump_json(self, *, by_alias: bool, round_trip: bool, warnings: bool) -> str: ...

    @classmethod
    def model_validate(cls, obj: object) -> object: ...

    @classmethod
    def model_validate_json(cls, json_data: bytes) -> object: ...


class _ModelRefusal(ValueError):
    """A pydantic model said no. ``unquoted`` is its reason without values."""

    def __init__(self, text: str, unquoted: str) -> None:
        self.unquoted = unquoted
        super().__init__(text)


class JsonForm(Generic[T]):
    """Casts, writes and reads values of one type; built once, used by any thread.

    Raises ``TypeError`` when built for a type that has no JSON form of its own.

    >>> pair = JsonForm(tuple[int, str])
    >>> pair.read(pair.write((1, "a")))
    (1, 'a')
    """

    __slots__ = ("_annotation", "_decode", "_encode")

    def __init__(self, annotation: Any) -> None:  # noqa: ANN401  an annotation is whatever stands in the source
        has_set = any(isinstance(each, _SETS) for each in _types_of(annotation))
        self._annotation = annotation
        self._encode: Final = _encode_sorted if has_set else _encode
        self._decode: Final = msgspec.json.Decoder(annotation, dec_hook=_model_from_json).decode

    def write(self, value: object) -> bytes:
        """Cast a value and write it as JSON that reads back. Raises ``Misfit``, which may quote the value."""
        cast = self._cast(value)
        data = _written(cast, self._encode)
        self._read_back(cast, data)
        return data

    def write_exactly(self, value: object) -> bytes:
        """The same, and what reads back equals the cast value: nothing was lost on the way to JSON."""
        cast = self._cast(value)
        data = _written(cast, self._encode)
        back = self._read_back(cast, data)
        try:
            change = _change(cast, back)
        except RecursionError:
            raise Misfit("", "is nested too deeply") from None
        except MemoryError:
            raise
        except Exception as error:
            # Comparing calls the value's own code.
            raise Misfit("", f"cannot be compared with what was stored of it ({_own(error)})") from error
        if change is not None:
            raise Misfit("", _NON_FINITE if _has_non_finite(cast) else change)
        return data

    def write_result(self, value: object) -> bytes:
        """As ``write``; what comes back may differ (a tuple as a list), but no NaN as null and no bytes as
        text.
        """
        cast = self._cast(value)
        data = _written(cast, self._encode)
        back = self._read_back(cast, data)
        if b"null" in data and _has_non_finite(cast):
            raise Misfit("", _NON_FINITE)
        if _has_bytes_as_text(cast, back):
            raise Misfit("", _BYTES)
        return data

    def read(self, data: bytes | msgspec.Raw) -> T:
        """Read stored JSON. Raises ``Misfit``, which never quotes a value."""
        try:
            value: T = self._decode(data)
        except MemoryError:
            # Says nothing about the payload, and a misfit is final.
            raise
        except Exception as error:  # noqa: BLE001  a type's own checks run in here, and may raise anything
            raise _misfit(error, quote=False) from None
        return value

    def _cast(self, value: object) -> object:
        try:
            return msgspec.convert(
                value, self._annotation, builtin_types=_NOT_FROM_TEXT, dec_hook=_model_from_object
            )
        except MemoryError:
            raise
        except Exception as error:
            raise _misfit(error, quote=True) from error

    def _read_back(self, cast: object, data: bytes) -> T:
        try:
            return self.read(data)
        except Misfit as misfit:
            if _has_non_finite(cast):
                raise Misfit(misfit.where, _NON_FINITE) from None
            raise


def write_plain(value: object) -> bytes:
    """Write a value as JSON as it stands. Raises ``Misfit`` if it, or a part of it, has no JSON form, or one
    that nobody could read back: NaN would be null, bytes would be text.

    >>> write_plain({"lines": 3, "tags": ("a", "b")})
    b'{"lines":3,"tags":["a","b"]}'
    """
    data = _written(value, _encode)
    for part in _all_parts(value):
        if isinstance(part, float) and not math.isfinite(part):
            raise Misfit("", _NON_FINITE)
        if isinstance(part, _NOT_FROM_TEXT):
            raise Misfit("", _BYTES)
    return data


def _written(value: object, encode: Callable[[object], bytes]) -> bytes:
    try:
        return encode(value)
    except UnicodeEncodeError:
        raise Misfit("", "text with a lone surrogate has no JSON form") from None
    except RecursionError:
        raise Misfit("", "is nested too deeply, or contains itself") from None
    except MemoryError:
        raise
    except (TypeError, ValueError) as error:
        raise Misfit("", _lower_first(told(error))) from error
    except Exception as error:
        # The value's own code.
        raise Misfit("", f"has no JSON form ({_own(error)})") from error


def _model_to_json(value: Any) -> msgspec.Raw:  # noqa: ANN401  msgspec hands over whatever it does not know
    if not _is_model(type(value)):
        raise TypeError(f"a {type(value).__name__} has no JSON form")
    model: _Model = value
    # Aliases, because a model reads those by default; warnings off, because the comparison decides.
    return msgspec.Raw(model.model_dump_json(by_alias=True, round_trip=True, warnings=False).encode())


def _model_from_json(cls: Any, value: object) -> object:  # noqa: ANN401  a class, or the bare ``object``
    if cls is object:
        return value
    model: type[_Model] = cls
    # As JSON and not as objects: only then does pydantic read dates, sets and base64 in strict models too.
    data = msgspec.json.encode(value)
    return _validated(model, lambda: model.model_validate_json(data))


def _model_from_object(cls: Any, value: object) -> object:  # noqa: ANN401  as above
    if cls is object or isinstance(value, cls):
        return value
    model: type[_Model] = cls
    return _validated(model, lambda: model.model_validate(value))


def _validated(model: type[_Model], validate: Callable[[], object]) -> object:
    try:
        return validate()
    except ValueError as error:
        # pydantic's own text quotes the input, so it is put together anew.
        errors = getattr(error, "errors", None)
        if errors is None:
            raise
        found: list[dict[str, Any]] = errors(include_url=False, include_input=False)
        told = [f"{'.'.join(map(str, each['loc'])) or model.__name__}: {each['msg']}" for each in found]
        unquoted = [f"{each['type']} at {(*each['loc'], model.__name__)[0]}" for each in found]
        raise _ModelRefusal("; ".join(told), "; ".join(unquoted)) from error


_encode: Final = msgspec.json.Encoder(enc_hook=_model_to_json).encode
# Equal sets iterate in different orders in different processes, but equal arguments must give equal payloads:
# a repeated id and a fingerprint are compared by bytes. Dicts are sorted only beside a set in the same type.
_encode_sorted: Final = msgspec.json.Encoder(enc_hook=_model_to_json, order="deterministic").encode
_SETS: Final = (msgspec.inspect.SetType, msgspec.inspect.FrozenSetType)


def _misfit(error: Exception, *, quote: bool) -> Misfit:
    if isinstance(error, RecursionError):
        return Misfit("", "is nested too deeply")
    if not isinstance(error, msgspec.DecodeError):
        return Misfit("", _own_check(error, quote=quote))
    match = _PLACE.fullmatch(told(error))
    assert match is not None  # both parts of the pattern are optional
    what, where = match["what"], match["where"] or ""
    if error.__cause__ is not None:
        return Misfit(where, _own_check(error.__cause__, quote=quote))
    if not quote and what.startswith("Invalid enum value"):
        what = "Invalid enum value"
    return Misfit(where, _lower_first(what) + (" (a key)" if match["key"] else ""))


def _own_check(error: BaseException, *, quote: bool) -> str:
    if isinstance(error, _ModelRefusal):
        return str(error) if quote else error.unquoted
    if quote:
        return _own(error)
    return f"the type's own check refused it ({type(error).__name__})"


def _own(error: BaseException) -> str:
    return f"{type(error).__name__}: {told(error)}"


def _lower_first(text: str) -> str:
    # "JSON is malformed" keeps its capitals.
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _change(given: object, back: object) -> str | None:
    """What became of a value on its way through JSON; None if it stayed the same."""
    if given == back:
        return None
    if type(given) is not type(back):
        return (
            f"a {type(given).__name__} would reach the handler as a {type(back).__name__}; "
            "annotate the parameter with the type it must keep"
        )
    # Classes that compare by identity are equal when their fields are.
    if isinstance(given, dict) and isinstance(back, dict) and given.keys() != back.keys():
        return "keys of a dict that are not text would change; annotate the parameter with the type they have"
    parts, parts_back = list(_parts(given)), list(_parts(back))
    if not parts or len(parts) != len(parts_back):
        return f"a {type(given).__name__} would reach the handler with other contents"
    changes = (_change(part, part_back) for part, part_back in zip(parts, parts_back, strict=True))
    return next((change for change in changes if change is not None), None)


def _has_non_finite(value: object) -> bool:
    return any(isinstance(part, float) and not math.isfinite(part) for part in _all_parts(value))


def _has_bytes_as_text(given: object, back: object) -> bool:
    # By number and not place by place: sets, and dicts beside them, come back in another order. Bytes that a
    # model leaves out of its JSON become no text.
    lost = _count(given, _NOT_FROM_TEXT) - _count(back, _NOT_FROM_TEXT)
    return lost > 0 and _count(back, (str,)) > _count(given, (str,))


def _count(value: object, types: tuple[type, ...]) -> int:
    return sum(isinstance(part, types) for part in _all_parts(value))


def _all_parts(value: object) -> Iterator[object]:
    """The value and all that it holds, keys too, however deep. It must not hold itself."""
    left = [value]
    while left:
        part = left.pop()
        yield part
        if isinstance(part, dict):
            left.extend(part)
        elif _is_model(type(part)):
            left.extend(getattr(part, "__dict__", {}).values())
            left.extend((getattr(part, "__pydantic_extra__", None) or {}).values())
        if not isinstance(part, _LEAVES):
            left.extend(_parts(part))


_LEAVES: Final = (str, int, float, bytes, type(None))


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif isinstance(value, enum.Enum):
        yield value.value
    else:
        yield from (getattr(value, name) for name in _fields_of(type(value)))


def _fields_of(cls: type) -> Iterable[str]:
    """Names of what msgspec writes of a struct, a dataclass or a class made by attrs."""
    fields = getattr(cls, "__struct_fields__", None) or getattr(cls, "__dataclass_fields__", None)
    return fields or [attribute.name for attribute in getattr(cls, "__attrs_attrs__", ())]


def _types_of(annotation: Any) -> list[msgspec.inspect.Type]:  # noqa: ANN401  as in JsonForm
    """The types an annotation is made of. Raises ``TypeError`` if one of them has no JSON form."""
    if _has_pydantic_metadata(annotation):
        raise TypeError("constraints of pydantic are checked inside models only; use msgspec.Meta or a model")
    found = list(_described(msgspec.inspect.type_info(annotation), set()))
    for each in found:
        problem = _unsuitable(each)
        if problem is not None:
            raise TypeError(problem)
    return found


def _has_pydantic_metadata(annotation: Any) -> bool:  # noqa: ANN401  as in JsonForm
    for each in getattr(annotation, "__metadata__", ()):
        if type(each).__module__.partition(".")[0] in ("pydantic", "annotated_types"):
            return True
    return any(_has_pydantic_metadata(each) for each in get_args(annotation))


def _unsuitable(node: msgspec.inspect.Type) -> str | None:
    """Why a described type cannot be read from JSON; None if it can."""
    if isinstance(node, msgspec.inspect.CustomType) and node.cls is not object and not _is_model(node.cls):
        return f"{node.cls.__name__} has no JSON form; use a dataclass, a msgspec.Struct or a pydantic model"
    if isinstance(node, msgspec.inspect.DataclassType) and hasattr(node.cls, "__pydantic_validator__"):
        return f"{node.cls.__name__} is a dataclass of pydantic, whose checks would not run; use a BaseModel"
    return None


def _described(node: object, seen: set[int]) -> Iterator[msgspec.inspect.Type]:
    """A described type and all the types within it, each once, for a type may contain itself."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, msgspec.inspect.Type):
        yield node
    for part in _parts(node):
        if isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field | tuple):
            yield from _described(part, seen)


def _is_model(cls: type) -> bool:
    return hasattr(cls, "model_dump_json") and hasattr(cls, "model_validate_json")
