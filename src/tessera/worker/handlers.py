"""The function for one kind, and how it is run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from tessera.rules.payload import Upcasts
from tessera.rules.signature import Signature
from tessera.worker.context import Context

Isolation: TypeAlias = Literal["auto", "process"]
Runs: TypeAlias = Literal["loop", "thread", "process"]

_NO_UPCASTS: Final[Upcasts] = {}


@dataclass(frozen=True, kw_only=True)
class Handler:
    """One kind's function. ``auto``: an ``async def`` runs in the event loop, a ``def`` in a thread;
    ``process``: in a child process."""

    kind: str
    function: Callable[..., object]
    signature: Signature
    isolation: Isolation = "auto"
    reference: str = ""
    """``module:qualified.name``: where a child process finds the function, or an object that holds it as
    ``function``."""
    schema_version: int = 1
    upcasts: Upcasts = field(default_factory=lambda: _NO_UPCASTS)
    runs: Runs = field(init=False)

    def __post_init__(self) -> None:
        runs: Runs = "process" if self.isolation == "process" else "thread"
        if self.isolation == "auto" and is_async(self.function):
            runs = "loop"
        object.__setattr__(self, "runs", runs)


Handlers: TypeAlias = Mapping[str, Handler]
"""Kind -> handler."""


def is_async(function: Callable[..., object]) -> bool:
    """Whether a call gives a coroutine: an ``async def``, also behind ``functools.partial``, or an object
    whose call is one."""
    call = getattr(type(function), "__call__", None)  # noqa: B004  what it is like is the question, not whether it is
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def signature_of(function: Callable[..., object]) -> Signature:
    """A handler's parameters; the context is the one named ``ctx`` or annotated ``Context``. Raises
    InvalidArgument."""
    return Signature.of(function, is_context=lambda annotation: annotation is Context)
