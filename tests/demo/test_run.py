"""The whole demo on small folders, and that its checks see what is wrong."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tessera.demo import main, run
from tessera.demo.checks import Check, Outcome, check_history, check_outcome, check_report
from tessera.demo.listing import Input, Listing, list_files, read_listing
from tessera.demo.runfiles import RunFiles
from tessera.model.errors import ConfigError, InvalidArgument
from tessera.model.job import End, Job
from tessera.model.states import State
from tessera.model.views import view


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of three files, beside the working directory."""
    place = tmp_path / "input"
    place.mkdir()
    (place / "a.py").write_text("print('a')\n")
    (place / "b.md").write_text("# b\n")
    (place / "copy.md").write_text("# b\n")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return place


def last_run() -> RunFiles:
    [*_, newest] = sorted(path for path in Path("tessera-demo").iterdir() if path.is_dir())
    return RunFiles(newest)


def report_of(files: RunFiles) -> dict:
    return json.loads(files.report.read_bytes())


# ------------------------------------------------------------------ whole runs


def test_every_check_holds_and_the_report_says_what_is_there(folder, capsys):
    assert main(str(folder), once=True) == 0
    out = capsys.readouterr().out
    assert out.count("  ok ") == 10
    assert "FAILED" not in out
    report = report_of(last_run())
    assert [file["path"] for file in report["files"]] == ["a.py", "b.md", "copy.md"]
    assert [copies["paths"] for copies in report["duplicates"]] == [["b.md", "copy.md"]]
    for shown in ("note_run failed 2 times and is completed", "read_document", "dead list", "explain"):
        assert shown in out


def test_odd_names_an_empty_folder_and_files_that_vanish_are_no_trouble(folder, capsys, monkeypatch):
    place = os.fsencode(folder)
    for name in (b"new\nline", b"\xff\xfe.txt", b"|`\\"):
        with open(os.path.join(place, name), "wb") as file:
            file.write(b"x")
    (folder / "dangling").symlink_to("nowhere")

    async def with_one_that_vanished(place: str) -> Listing:
        listing = await list_files(place)
        return msgspec.structs.replace(listing, files=(*listing.files, Input("vanished", 1, 1)))

    monkeypatch.setattr(run, "list_files", with_one_that_vanished)
    assert main(str(folder), once=True) == 0
    assert "vanished: vanished before it was read" in capsys.readouterr().out
    report = report_of(last_run())
    assert {file["path"] for file in report["files"]} >= {
        "new\\x0aline",
        "\\xff\\xfe.txt",
        "|`\\\\",
        "dangling",
    }
    assert report["problems"] == [{"path": "vanished", "problem": "vanished before it was read"}]


def test_an_empty_folder_is_surveyed_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main("empty", once=True) == 0
    assert report_of(last_run())["files"] == []


def test_it_runs_again_beside_its_former_runs(folder, monkeypatch, capsys):
    monkeypatch.setenv("DEMO_ONCE", "1")
    assert [main(str(folder)), main(str(folder))] == [0, 0]
    assert len([path for path in Path("tessera-demo").iterdir() if path.is_dir()]) == 2
    assert Path("tessera-demo/.gitignore").read_text() == "*\n"


def test_another_store_can_be_named_and_the_runs_do_not_meet_in_it(folder, capsys):
    url = f"sqlite:///{Path('shared.db').absolute()}"
    assert [main(str(folder), True, url), main(str(folder), True, url)] == [0, 0]
    assert not last_run().store.exists()


def test_a_store_that_goes_with_the_process_is_said_to(folder, capsys):
    assert main(str(folder), True, "memory://") == 0
    assert "goes with it" in capsys.readouterr().out


def test_a_run_that_does_not_go_as_planned_ends_with_1(folder, monkeypatch, capsys):
    monkeypatch.setattr(run, "CUT_OFF", b"[1, 2]")  # a sound document: nothing ends in the dead letter
    assert main(str(folder), once=True) == 1
    out = capsys.readouterr().out
    assert "FAILED  one job is in the dead letter, with its reason (none)" in out
    assert "FAILED  counts are as planned" in out


