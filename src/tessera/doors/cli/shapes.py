"""What options take, from text to values. What a value may be is decided by those who are handed it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import click

from tessera.config import read_span
from tessera.model.states import State


class Shape(click.ParamType[Any]):
    """An option's type that is one function; ValueError is a wrong usage."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401  as click has it
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def read_instant(text: str) -> datetime:
    """An instant with its time zone."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write it as in 2030-01-31T09:00:00Z") from None


def read_span_or_instant(text: str) -> float | datetime:
    """A span from now, or an instant."""
    try:
        return read_span(text)
    except ValueError:
        return read_instant(text)


def read_tags(text: str) -> Sequence[str]:
    """Names between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def listed(groups: Iterable[Sequence[str]]) -> list[str]:
    """An option that may be repeated and holds lists: one list."""
    return [one for group in groups for one in group]


SPAN = Shape("SPAN", read_span)
INSTANT = Shape("TIME", read_instant)
SPAN_OR_INSTANT = Shape("SPAN or TIME", read_span_or_instant)
TAGS = Shape("TAG,...", read_tags)
STATE = click.Choice([str(state) for state in State])
