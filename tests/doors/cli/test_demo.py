"""``tessera demo``: what the command hands on to the demo, and what it answers."""

import sys
from types import SimpleNamespace

import pytest


@pytest.fixture
def asked(monkeypatch):
    """What the demo was asked; it fails its checks."""
    calls: list[tuple[str | None, bool, str | None]] = []

    def main(directory, once, url):
        calls.append((directory, once, url))
        return 1

    monkeypatch.setitem(sys.modules, "tessera.demo", SimpleNamespace(main=main))
    monkeypatch.delenv("DEMO_ONCE", raising=False)
    return calls


def test_folder_store_and_once_are_handed_on_and_the_status_comes_back(bare, asked):
    assert bare("demo", "/some/folder", "--once", "--url", "sqlite:///d.db").status == 1
    assert asked == [("/some/folder", True, "sqlite:///d.db")]


@pytest.mark.parametrize("value, once", [("1", True), ("0", False), ("", False)])
def test_the_environment_may_ask_for_one_run(bare, asked, monkeypatch, value, once):
    monkeypatch.setenv("DEMO_ONCE", value)
    bare("demo")
    assert asked == [(None, once, None)]