@pytest.mark.parametrize("directory", ["nowhere", "file"])
def test_a_folder_that_is_none_is_refused(tmp_path, monkeypatch, directory):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidArgument, match="is no folder"):
        main(directory, once=True)


def test_a_folder_that_cannot_be_read_is_refused(folder, monkeypatch):
    async def closed(place: str) -> Listing:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run, "list_files", closed)
    with pytest.raises(InvalidArgument, match="cannot be read: Permission denied"):
        main(str(folder), once=True)


def test_a_url_that_leads_nowhere_is_refused(folder):
    with pytest.raises(ConfigError):
        main(str(folder), True, "gopher://x")


def test_a_working_directory_that_cannot_be_written_is_refused(folder):
    Path("tessera-demo").write_text("in the way")
    with pytest.raises(InvalidArgument, match="cannot be written"):
        main(str(folder), once=True)


# ------------------------------------------------------------------ staying, and being ended


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tessera", "demo", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_until(process: subprocess.Popen[str], wanted: str) -> str:
    """Lines up to the first that holds the words. A process that ends before fails the test."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if wanted in line:
            return seen
    raise AssertionError(f"it ended without {wanted!r}:\n{seen}")


def test_it_stays_and_works_on_what_changes_until_interrupted(folder):
    with start(folder) as process:
        try:
            assert "FAILED" not in read_until(process, "Waiting for changed files")
            (folder / "new.txt").write_text("new\n")
            (folder / "b.md").unlink()
            read_until(process, "1 new or changed files, 3 in all")
            read_until(process, "the report holds 3 files")
            folder.rename(folder.with_name("away"))
            folder.with_name("away").rename(folder)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()
    files = last_run()
    assert [file["path"] for file in report_of(files)["files"]] == ["a.py", "copy.md", "new.txt"]
    checks = asyncio.run(check_report(files, read_listing(files.listing(2)), folder, read_again=True))
    assert all(check.kept for check in checks), checks


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ended_before_its_work_is_done_it_says_so(folder, number):
    with start(folder) as process:
        try:
            read_until(process, "jobs,")  # its first line about the work; the retries alone take longer
            process.send_signal(number)
            out, _ = process.communicate(timeout=30)
            assert process.returncode == 130
        finally:
            process.kill()
    assert "ended before the work was done" in out
    assert "Traceback" not in out


# ------------------------------------------------------------------ the checks see what is wrong


@pytest.fixture
def ran(folder, capsys):
    """A good run: its files, its listing, its folder."""
    assert main(str(folder), once=True) == 0
    files = last_run()
    return files, read_listing(files.listing(1)), folder


def broken(checks: list[Check]) -> list[str]:
    return [check.promise for check in checks if not check.kept]


def checked(ran: tuple[RunFiles, Listing, Path]) -> list[str]:
    files, listing, folder = ran
    return broken(
        [*asyncio.run(check_report(files, listing, folder, read_again=True)), *check_history(files)]
    )


def test_an_untouched_run_passes(ran):
    assert checked(ran) == []


LISTS = "the report lists every file once"
SUMS = "its totals are the sums of its rows"
MARKDOWN = "the Markdown says the same"
READING = "a second reading finds the same sizes and hashes"
HISTORY = "the history has one line for this run"


@pytest.mark.parametrize(
    "tamper, seen",
    [
        (lambda report: report["files"].pop(), {LISTS, SUMS, MARKDOWN, READING}),
        (lambda report: report["files"].append(report["files"][0]), {LISTS, SUMS, MARKDOWN}),
        (lambda report: report["files"][0].update(path="other"), {LISTS, MARKDOWN, READING}),
        (lambda report: report["files"][0].update(sha256="0" * 64), {MARKDOWN, READING}),
        (lambda report: report["files"][0].update(size=12), {SUMS, MARKDOWN, READING}),
        (lambda report: report["files"][0].update(problem="made up"), {SUMS, MARKDOWN, READING}),
        (lambda report: report["totals"].update(words=1), {SUMS, MARKDOWN}),
    ],
)
def test_a_report_that_was_tampered_with_is_seen(ran, tamper, seen):
    files = ran[0]
    report = report_of(files)
    tamper(report)
    files.report.write_text(json.dumps(report))
    assert set(checked(ran)) - {MARKDOWN} == seen - {MARKDOWN}


def test_a_row_missing_in_the_markdown_is_seen(ran):
    lines = ran[0].markdown.read_text().splitlines(keepends=True)
    ran[0].markdown.write_text("".join(lines[:-1]))
    assert checked(ran) == [MARKDOWN]


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_report_that_is_missing_or_no_report_is_seen(ran, content):
    files = ran[0]
    files.report.unlink() if content is None else files.report.write_text(content)
    assert checked(ran) == ["the report is there and readable"]


def test_a_file_that_was_read_wrongly_is_seen_and_one_that_changed_is_not_blamed(ran):
    _, _, folder = ran
    place = folder / "a.py"
    before = place.stat()
    place.write_text("print('b')\n")  # another content, same size
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert checked(ran) == [READING]
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))
    assert checked(ran) == []
    place.unlink()
    assert checked(ran) == []


@pytest.mark.parametrize("line", [b"", b'{"run": "another"}\n', b"no json\n", b"[]\n"])
def test_a_history_that_is_not_this_runs_is_seen(ran, line):
    ran[0].history.write_bytes(line)
    assert checked(ran) == [HISTORY]


def test_a_history_with_two_lines_or_a_lock_left_is_seen(ran):
    files = ran[0]
    once = files.history.read_bytes()
    files.history.write_bytes(once + once)
    assert checked(ran) == [HISTORY]
    files.history.write_bytes(once)
    assert checked(ran) == []
    files.lock.write_text("{}")
    assert checked(ran) == [HISTORY]
    shutil.rmtree(files.folder)
    assert HISTORY in checked(ran)


def job(kind: str, state: State, reason: str = "", failures: int = 0, ends: tuple[str, ...] = ()) -> Job:
    attempts = tuple(End(number, end, 1, 2) for number, end in enumerate(ends, 1))
    key = kind.encode().ljust(16)[:16]
    return Job(id=key, kind=kind, queue="q", state=state, reason=reason, failures=failures, ends=attempts)  # type: ignore[arg-type]


NOTE = job("note_run", State.COMPLETED, failures=2, ends=("failed", "failed", "completed"))
DOCUMENT = job("read_document", State.DEAD, "aborted: cut off")
GOOD = Outcome(
    counts={State.COMPLETED: 5, State.DEAD: 1, State.RUNNING: 0},
    survey=view(job("survey_folder", State.COMPLETED)),
    note=view(NOTE),
    document=view(DOCUMENT),
    dead=(view(DOCUMENT),),
    findings=(),
)


def test_an_outcome_as_planned_passes():
    assert broken(check_outcome(GOOD, files=3)) == []


@pytest.mark.parametrize(
    "change, promise",
    [
        ({"survey": view(job("survey_folder", State.DEAD, "attempts_used"))}, "the survey completed"),
        ({"note": view(msgspec.structs.replace(NOTE, failures=1))}, "one job failed twice and then worked"),
        (
            {"note": view(msgspec.structs.replace(NOTE, ends=NOTE.ends[1:]))},
            "one job failed twice and then worked",
        ),
        (
            {"note": view(msgspec.structs.replace(NOTE, state=State.DEAD))},
            "one job failed twice and then worked",
        ),
        ({"dead": ()}, "one job is in the dead letter, with its reason"),
        ({"dead": (view(DOCUMENT), view(NOTE))}, "one job is in the dead letter, with its reason"),
        (
            {"document": view(msgspec.structs.replace(DOCUMENT, reason="attempts_used"))},
            "one job is in the dead letter, with its reason",
        ),
        ({"counts": {State.COMPLETED: 4, State.DEAD: 1}}, "counts are as planned"),
        ({"counts": {State.COMPLETED: 5, State.DEAD: 1, State.RUNNING: 1}}, "counts are as planned"),
        ({"findings": ("a count is off",)}, "verify() finds nothing"),
    ],
)
def test_an_outcome_that_was_not_planned_is_seen(change, promise):
    assert broken(check_outcome(GOOD._replace(**change), files=3)) == [promise]
