"""One file measured."""

import hashlib
import os
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.demo import measuring
from tessera.demo.measuring import Measured, _TextCounter, measure
from tessera.demo.spelling import spell


def silent(done: int, total: int) -> None:
    """Nobody listens."""


def measured(folder, name: str, content: bytes) -> Measured:
    (folder / name).write_bytes(content)
    return measure(spell(os.fsencode(folder)), name, silent)


@pytest.mark.parametrize(
    "name, content, kind, lines, words",
    [
        ("a.py", b"import os\nprint(1)\n", "Python source", 2, 3),
        ("a.md", b"# Title\n\ntext without a last newline", "Markdown", 3, 7),
        ("a", b"plain words", "text", 1, 2),
        ("empty.py", b"", "empty", 0, 0),
        ("run", b"#!/usr/bin/env -S python3 -u\n", "Python source", 1, 4),
        ("run", b"#!/bin/sh\necho\n", "shell script", 2, 2),
        ("Makefile", b"all:\n", "makefile", 1, 1),
        (".bashrc", b"x\n", "text", 1, 1),
        ("a.png", b"\x89PNG\r\n\x1a\n\x00\x00", "PNG image", None, None),
        ("claims.txt", b"PK\x03\x04\x00\x00\xff", "ZIP archive", None, None),
        ("clip", b"RIFF\x00\x00\x00\xffWAVE", "WAV audio", None, None),
        ("other", b"RIFF\x00\x00\x00\xffNONE", "binary", None, None),
        ("a.txt", b"\x00\x01\x02", "binary", None, None),
        ("latin1.txt", b"caf\xe9", "binary", None, None),
        ("cut.txt", "ends within é".encode()[:-1], "binary", None, None),
        ("MZ.txt", b"MZ begins this text", "text", 1, 4),
        ("utf.json", '{"ü": 1}\n'.encode(), "JSON", 1, 2),
    ],
)
def test_type_lines_and_words_follow_from_content_and_name(tmp_path, name, content, kind, lines, words):
    found = measured(tmp_path, name, content)
    assert (found.type, found.lines, found.words) == (kind, lines, words)
    assert (found.size, found.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert found.problem == ""


@given(st.lists(st.binary(max_size=8), max_size=8))
def test_words_and_lines_do_not_depend_on_where_a_chunk_ends(chunks):
    whole, pieces = _TextCounter(), _TextCounter()
    text = b"".join(chunks)
    if text:
        whole.take(text)
    for chunk in filter(None, chunks):
        pieces.take(chunk)
    assert whole.is_text() == pieces.is_text()
    if whole.is_text():
        assert (whole.lines, whole.words) == (pieces.lines, pieces.words)
        assert whole.words == len(text.split())


def test_a_large_file_is_read_in_chunks_and_tells_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "CHUNK", 10)
    (tmp_path / "f.txt").write_bytes(b"word " * 5)
    told = []
    found = measure(spell(os.fsencode(tmp_path)), "f.txt", lambda done, total: told.append((done, total)))
    assert told == [(10, 25), (20, 25)]
    assert (found.size, found.words) == (25, 5)


def test_a_link_is_measured_as_its_text_and_not_followed(tmp_path):
    (tmp_path / "link").symlink_to("../secret")
    found = measure(spell(os.fsencode(tmp_path)), "link", silent)
    assert found == Measured("link", 9, hashlib.sha256(b"../secret").hexdigest(), "symbolic link")


def test_a_file_that_vanished_is_a_finding(tmp_path):
    assert measure(spell(os.fsencode(tmp_path)), "gone", silent) == Measured(
        "gone", problem="vanished before it was read"
    )


def test_a_pipe_in_a_files_place_is_a_finding_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert measure(spell(os.fsencode(tmp_path)), "pipe", silent).problem == "not a regular file"


def test_a_file_that_may_not_be_read_is_a_finding(tmp_path):
    (tmp_path / "closed").write_text("secret")
    (tmp_path / "closed").chmod(0)
    with _without_privileges():
        found = measure(spell(os.fsencode(tmp_path)), "closed", silent)
    assert found == Measured("closed", problem="PermissionError: Permission denied")


def test_a_file_that_grows_for_ever_is_a_finding(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "CHUNK", 4)
    monkeypatch.setattr(measuring, "_ROOM_TO_GROW", 8)
    log = tmp_path / "log"
    log.write_bytes(b"12345678")

    def growing(done: int, total: int) -> None:
        with log.open("ab") as file:
            file.write(b"12345678")

    monkeypatch.setattr(_TextCounter, "take", lambda counter, chunk: growing(0, 0))
    assert measure(spell(os.fsencode(tmp_path)), "log", silent).problem == "grows faster than it can be read"


@contextmanager
def _without_privileges():
    """Root may read everything, so it becomes nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)
