"""Limits, fingerprints and upcasts of payloads."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.model.errors import TooLarge, UndecodablePayload
from tessera.rules.payload import (
    PAYLOAD_LIMIT_BYTES,
    RESULT_LIMIT_BYTES,
    Arguments,
    Upcasts,
    check_payload_size,
    check_result_size,
    fingerprint,
    upcast,
    upcast_payload,
)

CHAIN: Upcasts = {
    1: lambda old: {"to": old["mail"]},
    2: lambda old: {**old, "subject": "hi"},
}


def test_the_limits_are_one_mebibyte_and_a_quarter() -> None:
    assert (PAYLOAD_LIMIT_BYTES, RESULT_LIMIT_BYTES) == (1_048_576, 262_144)


@pytest.mark.parametrize(
    "check,what,limit",
    [(check_payload_size, "payload", PAYLOAD_LIMIT_BYTES), (check_result_size, "result", RESULT_LIMIT_BYTES)],
)
def test_one_byte_over_the_limit_is_too_large(check, what: str, limit: int) -> None:
    assert check(bytes(limit)) == bytes(limit)
    with pytest.raises(TooLarge) as refusal:
        check(bytes(limit + 1))
    assert (refusal.value.argument, refusal.value.size_bytes, refusal.value.limit_bytes) == (
        what,
        limit + 1,
        limit,
    )


def test_a_limit_can_be_set() -> None:
    with pytest.raises(TooLarge):
        check_payload_size(b"12345", 4)
    assert check_result_size(b"1234", 4) == b"1234"


def test_a_fingerprint_is_the_start_of_the_hash_of_kind_nul_payload() -> None:
    assert fingerprint("mail", b'{"a":1}') == hashlib.sha256(b'mail\0{"a":1}').digest()[:16]


@given(st.text(st.characters(codec="ascii", exclude_characters="\0")), st.binary(), st.binary(min_size=1))
def test_fingerprints_differ_by_kind_and_by_payload(kind: str, payload: bytes, more: bytes) -> None:
    ours = fingerprint(kind, payload)
    assert len(ours) == 16
    assert ours != fingerprint(kind + "x", payload)
    assert ours != fingerprint(kind, payload + more)


def test_upcasts_run_one_version_a_step() -> None:
    assert upcast({"mail": "a@b"}, 1, 3, CHAIN) == {"to": "a@b", "subject": "hi"}
    assert upcast({"to": "a@b"}, 2, 3, CHAIN) == {"to": "a@b", "subject": "hi"}
    assert upcast({"mail": "a@b"}, 1, 2, CHAIN) == {"to": "a@b"}


def test_the_declared_version_needs_no_step() -> None:
    raw: Arguments = {"to": "a@b"}
    assert upcast(raw, 3, 3, {}) is raw


def test_a_missing_step_is_undecodable() -> None:
    with pytest.raises(UndecodablePayload, match="no upcast leads from schema version 2 to 3"):
        upcast({"mail": "a@b"}, 1, 3, {1: CHAIN[1]})


def test_a_version_from_the_future_is_undecodable() -> None:
    with pytest.raises(UndecodablePayload, match="version 4 is newer than this handler's 3"):
        upcast({}, 4, 3, CHAIN)


def test_a_step_that_fails_is_undecodable_and_keeps_the_value_to_itself() -> None:
    def fails(old: Arguments) -> Arguments:
        raise ValueError(f"cannot read {old}")

    with pytest.raises(UndecodablePayload, match="upcast from schema version 1 failed") as refusal:
        upcast({"mail": "secret"}, 1, 2, {1: fails})
    assert "secret" not in str(refusal.value)
    assert refusal.value.__suppress_context__


def test_a_step_that_returns_no_dict_is_undecodable() -> None:
    def forgets(old: Arguments) -> Any:
        old["to"] = "a@b"

    with pytest.raises(UndecodablePayload, match="returned NoneType, not a dict"):
        upcast({}, 1, 2, {1: forgets})


def test_want_of_memory_is_not_blamed_on_the_payload() -> None:
    def starves(old: Arguments) -> Arguments:
        raise MemoryError

    with pytest.raises(MemoryError):
        upcast({}, 1, 2, {1: starves})


def test_bytes_are_upcast_to_bytes() -> None:
    assert upcast_payload(b'{"mail":"a@b"}', 1, 3, CHAIN) == b'{"to":"a@b","subject":"hi"}'


def test_bytes_of_the_declared_version_are_not_read() -> None:
    assert upcast_payload(b"anything", 3, 3, CHAIN) == b"anything"


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_bytes_that_are_no_object_are_undecodable(payload: bytes) -> None:
    with pytest.raises(UndecodablePayload, match="not a JSON object"):
        upcast_payload(payload, 1, 2, CHAIN)


def test_a_step_that_gives_no_json_is_undecodable() -> None:
    with pytest.raises(UndecodablePayload, match="gave no JSON arguments"):
        upcast_payload(b"{}", 1, 2, {1: lambda old: {"to": object()}})
