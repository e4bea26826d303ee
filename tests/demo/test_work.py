"""The demo's handlers, where a whole run does not lead."""

import asyncio
import os

import pytest

from tessera import ChildResult, State, Tessera
from tessera.demo import measuring
from tessera.demo.board import Board
from tessera.demo.listing import Input, list_files, write_listing
from tessera.demo.measuring import Measured
from tessera.demo.report import read_report
from tessera.demo.runfiles import RunFiles
from tessera.demo.spelling import spell
from tessera.demo.work import _found, _note, declare, spell_path


def test_a_large_file_shows_how_far_it_is_and_every_byte_is_counted_once(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "CHUNK", 4)
    (tmp_path / "large").write_bytes(b"123456789")
    board = Board()

    async def run() -> tuple[Measured, object]:
        app = Tessera("memory://")
        kinds = declare(app, board)
        async with app, app.worker():
            handle = await kinds.measure_file.aenqueue(folder=spell(os.fsencode(tmp_path)), path="large")
            return await handle.aresult(timeout=20), (await handle.aget()).progress

    measured, progress = asyncio.run(run())
    assert measured.size == board.bytes_read == 9
    assert isinstance(progress, dict)
    assert (progress["current"], progress["total"], progress["message"]) == (8, 9, "large")
    assert board.names() == []


def test_a_survey_builds_on_the_round_whose_report_is_there(tmp_path):
    """A round whose survey died left a listing and no report: what changed in it is measured in the next."""
    folder, files = tmp_path / "in", RunFiles(tmp_path / "run")
    folder.mkdir()
    files.folder.mkdir()

    async def rounds() -> tuple[list[str], int]:
        app = Tessera("memory://")
        kinds = declare(app, Board())
        (folder / "same").write_text("same")
        async with app, app.worker():
            for number, before in ((1, 0), (2, 1), (3, 1)):
                (folder / "changes").write_text("x" * min(number, 2))
                write_listing(files.listing(number), await list_files(str(folder)))
                if number != 2:
                    survey = await kinds.survey_folder.aenqueue(
                        folder=spell_path(folder), run=spell_path(files.folder), number=number, before=before
                    )
                    await survey.aresult(timeout=20)
            measured = (await app.jobs.alist(kind="measure_file")).jobs
        return [f"{file.path}: {file.size}" for file in read_report(files.report).files], len(measured)

    assert asyncio.run(rounds()) == (["changes: 2", "same: 4"], 3)  # two files, then the one that changed


def test_a_run_is_noted_once_however_often_its_job_runs(tmp_path):
    files = RunFiles(tmp_path)
    assert _note(files, {"run": "one"}) == 1
    assert _note(files, {"run": "one"}) == 1
    assert _note(files, {"run": "two"}) == 2
    assert len(files.history.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "child, found",
    [
        (ChildResult(id="1", kind="k", state=State.COMPLETED, value=Measured("f", 3)), Measured("f", 3)),
        (
            ChildResult(id="1", kind="k", state=State.DEAD, reason="attempts_used"),
            Measured("f", problem="its job is dead: attempts_used"),
        ),
    ],
)
def test_a_file_whose_job_died_is_a_problem_of_the_report(child, found):
    assert _found(Input("f", 3, 0), child) == found


def test_what_is_worked_on_is_shown_until_it_ends():
    board = Board()
    with board.at("1", "first"), board.at("2", "second"):
        assert board.names() == ["first", "second"]
    with pytest.raises(ZeroDivisionError), board.at("3", "third"):
        raise ZeroDivisionError
    assert board.names() == []


def test_a_path_is_spelled_for_a_payload(tmp_path):
    assert spell_path(tmp_path / "a\nb").endswith("a\\x0ab")
