"""What is printed where: documents, tables with and without rich, and nothing that could steer a terminal."""

import sys
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from tessera.doors.cli import output
from tessera.doors.cli.output import Output, printable


@pytest.fixture
def terminal(monkeypatch):
    """Lets stdout say that it is a terminal."""
    monkeypatch.setattr(output, "_is_terminal", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)


def draw():
    Output(as_json=False).table(("id", "state"), [("[red]x", "completed"), ("y", "dead")], empty="none")


@pytest.mark.parametrize(
    "value, text",
    [
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("line\nline\ttab", r"line\nline\ttab"),
        ("bell\x07\x9b31m", r"bell\x07\x9b31m"),
        ("right\u202eto left", r"right\u202eto left"),
        ("lone \ud800", r"lone \ud800"),
        ("grüße 日本", "grüße 日本"),
        (None, ""),
        (True, "yes"),
        (0, "0"),
        (1.5, "1.5"),
        (["a", 1], "a, 1"),
        ({"a": [1]}, '{"a":[1]}'),
        (datetime(2030, 1, 31, 9, 5, 7, tzinfo=UTC), "2030-01-31 09:05:07Z"),
    ],
)
def test_what_comes_from_the_store_is_made_printable(value, text):
    assert printable(value) == text


def test_without_a_terminal_a_table_is_aligned_text(capsys):
    draw()
    assert capsys.readouterr().out == "id      state\n[red]x  completed\ny       dead\n"


def test_on_a_terminal_with_rich_a_table_has_colour_and_no_markup(capsys, terminal):
    draw()
    out = capsys.readouterr().out
    assert "\x1b[" in out
    assert "[red]x" in out
    assert "completed" in out


def test_no_color_is_respected(capsys, terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    draw()
    Output(as_json=False).facts([("name", "value")])
    out = capsys.readouterr().out
    assert "completed" in out
    assert "─" in out
    assert not any(f"\x1b[{code}m" in out for code in (31, 32, 36))


@pytest.mark.parametrize("term, is_terminal", [("xterm", True), ("dumb", False)])
def test_a_dumb_terminal_is_none(monkeypatch, term, is_terminal):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    assert output._is_terminal() is is_terminal


def test_without_rich_a_terminal_gets_aligned_text(capsys, terminal, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setitem(sys.modules, "rich", None)
    draw()
    assert capsys.readouterr().out == "id      state\n[red]x  completed\ny       dead\n"


def test_facts_without_a_value_are_left_out_and_long_ones_are_indented(capsys):
    Output(as_json=False).facts([("a", None), ("log", "one\ntwo"), ("name", "x")])
    assert capsys.readouterr().out == "log   one\n      two\nname  x\n"


@pytest.mark.parametrize("has_rich", [True, False])
def test_a_live_table_is_drawn_until_it_is_interrupted(capsys, terminal, monkeypatch, has_rich):
    if not has_rich:
        monkeypatch.setattr(output, "_console", lambda: None)
    drawn = []

    def wait():
        drawn.append(1)
        if len(drawn) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Output(as_json=False).live(lambda: (("n",), [(f"look {len(drawn)}",)]), wait)
    out = capsys.readouterr().out
    assert all(f"look {n}" in out for n in range(3))


def test_notes_are_no_business_of_a_program(capsys):
    Output(as_json=True).note("there is more")
    Output(as_json=False).note("there is more")
    assert capsys.readouterr() == ("", "there is more\n")
