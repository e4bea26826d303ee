"""Tables on narrow terminals: columns go whole, words are never broken."""

import re

import pytest

from tessera.doors.cli import output
from tessera.doors.cli.fitting import cells_of, shorten
from tessera.model.outcomes import Aborted
from tests.doors.cli.conftest import end


@pytest.fixture(params=[True, False], ids=["rich", "plain"])
def terminal(request, monkeypatch):
    """A terminal of so many columns, with rich and without."""
    monkeypatch.setattr(output, "_is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    if not request.param:
        monkeypatch.setattr(output, "_console", lambda: None)
    return lambda columns: monkeypatch.setenv("COLUMNS", str(columns))


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.fixture
def job(app, greet):
    handle = greet(queue="a-queue-of-mail")
    end(app, Aborted("ConnectionError: " + "bank is down " * 20), queue="a-queue-of-mail")
    return handle


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", [("jobs", "list"), ("dead", "list")])
def test_a_table_fits_the_terminal_and_breaks_no_word(run, job, terminal, columns, command):
    terminal(columns)
    lines = [line.rstrip() for line in plain(run(*command).out).splitlines() if line.strip(" ─")]
    assert len(lines) == 2
    assert all(len(line) <= columns for line in lines)
    assert lines[1].startswith(job.id + " ")
    assert lines[1].endswith("…")
    kept = lines[0].split()
    assert ("priority" in kept) is (columns == 120)
    if "queue" in kept:
        assert "a-queue-of-mail" in lines[1].split()


def test_an_id_stays_whole_even_where_it_does_not_fit(run, job, terminal):
    terminal(20)
    assert job.id in run("jobs", "list").out


def test_a_pipe_gets_the_whole_table(run, job):
    out = run("dead", "list").out
    assert ("bank is down " * 20).strip() in out
    assert "priority" in out


@pytest.mark.parametrize("text, width, short", [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("日本語", 4, "日…")])
def test_a_text_is_shortened_to_cells(text, width, short):
    assert shorten(text, width) == short
    assert cells_of(short) <= width
