"""The demo's kinds of work: what an application would write."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tessera.app import Tessera
from tessera.demo.board import Board
from tessera.demo.listing import Input, Listing, read_listing, replace_file
from tessera.demo.lock import holding
from tessera.demo.measuring import Measured, measure
from tessera.demo.report import build, read_report, show_size, write_report
from tessera.demo.runfiles import RunFiles
from tessera.demo.spelling import read_spelling, spell
from tessera.kinds import JobKind
from tessera.model.control import Abort
from tessera.options import Retention, Retry
from tessera.worker import ChildResult, Context

KEPT: Final = Retention(completed=86_400, dead=7 * 86_400, cancelled=86_400)
"""A week for what went wrong: it is there to be looked at."""


@dataclass(frozen=True)
class Kinds:
    """The four kinds."""

    survey_folder: JobKind[str]
    measure_file: JobKind[Measured]
    note_run: JobKind[int]
    read_document: JobKind[int]


def declare(app: Tessera, board: Board) -> Kinds:
    """Give an application the demo's kinds; what their handlers are at stands on the board."""

    @app.job(retry=Retry(max_attempts=3, base=1), retention=KEPT)
    def measure_file(folder: str, path: str, *, ctx: Context) -> Measured:
        """Measure one file. Trouble with a file is a finding of the report, not a failure of the job."""
        told = 0

        def tell(done: int, total: int) -> None:
            nonlocal told
            board.read(done - told)
            told = done
            ctx.progress(done, total, path)

        with board.at(ctx.id, path):
            measured = measure(folder, path, tell)
        board.read(max(0, measured.size - told))
        return measured

    @app.job(retry=Retry(max_attempts=3, base=1), retention=KEPT)
    def survey_folder(folder: str, run: str, number: int, before: int = 0, *, ctx: Context) -> str:
        """Split into one job per file; when all have ended, join their results into the report.

        ``number`` names the listing to work on, ``before`` that of the report that is there, 0 for none.
        """
        files = RunFiles(Path(_path(run)))
        listing = read_listing(files.listing(number))
        known = _unchanged(files, listing, before) if before else {}
        todo = [file for file in listing.files if file.path not in known]
        children = ctx.children()
        if todo and not children:
            queue = ctx.job.queue
            ctx.split(
                [measure_file.with_options(queue=queue).job(folder=folder, path=file.path) for file in todo]
            )
        found = {file.path: _found(file, child) for file, child in zip(todo, children, strict=True)}
        measured = [known.get(file.path) or found[file.path] for file in listing.files]
        report = build(folder, listing.how, measured, listing.closed)
        write_report(report, files.report, files.markdown)
        return f"{report.totals.files:,} files, {show_size(report.totals.bytes)}"

    @app.job(retry=Retry(max_attempts=5, delays=[0.3, 0.6]), retention=KEPT)
    def note_run(run: str, folder: str, *, ctx: Context) -> int:
        """Add a line to the history, under its lock; fails while somebody else seems to hold it."""
        files = RunFiles(Path(_path(run)))
        with board.at(ctx.id, files.lock.name), holding(files.lock, f"job {ctx.id}"):
            return _note(files, {"run": files.folder.name, "folder": folder, "attempt": ctx.attempt})

    @app.job(retry=Retry(max_attempts=3, base=1), retention=KEPT)
    def read_document(path: str, *, ctx: Context) -> int:
        """Count the entries of a JSON document. What does not parse now never will: a retry is no help."""
        place = Path(_path(path))
        with board.at(ctx.id, place.name):
            try:
                return len(json.loads(place.read_bytes()))
            except ValueError as error:
                raise Abort(f"{place.name} claims to be JSON and is not: {error}") from error

    return Kinds(survey_folder, measure_file, note_run, read_document)


def spell_path(path: Path) -> str:
    """A path as a payload holds it."""
    return spell(str(path).encode("utf-8", "surrogateescape"))


def _path(spelled: str) -> str:
    return read_spelling(spelled).decode("utf-8", "surrogateescape")


def _unchanged(files: RunFiles, listing: Listing, before: int) -> dict[str, Measured]:
    """What the report that is there says of files that look as they did when it was made."""
    then = {file.path: file for file in read_listing(files.listing(before)).files}
    same = {file.path for file in listing.files if then.get(file.path) == file}
    known = read_report(files.report).files
    return {file.path: file for file in known if file.path in same and not file.problem}


def _note(files: RunFiles, entry: dict[str, object]) -> int:
    """Add a line unless it is there: a job may run again after its work. How many there are now."""
    before = files.history.read_bytes() if files.history.exists() else b""
    runs = [json.loads(line)["run"] for line in before.splitlines()]
    if entry["run"] in runs:
        return len(runs)
    replace_file(files.history, before + json.dumps(entry).encode() + b"\n")
    return len(runs) + 1


def _found(file: Input, child: ChildResult) -> Measured:
    if isinstance(child.value, Measured):
        return child.value
    return Measured(file.path, problem=f"its job is {child.state}: {child.reason}")
