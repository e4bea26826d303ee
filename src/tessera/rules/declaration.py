"""What a handler's source declares: parameters, annotations and defaults, and which one is the context."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Final, NoReturn

import msgspec

from tessera.model.errors import InvalidArgument
from tessera.rules.jsonform import JsonForm, Misfit

CONTEXT_NAME: Final = "ctx"

_PLAIN_RESULTS: Final = (inspect.Signature.empty, None, type(None), Any, object, NoReturn, typing.Never)


class Parameter(msgspec.Struct, frozen=True):
    """One argument a producer can give."""

    annotation: Any
    form: JsonForm[object]
    by_position: bool
    default: bytes | None
    """The default as JSON; None for a required one."""

    def fresh_default(self) -> object:
        """The default, read anew each time, so that no two runs share a list."""
        assert self.default is not None
        return self.form.read(self.default)


class Declaration(msgspec.Struct, frozen=True):
    """All that is known of a handler's signature."""

    function_name: str
    parameters: dict[str, Parameter]
    """In the order of declaration, without the context."""
    positional_only: tuple[str, ...]
    """The context among them, at its place, if it is one."""
    context_name: str | None
    extra: JsonForm[object] | None
    """What ``**kwargs`` takes; None if there is no such parameter."""
    result: JsonForm[object] | None
    """None for plain JSON."""


def read_declaration(function: Callable[..., object], is_context: Callable[[object], bool]) -> Declaration:
    """Read a function's parameters and annotations, also those written as text.

    The context is the parameter named ``ctx``, or the one whose annotation ``is_context`` accepts. Raises
    ``InvalidArgument`` naming the function and the parameter.
    """
    return _Reader(function, is_context).read()


class _Reader:
    """Reads one function; every refusal names it and the parameter."""

    def __init__(self, function: Callable[..., object], is_context: Callable[[object], bool]) -> None:
        self.function = function
        self.is_context = is_context
        innermost = _innermost(function)
        self.name: str = getattr(innermost, "__name__", type(function).__name__)
        self.module: dict[str, Any] = getattr(innermost, "__globals__", {})

    def read(self) -> Declaration:
        try:
            declared = inspect.signature(self.function)
        except (TypeError, ValueError, NameError) as error:
            raise InvalidArgument(self.name, f"its parameters cannot be read: {error}") from error
        context_name: str | None = None
        extra: JsonForm[object] | None = None
        parameters: dict[str, Parameter] = {}
        for each in declared.parameters.values():
            if each.kind is each.VAR_POSITIONAL:
                raise self.refusal(each.name, "a payload names every argument; take a list instead of *args")
            # By name first: the context's annotation may be imported for type checkers only.
            annotation = Any if each.name == CONTEXT_NAME else self.resolve(each.name, each.annotation)
            if each.kind is each.VAR_KEYWORD:
                extra = self.form(each.name, annotation)
            elif each.name != CONTEXT_NAME and not self.is_context(annotation):
                parameters[each.name] = self.parameter(each, annotation)
            elif context_name is None:
                context_name = each.name
            else:
                raise self.refusal(each.name, f"{context_name} is the context already")
        return Declaration(
            self.name,
            parameters,
            tuple(each.name for each in declared.parameters.values() if each.kind is each.POSITIONAL_ONLY),
            context_name,
            extra,
            self.result(declared.return_annotation),
        )

    def parameter(self, each: inspect.Parameter, annotation: Any) -> Parameter:  # noqa: ANN401  from the source
        if each.name.startswith("__"):
            raise self.refusal(
                each.name, "a name that begins with two underscores cannot be stored; rename it"
            )
        if each.default is None:
            # ``to: str = None`` says what it means.
            annotation = annotation | None
        form = self.form(each.name, annotation)
        default: bytes | None = None
        if each.default is not each.empty:
            try:
                default = form.write_exactly(each.default)
            except Misfit as misfit:
                raise self.refusal(each.name, f"its default does not fit: {misfit.told}") from misfit
        return Parameter(annotation, form, each.kind is not each.KEYWORD_ONLY, default)

    def result(self, annotation: object) -> JsonForm[object] | None:
        resolved = self.resolve("return", annotation)
        return None if resolved in _PLAIN_RESULTS else self.form("return", resolved)

    def form(self, name: str, annotation: Any) -> JsonForm[object]:  # noqa: ANN401  from the source
        try:
            return JsonForm(annotation)
        except (TypeError, ValueError, NameError) as error:
            raise self.refusal(name, str(error)) from error

    def resolve(self, name: str, annotation: object) -> Any:  # noqa: ANN401  from the source
        if annotation is inspect.Signature.empty:
            return Any
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            return typing.get_type_hints(holder, globalns=self.module, include_extras=True)[name]
        except Exception as error:
            # An annotation written as text is an expression, and may raise anything.
            raise self.refusal(
                name, f"its annotation cannot be resolved ({error}); name a type of the handler's module"
            ) from error

    def refusal(self, parameter: str, problem: str) -> InvalidArgument:
        return InvalidArgument(f"{self.name}({parameter})", problem)


def _innermost(function: Any) -> Any:  # noqa: ANN401  functions, methods, partials and callable objects alike
    """The plain function whose module an annotation's text refers to."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif not hasattr(function, "__globals__") and hasattr(type(function).__call__, "__globals__"):
            function = type(function).__call__
        else:
            return function
