"""Rules about the public face, by introspection: what is documented, and whether twins agree."""

import inspect
import typing
from collections.abc import Iterator
from types import FunctionType, ModuleType


def public_classes(package: ModuleType) -> list[type]:
    """The classes in ``__all__``, and those of the package that their methods and properties hand out."""
    found: list[type] = []
    todo = [value for name in package.__all__ if inspect.isclass(value := getattr(package, name))]
    while todo:
        cls = todo.pop()
        if cls in found:
            continue
        found.append(cls)
        for _, member in public_members(cls):
            handed_out = returned_class(member)
            if handed_out is not None and handed_out.__module__.partition(".")[0] == package.__name__:
                todo.append(handed_out)
    return sorted(found, key=lambda cls: cls.__qualname__)


def public_members(cls: type) -> Iterator[tuple[str, object]]:
    """Functions, properties and the like that the class itself or a base of the same package defines."""
    top = cls.__module__.partition(".")[0]
    seen: set[str] = set()
    for owner in cls.__mro__:
        if owner.__module__.partition(".")[0] != top:
            continue
        for name, value in vars(owner).items():
            if not name.startswith("_") and name not in seen and function_of(value) is not None:
                seen.add(name)
                yield name, value


def function_of(member: object) -> FunctionType | None:
    """The function behind a method, a class or static method, or a property; None for a plain value."""
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    elif isinstance(member, property):
        member = member.fget
    elif callable(wrapped := getattr(member, "func", None)):  # cached_property
        member = wrapped
    member = inspect.unwrap(member) if callable(member) else member
    return member if isinstance(member, FunctionType) else None


def returned_class(member: object) -> type | None:
    """The class that a member is annotated to return, if it is one plain class whose name can be resolved."""
    function = function_of(member)
    if function is None:
        return None
    try:
        answer = typing.get_type_hints(function).get("return")
    except NameError:  # named under TYPE_CHECKING only
        return None
    answer = typing.get_origin(answer) or answer
    return answer if inspect.isclass(answer) else None


# ------------------------------------------------------------------ docstrings


def undocumented(package: ModuleType) -> list[str]:
    """Public names without a docstring of their own: classes, functions, and members of public classes."""
    missing = []
    for name in package.__all__:
        value = getattr(package, name)
        if (inspect.isclass(value) or inspect.isroutine(value)) and not has_own_docstring(value):
            missing.append(name)
    for cls in public_classes(package):
        for name, member in public_members(cls):
            if not inspect.getdoc(member) and not inherits_docstring(cls, name):
                missing.append(f"{cls.__qualname__}.{name}")
    return sorted(missing)


def has_own_docstring(value: object) -> bool:
    """Whether somebody wrote one. A dataclass without one gets its signature, which says nothing."""
    text = value.__doc__ or ""
    return bool(text.strip()) and not text.startswith(f"{getattr(value, '__name__', '')}(")


def inherits_docstring(cls: type, name: str) -> bool:
    """Whether a base, which may be a protocol, says it already."""
    return any(inspect.getdoc(getattr(base, name, None)) for base in cls.__mro__[1:] if hasattr(base, name))


# ------------------------------------------------------------------ twins


def twins(cls: type) -> Iterator[tuple[str, FunctionType, FunctionType]]:
    """Pairs of a blocking method ``x`` and a method ``ax`` that is awaited, by the blocking one's name."""
    members = dict(public_members(cls))
    for name, member in members.items():
        other = members.get(f"a{name}")
        blocking, awaited = function_of(member), function_of(other)
        if blocking is not None and awaited is not None and is_awaited(awaited):
            yield name, blocking, awaited


def is_awaited(function: FunctionType) -> bool:
    """Whether a call needs ``await``, ``async for`` or ``async with``: by its form, or by its annotation."""
    answer = str(inspect.signature(function).return_annotation)
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
        or any(word in answer for word in ("Async", "Awaitable", "Coroutine"))
    )


def twin_differences(cls: type) -> list[str]:
    """Where the parameters of twins differ: name, order, kind, default or annotation."""
    differences = []
    for name, blocking, awaited in twins(cls):
        ours, theirs = (list(inspect.signature(one).parameters.values()) for one in (blocking, awaited))
        if ours != theirs:
            plain, prefixed = (", ".join(map(str, parameters)) for parameters in (ours, theirs))
            differences.append(f"{cls.__qualname__}.{name}({plain}) but a{name}({prefixed})")
    return differences
