"""Which jobs are "the same job"."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.model.errors import InvalidArgument
from tessera.rules.uniqueness import slot_key, value_at

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), JSON, max_size=4)


def key(
    arguments: dict[str, Any], *by: str, kind: str = "work", across: bool = False, dead: bool = False
) -> str:
    return slot_key(kind, msgspec.json.encode(arguments), by, across_kinds=across, while_dead=dead)


@given(ARGUMENTS)
def test_the_order_of_the_arguments_makes_no_difference(arguments: dict[str, Any]):
    backwards = dict(reversed(list(arguments.items())))
    assert key(arguments) == key(backwards)


@given(ARGUMENTS, ARGUMENTS)
def test_other_arguments_are_another_job(one: dict[str, Any], other: dict[str, Any]):
    same = msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")
    assert (key(one) == key(other)) is same


@given(ARGUMENTS)
def test_a_key_holds_no_text_of_the_arguments_and_is_short(arguments: dict[str, Any]):
    made = key(arguments)
    assert made.startswith("u:work:")
    assert len(made) == len("u:work:") + 32


def test_named_arguments_are_all_that_counts():
    assert key({"account": 1, "text": "a"}, "account") == key({"account": 1, "text": "b"}, "account")
    assert key({"account": 1, "text": "a"}, "account") != key({"account": 2, "text": "a"}, "account")


def test_the_order_of_the_named_arguments_counts_and_their_number_too():
    arguments = {"a": 1, "b": 2}
    assert len({key(arguments, "a", "b"), key(arguments, "b", "a"), key(arguments, "a"), key(arguments)}) == 4


def test_a_path_leads_into_an_argument_and_may_begin_with_args():
    arguments = {"order": {"account": {"id": 7}, "lines": 3}}
    other = {"order": {"account": {"id": 7}, "lines": 4}}
    assert key(arguments, "order.account.id") == key(other, "args.order.account.id")


@pytest.mark.capability("P16")
def test_a_key_is_a_kinds_own_unless_it_reaches_across_kinds():
    arguments = {"n": 1}
    assert key(arguments, kind="a") != key(arguments, kind="b")
    assert key(arguments, kind="a", across=True) == key(arguments, kind="b", across=True)
    assert key(arguments, across=True) != key(arguments)


def test_keys_that_a_dead_job_keeps_are_told_by_their_beginning():
    assert key({}, dead=True).startswith("ud:")
    assert key({}).startswith("u:")


@pytest.mark.parametrize("path", ["missing", "args.missing", "a.b", "order.missing", "order.id.deeper", ""])
def test_a_path_that_leads_nowhere_names_what_there_is(path: str):
    with pytest.raises(InvalidArgument) as refused:
        key({"order": {"id": 1}, "a": "text"}, path)
    assert refused.value.argument == "unique"
    assert refused.value.problem == f"the arguments have no {path!r} (there are: a, order)"


def test_no_arguments_are_said_to_be_none():
    with pytest.raises(InvalidArgument, match="there are: none"):
        value_at({}, "a", "ceilings")


def test_nothing_is_a_value_like_any_other():
    assert value_at({"a": None}, "a", "x") is None
    assert key({"a": None}, "a") != key({"a": 0}, "a")
