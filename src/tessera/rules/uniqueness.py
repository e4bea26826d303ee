"""Which key stands for "the same job": what lifecycle uniqueness is enforced by, as an exclusive slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera.model.errors import InvalidArgument


def slot_key(kind: str, payload: bytes, by: Sequence[str], *, across_kinds: bool, while_dead: bool) -> str:
    """The slot of a job that shall be the only live one of its key.

    ``by`` names what the key is made of: ``args.account_id``, deeper parts of an argument by further dots, or
    nothing for all arguments. ``while_dead``: a dead job keeps its key until it is redriven, deleted or its
    retention ends. Raises InvalidArgument if the payload has no such part.
    """
    arguments: Mapping[str, Any] = msgspec.json.decode(payload)
    values = [value_at(arguments, path, "unique") for path in by] if by else arguments
    from hashlib import sha256  # loads OpenSSL

    digest = sha256(msgspec.json.encode(values, order="sorted")).hexdigest()[:32]
    return f"{'ud' if while_dead else 'u'}:{'*' if across_kinds else kind}:{digest}"


def value_at(arguments: Mapping[str, Any], path: str, argument: str) -> object:
    """The part of the arguments that a dotted path names; a leading ``args.`` may be left out."""
    value: object = arguments
    for part in path.removeprefix("args.").split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = ", ".join(sorted(arguments)) or "none"
            raise InvalidArgument(argument, f"the arguments have no {path!r} (there are: {known})")
        value = value[part]
    return value
