"""Which names are allowed, as tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tessera.model.errors import InvalidArgument
from tessera.rules.names import (
    refuse_nul,
    validate_counter_name,
    validate_given_id,
    validate_kind,
    validate_queue,
    validate_space,
    validate_tag,
    validate_tags,
    validate_tenant,
)

# (check, option named in the error, good values, bad values)
TABLE: list[tuple[Callable[..., str], str, list[str], list[Any]]] = [
    (
        validate_kind,
        "kind",
        ["a", "_", "9", "send_email", "Billing.Invoice/v2", "a-[]<>/.:+", "x" * 128],
        [
            "",
            "-a",
            ".a",
            "/a",
            "a b",
            "a\n",
            "a\0",
            "é",
            "aé",
            "a,b",
            "a@b",
            "x" * 129,
            "\u0661",
            None,
            7,
            b"a",
        ],
    ),
    (
        validate_queue,
        "queue",
        ["a", "0", "mail", "mail.high_2-b", "x" * 64],
        ["", "Mail", "mAil", "_mail", "-mail", "~mail", "a b", "mail\n", "a/b", "a@b", "é", "x" * 65, None],
    ),
    (
        validate_tag,
        "tags",
        ["eu", "!", "~", "Tenant:7", "a=b", "+-", "x" * 64],
        ["", "a b", "a,b", ",", " ", "\x7f", "é", "a\n", "x" * 65, None],
    ),
    (
        validate_tenant,
        "tenant",
        ["", "acme", "Société Générale", "数据", "a b", "😀", "x" * 128, "é" * 128],
        ["x" * 129, "a\nb", "a\n", "\0", "\x1f", "\x7f", "\x85", "\ud800", None],
    ),
    (
        validate_given_id,
        "id",
        ["order-17", "A", "0", "a.b_c~d-e", "x" * 128],
        ["", "-a", ".a", "~a", "_a", "a/b", "a b", "a:b", "a\n", "é", "x" * 129, None],
    ),
    (
        validate_counter_name,
        "counter",
        ["gpu", "OpenAI.tokens", "_x", "0", "a-b", "x" * 64],
        ["", "a/b", "a:b", "-a", "a b", "a\n", "é", "x" * 65, None],
    ),
    (
        validate_space,
        "space",
        ["notes", "agent.memory", "0", "x" * 64],
        ["", "~job", "~", "~\n", "Notes", "a/b", "a\n", "x" * 65, None],
    ),
]

GOOD = [(check, value) for check, _, good, _ in TABLE for value in good]
BAD = [(check, option, value) for check, option, _, bad in TABLE for value in bad]


@pytest.mark.parametrize("check,value", GOOD)
def test_a_good_name_comes_back_as_it_is(check: Callable[[str], str], value: str) -> None:
    assert check(value) == value


@pytest.mark.parametrize("check,option,value", BAD)
def test_a_bad_name_is_refused_with_its_option(check: Callable[[str], str], option: str, value: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check(value)
    assert refusal.value.argument == option


def test_a_reserved_space_is_refused_as_reserved() -> None:
    with pytest.raises(InvalidArgument, match="reserved"):
        validate_space("~policy")


def test_a_counter_is_refused_under_the_option_it_came_from() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        validate_counter_name("a/b", option="rates")
    assert refusal.value.argument == "rates"


def test_tags_lose_repeats_and_keep_their_order() -> None:
    assert validate_tags(iter(["b", "a", "b"])) == ("b", "a")


def test_thirty_two_different_tags_are_the_limit() -> None:
    tags = [f"t{n}" for n in range(32)]
    assert validate_tags([*tags, *tags]) == tuple(tags)
    with pytest.raises(InvalidArgument, match="33 different tags"):
        validate_tags([*tags, "one-more"])


def test_one_text_is_not_taken_for_a_list_of_tags() -> None:
    with pytest.raises(InvalidArgument, match="a list of tags"):
        validate_tags("eu")


def test_a_bad_tag_in_a_list_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="tags: each must be"):
        validate_tags(["eu", "a b"])


@pytest.mark.parametrize("text,problem", [("a\0b", "NUL"), ("a\ud800", "surrogate")])
def test_text_that_a_store_cannot_hold_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^reason: .*{problem}"):
        refuse_nul("reason", text)


def test_other_text_passes() -> None:
    assert refuse_nul("reason", "disk\nfull 😀") == "disk\nfull 😀"
