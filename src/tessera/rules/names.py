"""Which names a caller may give: one rule and one error text each, whichever door the name comes through.

A name ends up in keys, file names, URLs, log lines and shells, so each sort of name allows only what is safe
where it goes. Every check hands back a good name, so that a caller can write ``x = validate_x(x)``, and
raises ``InvalidArgument`` for any other value, of whatever type. What is handed back is a plain ``str``, also
for a member of an enumeration of texts, for no encoder takes those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tessera.model.errors import InvalidArgument

MAX_TAGS: Final = 32
MAX_COUNTER_VALUE: Final = 200
"""Characters of the value that a counter is kept for."""
MAX_WORDS: Final = 4_000
"""Characters of a reason, a note, or the name of who acted."""

_KIND: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-\[\]<>/.:+]{0,127}")
_QUEUE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_TAG: Final = re.compile(r"[!-+\--~]{1,64}")
_GIVEN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}")
# No "/" and no ":": a counter's key is ``name`` or ``name/value``; ``kind:`` and ``id:`` are keys of our own.
_COUNTER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
# All but the control characters of both blocks and lone surrogates, which no encoding can store.
_TENANT: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{0,128}")
_RESERVED_SPACE: Final = re.compile(r"~.*", re.DOTALL)

_KIND_RULE: Final = (
    "must be 1 to 128 ASCII characters: a letter, digit or _ first, then also any of -[]<>/.:+"
)
_QUEUE_RULE: Final = "must be 1 to 64 characters: a lower-case letter or digit first, then also any of . _ -"
_TAG_RULE: Final = "each must be 1 to 64 printable ASCII characters without space and comma"
_TENANT_RULE: Final = "must be at most 128 characters without control characters"
_GIVEN_ID_RULE: Final = "must be 1 to 128 ASCII characters: a letter or digit first, then also any of . _ ~ -"
_COUNTER_RULE: Final = (
    "a name is 1 to 64 ASCII characters: a letter, digit or _ first, then also any of . _ -"
)


def validate_kind(name: str) -> str:
    """Refuse a kind that is not 1 to 128 of the allowed ASCII characters.

    >>> validate_kind("billing.Invoice/v2")
    'billing.Invoice/v2'
    """
    if not _matches(_KIND, name):
        raise InvalidArgument("kind", _KIND_RULE)
    return str.__str__(name)


def validate_queue(name: str) -> str:
    """Refuse a queue name that is not 1 to 64 lower-case characters.

    >>> validate_queue("mail.high")
    'mail.high'
    """
    if not _matches(_QUEUE, name):
        raise InvalidArgument("queue", _QUEUE_RULE)
    return str.__str__(name)


def validate_tag(tag: str) -> str:
    """Refuse a tag that is not 1 to 64 printable ASCII characters without space and comma."""
    if not _matches(_TAG, tag):
        raise InvalidArgument("tags", _TAG_RULE)
    return str.__str__(tag)


def validate_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Check each tag, drop repeats, keep the order; at most 32 different tags a job.

    >>> validate_tags(["eu", "vip", "eu"])
    ('eu', 'vip')
    """
    if isinstance(tags, str):
        raise InvalidArgument("tags", "must be a list of tags, not one text")
    unique = tuple(dict.fromkeys(validate_tag(tag) for tag in tags))
    if len(unique) > MAX_TAGS:
        raise InvalidArgument("tags", f"{len(unique)} different tags are over the limit of {MAX_TAGS} a job")
    return unique


def validate_tenant(name: str) -> str:
    """Refuse a tenant of over 128 characters or with control characters; '' stands for none."""
    if not _matches(_TENANT, name):
        raise InvalidArgument("tenant", _TENANT_RULE)
    return str.__str__(name)


def validate_given_id(text: str) -> str:
    """Refuse a caller's id that is not 1 to 128 URL-safe characters.

    >>> validate_given_id("order-17")
    'order-17'
    """
    if not _matches(_GIVEN_ID, text):
        raise InvalidArgument("id", _GIVEN_ID_RULE)
    return str.__str__(text)


def validate_counter_name(name: str, *, option: str = "counter") -> str:
    """Refuse a counter name that is not 1 to 64 of the allowed ASCII characters.

    ``option`` is the name the caller used: ``ceilings`` or ``rates``.
    """
    if not _matches(_COUNTER, name):
        raise InvalidArgument(option, _COUNTER_RULE)
    return str.__str__(name)


def validate_space(name: str) -> str:
    """Refuse a space of records that is not named like a queue; those that begin with ~ are Tessera's own."""
    if _matches(_RESERVED_SPACE, name):
        raise InvalidArgument("space", "names that begin with ~ are reserved for Tessera's own records")
    if not _matches(_QUEUE, name):
        raise InvalidArgument("space", _QUEUE_RULE)
    return str.__str__(name)


def validate_words(option: str, text: object, limit: int = MAX_WORDS) -> str:
    """Refuse what is no text, is over the limit in characters, or holds what not every store can hold.

    >>> validate_words("reason", "disk full")
    'disk full'
    """
    if not isinstance(text, str):
        raise InvalidArgument(option, f"is of type {type(text).__name__}; give a text")
    if len(text) > limit:
        raise InvalidArgument(option, f"has {len(text)} characters; at most {limit} are kept")
    return refuse_nul(option, str.__str__(text))


def refuse_nul(option: str, text: str) -> str:
    """Refuse text with a NUL or a lone surrogate, which not every store can hold; hand back any other.

    >>> refuse_nul("reason", "disk full")
    'disk full'
    """
    if "\0" in text:
        raise InvalidArgument(option, "must not contain the NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(option, "must not contain a lone surrogate; it is not valid text") from None
    return text


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    # Callers without a type checker, and doors, hand in whatever they have.
    return isinstance(value, str) and pattern.fullmatch(value) is not None
