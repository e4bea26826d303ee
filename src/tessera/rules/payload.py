"""What holds for a payload whatever its handler: limits, fingerprint, and how old forms become new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from tessera.model.errors import TooLarge, UndecodablePayload

PAYLOAD_LIMIT_BYTES: Final = 1024 * 1024
RESULT_LIMIT_BYTES: Final = 256 * 1024
FINGERPRINT_BYTES: Final = 16

Arguments: TypeAlias = dict[str, object]
"""A payload as plain JSON values, before the handler's annotations are applied."""

Upcasts: TypeAlias = Mapping[int, Callable[[Arguments], Arguments]]
"""Schema version -> the function that turns arguments of that version into those of the next."""

_arguments: Final = msgspec.json.Decoder(Arguments)


def check_payload_size(payload: bytes, limit_bytes: int = PAYLOAD_LIMIT_BYTES) -> bytes:
    """Raise ``TooLarge`` for a payload over the limit; hand back any other."""
    return _within("payload", payload, limit_bytes)


def check_result_size(result: bytes, limit_bytes: int = RESULT_LIMIT_BYTES) -> bytes:
    """Raise ``TooLarge`` for a result over the limit; hand back any other."""
    return _within("result", result, limit_bytes)


def fingerprint(kind: str, payload: bytes) -> bytes:
    """16 bytes that stand for "this kind with these arguments": what is quarantined when it crashes workers.

    A kind holds no NUL, so no two pairs of kind and payload run together into the same text.

    >>> fingerprint("mail", b"{}").hex()
    'fdaed8919d1f0278d3da1a42a14ee30b'
    """
    import hashlib  # loads OpenSSL

    return hashlib.sha256(b"\0".join((kind.encode(), payload))).digest()[:FINGERPRINT_BYTES]


def upcast(raw: Arguments, from_version: int, to_version: int, chain: Upcasts) -> Arguments:
    """Lead arguments stored under an old schema version, one version a step, to the one the handler declares.

    Raises ``UndecodablePayload`` when a step is missing or fails, and for a version newer than the handler's:
    that job waits for workers that know it. Error texts hold no values.

    >>> upcast({"mail": "a@b"}, 1, 2, {1: lambda old: {"to": old["mail"]}})
    {'to': 'a@b'}
    """
    if from_version > to_version:
        raise UndecodablePayload(
            f"schema version {from_version} is newer than this handler's {to_version}; "
            "deploy workers before producers"
        )
    for version in range(from_version, to_version):
        step = chain.get(version)
        if step is None:
            raise UndecodablePayload(
                f"no upcast leads from schema version {version} to {version + 1}; "
                f"the handler declares {to_version}"
            )
        raw = _one_step(step, raw, version)
    return raw


def upcast_payload(payload: bytes, from_version: int, to_version: int, chain: Upcasts) -> bytes:
    """The same on bytes. A payload of the declared version is handed back untouched and unread.

    >>> upcast_payload(b'{"mail":"a@b"}', 1, 2, {1: lambda old: {"to": old["mail"]}})
    b'{"to":"a@b"}'
    """
    if from_version == to_version:
        return payload
    try:
        raw = _arguments.decode(payload)
    except (ValueError, RecursionError):
        raise UndecodablePayload("the payload is not a JSON object of arguments") from None
    new = upcast(raw, from_version, to_version, chain)
    try:
        return msgspec.json.encode(new)
    except (TypeError, ValueError, RecursionError) as error:
        raise UndecodablePayload(
            f"the upcasts to schema version {to_version} gave no JSON arguments ({type(error).__name__})"
        ) from None


def _one_step(step: Callable[[Arguments], Arguments], raw: Arguments, version: int) -> Arguments:
    try:
        new = step(raw)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  the application's code: whatever it raises, the job is unreadable
        raise UndecodablePayload(
            f"the upcast from schema version {version} failed ({type(error).__name__})"
        ) from None
    if not isinstance(new, dict):
        raise UndecodablePayload(
            f"the upcast from schema version {version} returned {type(new).__name__}, not a dict"
        )
    return new


def _within(what: str, data: bytes, limit_bytes: int) -> bytes:
    if len(data) > limit_bytes:
        raise TooLarge(what, len(data), limit_bytes)
    return data
