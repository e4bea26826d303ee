"""Whether a run did what it said: every file in the report, outcomes as planned, nothing left over."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from tessera import seam
from tessera.demo.listing import Input, Listing
from tessera.demo.report import Report, Totals, as_markdown, read_report
from tessera.demo.runfiles import RunFiles
from tessera.demo.spelling import read_spelling
from tessera.model.states import State
from tessera.model.views import JobView

_PIECE = 1 << 18


class Check(NamedTuple):
    """One promise and whether it was kept."""

    promise: str
    kept: bool
    detail: str = ""


class Outcome(NamedTuple):
    """What the store says after the run."""

    counts: Mapping[State, int]
    """Of the run's queue."""
    survey: JobView
    note: JobView
    document: JobView
    dead: tuple[JobView, ...]
    findings: tuple[str, ...]
    """Of ``verify()``."""


def check_outcome(outcome: Outcome, files: int) -> list[Check]:
    """Whether the store holds what was planned for a run over so many files."""
    note, document = outcome.note, outcome.document
    ends = [attempt.end for attempt in note.ends]
    expected = {State.COMPLETED: files + 2, State.DEAD: 1}
    counts = {state: count for state, count in outcome.counts.items() if count}
    return [
        Check(
            "the survey completed",
            outcome.survey.state is State.COMPLETED,
            str(outcome.survey.state) + (f": {outcome.survey.reason}" if outcome.survey.reason else ""),
        ),
        Check(
            "one job failed twice and then worked",
            note.state is State.COMPLETED
            and note.failures == 2
            and ends == ["failed", "failed", "completed"],
            ", ".join(ends),
        ),
        Check(
            "one job is in the dead letter, with its reason",
            [job.key for job in outcome.dead] == [document.key] and document.reason.startswith("aborted: "),
            ", ".join(job.kind for job in outcome.dead) or "none",
        ),
        Check(
            "counts are as planned",
            counts == expected,
            ", ".join(f"{count} {state}" for state, count in counts.items()),
        ),
        Check("verify() finds nothing", not outcome.findings, "; ".join(outcome.findings)),
    ]


def check_history(files: RunFiles) -> list[Check]:
    """Whether the job that failed twice did its work once, and let go of the lock."""
    try:
        lines = files.history.read_bytes().splitlines()
        runs = [msgspec.json.decode(line)["run"] for line in lines]
    except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        return [Check("the history has one line for this run", False, str(error))]
    kept = runs == [files.folder.name] and not files.lock.exists()
    return [Check("the history has one line for this run", kept, f"{len(lines)} lines")]


async def check_report(files: RunFiles, listing: Listing, folder: Path, *, read_again: bool) -> list[Check]:
    """Whether the report holds every listed file. ``read_again``: each is hashed once more and compared."""
    try:
        report = read_report(files.report)
        markdown = files.markdown.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        return [Check("the report is there and readable", False, str(error))]
    wanted, found = [file.path for file in listing.files], [file.path for file in report.files]
    missing = sorted(set(wanted) - set(found))
    checks = [
        Check(
            "the report lists every file once",
            sorted(found) == sorted(wanted),
            f"{len(found)} of {len(wanted)}" + (f", missing: {', '.join(missing[:3])}" if missing else ""),
        ),
        Check(
            "its totals are the sums of its rows",
            report.totals == _added_up(report),
            f"{report.totals.files} files",
        ),
        Check("the Markdown says the same", markdown == as_markdown(report)),
    ]
    if read_again:
        checks.append(await _second_reading(report, listing, folder))
    return checks


def _added_up(report: Report) -> Totals:
    known = [file for file in report.files if not file.problem]
    return Totals(
        len(known),
        sum(file.size for file in known),
        sum(file.lines or 0 for file in known),
        sum(file.words or 0 for file in known),
    )


async def _second_reading(report: Report, listing: Listing, folder: Path) -> Check:
    rows = {row.path: row for row in report.files}
    wrong: list[str] = []
    agreed = changed = 0
    for file in listing.files:
        size, sha256 = await _read_again(folder, file)
        row = rows.get(file.path)
        if row is not None and not row.problem and (row.size, row.sha256) == (size, sha256):
            agreed += 1
        elif _has_changed(folder, file):
            changed += 1
        elif row is None or sha256 or not row.problem:
            wrong.append(file.path)
        else:
            agreed += 1  # neither reading could open it
    detail = f"{agreed} agree" + (f", {changed} changed meanwhile" if changed else "")
    if wrong:
        detail += f", {len(wrong)} differ: {', '.join(wrong[:3])}"
    return Check("a second reading finds the same sizes and hashes", not wrong, detail)


async def _read_again(folder: Path, file: Input) -> tuple[int, str]:
    """Size and hash, by another way than the handler's; (0, '') for what cannot be read."""
    place = os.path.join(os.fsencode(folder), read_spelling(file.path))
    digest = hashlib.new("sha256")
    size = 0
    try:
        if stat.S_ISLNK(os.lstat(place).st_mode):
            target = os.readlink(place)
            return len(target), hashlib.new("sha256", target).hexdigest()
        async for piece in _pieces(place):
            digest.update(piece)
            size += len(piece)
    except OSError:
        return 0, ""
    return size, digest.hexdigest()


async def _pieces(place: bytes) -> AsyncIterator[bytes]:
    with open(place, "rb") as file:  # noqa: ASYNC230 - a piece takes microseconds, and others run after each
        while piece := file.read(_PIECE):
            yield piece
            await seam.sleep(0)


def _has_changed(folder: Path, file: Input) -> bool:
    """Whether the file is another than when it was listed: then a difference is nobody's mistake."""
    try:
        now = os.lstat(os.path.join(os.fsencode(folder), read_spelling(file.path)))
    except OSError:
        return True
    return (now.st_size, now.st_mtime_ns) != (file.size, file.mtime_ns)
