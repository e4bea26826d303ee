"""A handler's arguments as its payload: ``{"name": value, ...}`` in the order of declaration.

Arguments are bound as Python binds them, cast and checked when the job is built, not when it runs, and become
bytes at once, so that a job shares nothing with its producer. One struct is generated for each handler at
registration; reading two simple arguments then costs about a microsecond.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tessera.model.errors import InvalidArgument, UndecodablePayload
from tessera.model.showing import MOST_SHOWN
from tessera.rules.declaration import Declaration, Parameter, read_declaration
from tessera.rules.jsonform import JsonForm, Misfit, write_plain

_MISSING: Final = re.compile(r"object missing required field `(.*)`")
_UNKNOWN: Final = re.compile(r"object contains unknown field `(.*)`", re.DOTALL)
_STEP: Final = re.compile(r"\.(\w+)(.*)", re.DOTALL)

_plain: Final[JsonForm[object]] = JsonForm(Any)
_members: Final[JsonForm[dict[str, msgspec.Raw]]] = JsonForm(dict[str, msgspec.Raw])


class Signature:
    """What a handler takes and returns, and how both are written as JSON.

    >>> def send_email(to: str, subject: str = "hi", *, ctx: object) -> str: ...
    >>> signature = Signature.of(send_email)
    >>> signature.bind(["ada@example.org"], {})
    b'{"to":"ada@example.org","subject":"hi"}'
    >>> signature.decode(b'{"to":"ada@example.org"}', "the context")
    ((), {'to': 'ada@example.org', 'subject': 'hi', 'ctx': 'the context'})
    """

    __slots__ = (
        "_by_position",
        "_extra",
        "_form",
        "_parameters",
        "_positional_only",
        "_required",
        "_result",
        "context_name",
        "function_name",
    )

    def __init__(self, declared: Declaration) -> None:
        self.function_name = declared.function_name
        self.context_name = declared.context_name
        """The parameter that receives the context; None if the handler asks for none."""
        self._parameters = declared.parameters
        self._positional_only = declared.positional_only
        self._by_position = tuple(name for name, each in declared.parameters.items() if each.by_position)
        self._required = tuple(name for name, each in declared.parameters.items() if each.default is None)
        self._extra = declared.extra
        self._result = declared.result
        self._form: JsonForm[msgspec.Struct] = JsonForm(_struct_of(declared))

    @classmethod
    def of(
        cls,
        function: Callable[..., object],
        *,
        is_context: Callable[[object], bool] = lambda annotation: False,
    ) -> Signature:
        """Read a handler's parameters and annotations.

        The context is the parameter named ``ctx``, or the one whose annotation ``is_context`` accepts. A
        parameter without annotation takes plain JSON; one with the default None takes None too. Raises
        ``InvalidArgument``, naming the parameter, for ``*args``, an annotation without a JSON form, and a
        default that does not fit.
        """
        return cls(read_declaration(function, is_context))

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments a producer can give, in the order of declaration, without the context."""
        return tuple(self._parameters)

    def bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
        """Bind arguments as a call would, fill in defaults, cast and check each, and write the payload.

        An int is cast to a float, a tuple or set to a list, an ISO text to a datetime, a dict to a dataclass
        and the like; text never to a number or to bytes. Integers may have any size. Raises
        ``InvalidArgument`` naming the argument, also for what would reach the handler changed: NaN, an
        unannotated datetime.
        """
        given, extra = self._assign(args, kwargs)
        try:
            payload = self._form.write_exactly(given)
        except Misfit as misfit:
            raise self._blame(misfit, given) from misfit
        return _joined(payload, {name: self._write_extra(name, value) for name, value in extra.items()})

    def check(self, payload: bytes) -> bytes:
        """A payload from a door that speaks JSON, checked and with its defaults filled in.

        Values are in their JSON form: bytes as base64. Raises ``InvalidArgument`` naming the argument.
        """
        try:
            arguments, extra = self._read(payload)
        except Misfit as misfit:
            raise InvalidArgument(misfit.where or "arguments", misfit.problem) from None
        return _joined(
            self._form.write(arguments),
            {name: self._write_extra(name, value) for name, value in extra.items()},
        )

    def decode(self, payload: bytes, context: object = None) -> tuple[tuple[object, ...], dict[str, object]]:
        """The positional and the keyword arguments of the call, with the context if the handler takes it.

        Raises ``UndecodablePayload``, which names the argument and never quotes its value.
        """
        try:
            arguments, extra = self._read(payload)
        except Misfit as misfit:
            raise UndecodablePayload(str(misfit)) from None
        values: dict[str, object] = msgspec.structs.asdict(arguments)
        if self.context_name is not None:
            values[self.context_name] = context
        positional = tuple([values.pop(name) for name in self._positional_only])
        values.update(extra)
        return positional, values

    def encode_result(self, value: object) -> bytes:
        """Write what the handler returned. Raises ``InvalidArgument`` if the return annotation does not fit.

        Without one, what JSON can show of the value: a tuple as a list, a datetime as text. NaN, which would
        be null, is refused, and so are bytes that no annotation turns back from text.
        """
        try:
            return write_plain(value) if self._result is None else self._result.write_result(value)
        except Misfit as misfit:
            raise InvalidArgument("result", misfit.told) from misfit

    def decode_result(self, data: bytes) -> object:
        """Read a stored result by the return annotation. Raises ``UndecodablePayload``."""
        try:
            return (self._result or _plain).read(data)
        except Misfit as misfit:
            raise UndecodablePayload(f"result: {misfit.told}") from None

    def _assign(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[dict[str, object], dict[str, object]]:
        """Values by parameter, and those that ``**kwargs`` takes."""
        takes = len(self._by_position)
        if len(args) > takes:
            problem = f"{self.function_name} takes {takes} by position, {len(args)} were given"
            raise InvalidArgument("arguments", problem)
        given = dict(zip(self._by_position, args, strict=False))
        extra: dict[str, object] = {}
        for name, value in kwargs.items():
            if name in given:
                raise InvalidArgument(name, "was given twice, by position and by name")
            if name == self.context_name:
                raise InvalidArgument(name, "is given by the worker, not by the producer")
            if name in self._positional_only:
                raise InvalidArgument(name, "can be given by position only")
            if name in self._parameters:
                given[name] = value
            elif self._extra is not None:
                extra[name] = value
            else:
                raise InvalidArgument(name, self._unexpected(name))
        for name in self._required:
            if name not in given:
                raise InvalidArgument(name, self._missing())
        return given, extra

    def _write_extra(self, name: str, value: object) -> bytes:
        assert self._extra is not None  # else _assign() refused the name
        try:
            return self._extra.write_exactly(value)
        except Misfit as misfit:
            raise InvalidArgument(name, misfit.told) from misfit

    def _blame(self, misfit: Misfit, given: Mapping[str, object]) -> InvalidArgument:
        """Name the argument at fault. What has no place of its own is found by trying them one by one."""
        named = self._named(misfit)
        if named.where:
            return InvalidArgument(named.where, named.problem)
        for name, value in given.items():
            try:
                self._parameters[name].form.write_exactly(value)
            except Misfit as own:
                return InvalidArgument(name, own.told)
        return InvalidArgument("arguments", misfit.problem)

    def _read(self, payload: bytes) -> tuple[msgspec.Struct, dict[str, object]]:
        """The arguments of a payload. Raises ``Misfit`` with the argument's name as its place."""
        try:
            arguments = self._form.read(payload)
        except Misfit as misfit:
            raise self._named(misfit) from None
        extra: dict[str, object] = {}
        if self._extra is None:
            return arguments, extra
        for name, data in _members.read(payload).items():
            if name == self.context_name:
                raise Misfit(name, "is given by the worker, not by the producer")
            if name not in self._parameters:
                try:
                    extra[name] = self._extra.read(data)
                except Misfit as misfit:
                    raise Misfit(name, misfit.told) from None
        return arguments, extra

    def _named(self, misfit: Misfit) -> Misfit:
        """The same with the argument's name as its place, and what is wrong in the words of a call."""
        if step := _STEP.fullmatch(misfit.where):
            return Misfit(step[1], Misfit(step[2], misfit.problem).told)
        if field := _MISSING.fullmatch(misfit.problem):
            return Misfit(field[1], self._missing())
        if field := _UNKNOWN.fullmatch(misfit.problem):
            return Misfit(field[1], self._unexpected(field[1]))
        return Misfit("", f"not a JSON object of arguments: {misfit.told}")

    def _missing(self) -> str:
        return f"is missing; {self.function_name} requires it"

    def _unexpected(self, name: str) -> str:
        near = difflib.get_close_matches(name[:MOST_SHOWN], self._parameters, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{self.function_name} takes no such argument{hint}"


def _struct_of(declared: Declaration) -> type[msgspec.Struct]:
    fields = [_field_of(name, each) for name, each in declared.parameters.items()]
    return msgspec.defstruct(
        f"Arguments of {declared.function_name}",
        fields,
        kw_only=True,
        forbid_unknown_fields=declared.extra is None,
    )


def _field_of(name: str, parameter: Parameter) -> tuple[str, Any] | tuple[str, Any, Any]:
    if parameter.default is None:
        return name, parameter.annotation
    return name, parameter.annotation, msgspec.field(default_factory=parameter.fresh_default)


def _joined(payload: bytes, extra: Mapping[str, bytes]) -> bytes:
    """One JSON object of both, without reading either again."""
    if not extra:
        return payload
    more = write_plain({name: msgspec.Raw(value) for name, value in extra.items()})
    return more if payload == b"{}" else b"".join((payload[:-1], b",", more[1:]))
