"""Names of files as one line of text, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.demo.spelling import read_spelling, spell


@pytest.mark.parametrize(
    "name, spelled",
    [
        (b"plain.txt", "plain.txt"),
        (b"with space", "with space"),
        ("ünïcode \N{SNOWMAN}".encode(), "ünïcode \N{SNOWMAN}"),
        (b"two\nlines", "two\\x0alines"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"back\\slash", "back\\\\slash"),
        (b"\\x41", "\\\\x41"),
        ("line\N{LINE SEPARATOR}".encode(), "line\\xe2\\x80\\xa8"),
        (b"\xed\xa0\x80", "\\xed\\xa0\\x80"),  # a surrogate, which UTF-8 must not hold
        (b"", ""),
    ],
)
def test_a_name_is_spelled_in_one_printable_line(name, spelled):
    assert spell(name) == spelled
    assert read_spelling(spelled) == name


@given(st.binary(max_size=60))
def test_every_name_comes_back_from_its_spelling(name):
    spelled = spell(name)
    assert spelled.isprintable()
    spelled.encode()
    assert read_spelling(spelled) == name
