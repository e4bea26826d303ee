"""From a URL to a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tessera.connect import connect
from tessera.model.errors import ConfigError
from tessera.store.protocol import JoinsTransaction, Notifies, run_blocking

sqlite = pytest.importorskip("tessera.store.sqlite")
needs_sqlite = pytest.mark.skipif(
    not hasattr(sqlite, "SqliteFile"), reason="the SQLite store is not built in"
)


def test_every_handle_of_one_memory_backend_sees_the_same_rows():
    backend = connect("memory://")
    blocking, other = backend.handle(blocking=True), backend.handle(blocking=False)
    assert (blocking.name, backend.url) == ("memory", "memory://")
    assert blocking.installation == other.installation
    assert isinstance(blocking, Notifies)
    backend.close()


def test_two_memory_backends_have_nothing_in_common():
    one, two = (connect("memory://").handle(blocking=True) for _ in range(2))
    assert one.installation != two.installation


@needs_sqlite
@pytest.mark.parametrize(
    "tail", ["", "?synchronous=normal", "?synchronous=FULL&unsafe_filesystem=0", "?unsafe_filesystem=1"]
)
def test_a_sqlite_url_leads_to_its_file(tmp_path: Path, tail: str):
    path = tmp_path / "my work.db"
    backend = connect(f"sqlite:///{path}{tail}".replace(" ", "%20"))
    store = backend.handle(blocking=True)
    run_blocking(store.open())
    assert (store.name, path.exists()) == ("sqlite", True)
    assert isinstance(store, Notifies)
    assert isinstance(store, JoinsTransaction)
    run_blocking(store.close())
    backend.close()


@needs_sqlite
def test_three_slashes_are_relative_and_four_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    for url, path in (
        ("sqlite:///here.db", "here.db"),
        (f"sqlite:///{tmp_path}/deep/there.db", "deep/there.db"),
    ):
        backend = connect(url)
        store = backend.handle(blocking=True)
        run_blocking(store.open())
        run_blocking(store.close())
        backend.close()
        assert (tmp_path / path).exists()


@needs_sqlite
def test_nothing_is_opened_by_connecting(tmp_path: Path):
    backend = connect(f"sqlite:///{tmp_path}/work.db")
    backend.handle(blocking=True)
    assert os.listdir(tmp_path) == []
    backend.close()


@pytest.mark.parametrize(
    "url, words",
    [
        ("", "'' is no store URL; begin it with postgresql://, sqlite:/// or memory://"),
        ("work.db", "'work.db' is no store URL"),
        ("sqllite:///work.db", "is no store URL"),
        ("http://[::1", "is no URL: Invalid IPv6 URL"),
        ("sqlite://work.db", "names no file; write sqlite:///work.db"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///a%00b.db", "holds a NUL"),
        ("sqlite:///work.db?synchronous=off", "synchronous='off'; it is full or normal"),
        ("sqlite:///work.db?unsafe_filesystem=yes", "unsafe_filesystem='yes'; it is 0 or 1"),
        (
            "sqlite:///work.db?timeout=5",
            "'timeout' is no option of sqlite://; there are: synchronous, unsafe_filesystem",
        ),
        ("sqlite:///work.db?synchronous=", "synchronous=''"),
        ("postgresql://localhost/work?schema=pg_work", "schema='pg_work'; it is up to 63 letters"),
        ("postgresql://localhost/work?schema=a%22b", "it is up to 63 letters"),
        ("postgresql://localhost/work?connections=0", "connections='0'; it is 1 to 100"),
        ("postgresql://localhost/work?listen=yes&prepare=", "listen='yes'; it is 0 or 1"),
        ("postgresql://localhost/work?colour=red", "it is no URL for PostgreSQL: .*colour"),
        ("mysql://localhost/work", "mysql:// is not offered by this version"),
        ("redis+cluster://localhost", "redis\\+cluster:// is not offered by this version"),
    ],
)
def test_a_url_that_leads_nowhere_says_what_to_write(url: str, words: str):
    with pytest.raises(ConfigError, match=words):
        connect(url)


def test_all_that_is_wrong_with_a_url_is_told_at_once():
    with pytest.raises(ConfigError) as refused:
        connect("sqlite:///?synchronous=off&timeout=5&unsafe_filesystem=2")
    assert len(refused.value.problems) == 4


@pytest.mark.parametrize("url", [None, 7, b"sqlite:///x.db", ["x"], object()])
def test_a_url_that_is_no_text_is_refused(url: Any):
    with pytest.raises(ConfigError, match="give a text"):
        connect(url)
