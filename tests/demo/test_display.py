"""How a run looks."""

import io

import pytest
from rich.console import Console

from tessera.demo import display
from tessera.demo.display import LiveDisplay, PlainDisplay, Snapshot, in_a_line, in_short, make_display
from tessera.model.job import End, Job
from tessera.model.states import State
from tessera.model.views import JobView, view


def job(kind: str, state: State, attempt: int = 1, reason: str = "", error: str = "") -> JobView:
    ends = (End(attempt, "failed", 1, 2, "w", error),) if error else ()
    return view(
        Job(
            id=bytes(15) + bytes([attempt]),  # type: ignore[arg-type]
            kind=kind,
            queue="q",
            state=state,
            attempt=attempt,
            reason=reason,
            ends=ends,
        )
    )


def snapshot(**fields: object) -> Snapshot:
    values: dict[str, object] = {
        "seconds": 2.0,
        "planned": 10,
        "counts": {State.COMPLETED: 3, State.DEAD: 1, State.RUNNING: 2},
        "bytes_read": 5_000,
        "at_work": (),
        "retrying": (),
        "dead": (),
    }
    return Snapshot(**{**values, **fields})  # type: ignore[arg-type]


RETRY = job("note_run", State.SCHEDULED, error="Traceback ...\ndemo.lock.LockHeld: held by x")
DEAD = job("read_document", State.DEAD, 2, "aborted: cut off", "cut off")


def test_a_line_says_how_far_it_is():
    assert in_short(snapshot()) == "2.0 s: 4 of 10 jobs, 2/s, 5.0 kB read"
    assert in_short(snapshot(retrying=(RETRY,), dead=(DEAD,))).endswith("1 to be retried, 1 dead")


def test_a_run_that_has_just_begun_has_no_rate():
    assert snapshot(seconds=0.0).rate == 0.0


@pytest.mark.parametrize(
    "error, line",
    [
        ("Traceback\n  File\na.b.Refused: no: thanks\n", "Refused: no: thanks"),
        ("KeyError: 'x'", "KeyError: 'x'"),
        ("plain words: and more", "plain words: and more"),
        ("a.b.Refused", "Refused"),
    ],
)
def test_an_error_is_told_in_a_line(error, line):
    assert in_a_line(error) == line


def test_the_plain_display_tells_each_trouble_once(capsys):
    plain = PlainDisplay()
    plain.start()
    for _ in range(3):
        plain.show(snapshot(retrying=(RETRY,), dead=(DEAD,)))
    plain.stop()
    out = capsys.readouterr().out
    assert out.count("note_run failed in attempt 1 and will be retried: LockHeld: held by x") == 1
    assert out.count("read_document is dead: cut off") == 1
    assert out.count("4 of 10 jobs") == 1  # a line every two seconds


def test_the_live_display_shows_states_files_and_troubles(monkeypatch):
    out = io.StringIO()
    live = LiveDisplay()
    monkeypatch.setattr(live._live, "console", Console(file=out, width=100))
    live.start()
    live.show(snapshot(at_work=("[bold]a file[/bold]",), retrying=(RETRY,), dead=(DEAD,)))
    live.stop()
    text = out.getvalue()
    for shown in ("completed", "running", "[bold]a file[/bold]", "LockHeld: held by x", "aborted: cut off"):
        assert shown in text


def test_without_a_terminal_or_without_rich_lines_are_printed(monkeypatch):
    assert isinstance(make_display(), PlainDisplay)
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_display(), LiveDisplay)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_display(), PlainDisplay)
    monkeypatch.setenv("TERM", "xterm")

    def not_installed() -> None:
        raise ImportError

    monkeypatch.setattr(display, "LiveDisplay", not_installed)
    assert type(make_display()) is PlainDisplay


class Terminal(io.StringIO):
    """Standard output that says it is a terminal."""

    def isatty(self) -> bool:
        return True
