"""One run of the demo, from its first file to its summary, and what it does until somebody ends it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from tessera import seam
from tessera.app import Tessera
from tessera.demo.board import Board
from tessera.demo.checks import Check, Outcome, check_history, check_outcome, check_report
from tessera.demo.display import Snapshot, in_a_line, last_error, make_display
from tessera.demo.listing import Listing, list_files, replace_file, write_listing
from tessera.demo.lock import leave_behind
from tessera.demo.report import read_report, show_size
from tessera.demo.runfiles import RunFiles
from tessera.demo.work import Kinds, declare, spell_path
from tessera.handle import Handle
from tessera.model.errors import InvalidArgument
from tessera.model.states import LIVE, State
from tessera.model.views import JobView

WORK_FOLDER: Final = "tessera-demo"
LOOK_SECONDS: Final = 0.25
"""Between two snapshots."""
WATCH_SECONDS: Final = 2.0
"""Between two looks for changed files."""
CUT_OFF: Final = b'{\n "kind": "a document that was cut off while it was written",\n "entries": [1, 2, 3'
INTERRUPTED: Final = 130


def main(directory: str | None = None, once: bool = False, url: str | None = None) -> int:
    """Run the demo on a folder (default: this one); the exit status.

    Each run has a folder of its own below ``./tessera-demo``, with the report and the embedded store, unless
    ``url`` names another. So runs never meet, and running again is always possible. With ``once``, or
    ``DEMO_ONCE=1`` in the environment, it exits when the work is done: 0 if every check of the outcome holds,
    else 1. Otherwise it stays, works again on files that change, and ends with Ctrl-C. Raises InvalidArgument
    (no such folder), ConfigError (the URL), StoreError.
    """
    folder = Path(os.path.abspath(directory or "."))
    if not folder.is_dir():
        raise InvalidArgument("directory", f"{directory!r} is no folder")
    once = once or os.environ.get("DEMO_ONCE", "") not in ("", "0")
    sys.stdout.reconfigure(errors="backslashreplace") if hasattr(sys.stdout, "reconfigure") else None
    run = _new_run()
    demo = Demo(folder, run, url or f"sqlite:///{run.store.as_posix()}")
    try:
        return asyncio.run(demo.run(once))
    except (KeyboardInterrupt, asyncio.CancelledError):  # Ctrl-C, SIGTERM
        click.echo("\nended before the work was done")
        return INTERRUPTED


def _new_run() -> RunFiles:
    """A fresh folder. Its name begins with the time, so that the newest run stands last."""
    work = Path(WORK_FOLDER)
    stamp = datetime.fromtimestamp(seam.now_ms() / 1_000, UTC).strftime("%Y%m%d-%H%M%S")
    run = RunFiles(work / f"{stamp}-{seam.random_bytes(2).hex()}")
    try:
        run.folder.mkdir(parents=True)
        replace_file(work / ".gitignore", b"*\n")
    except OSError as error:
        raise InvalidArgument("working directory", f"{work} cannot be written: {error.strerror}") from error
    return run


class Demo:
    """One run: its folder of inputs, its files, its application."""

    def __init__(self, folder: Path, files: RunFiles, url: str) -> None:
        self.folder = folder
        self.files = files
        self.app = Tessera(url)
        self.board = Board()
        self.kinds: Kinds = declare(self.app, self.board)
        self.queue = f"demo-{files.folder.name}"
        """A queue of the run's own: in a store that others use, its counts are still its own."""
        self._round = 0
        self._reported = 0
        """The round whose report is there."""
        self._measured = 0
        """Jobs of ``measure_file`` so far."""
        self._surveys: list[Handle[str]] = []
        self._extras: list[Handle[int]] = []
        self._started = 0.0

    async def run(self, once: bool) -> int:
        """Work, sum up, and unless ``once`` stay. The exit status."""
        _end_on_sigterm()
        try:
            listing = await list_files(str(self.folder))
        except OSError as error:
            problem = f"{spell_path(self.folder)} cannot be read: {error.strerror}"
            raise InvalidArgument("directory", problem) from error
        self._tell_beginning(listing)
        workers = min(16, max(4, 2 * (os.cpu_count() or 1)))
        async with self.app, self.app.worker(queues=[self.queue], concurrency=workers, grace_seconds=10):
            await self._enqueue_survey(listing, changed=len(listing.files))
            await self._enqueue_extras()
            seconds = await self._watch_until_done()
            outcome = await self._outcome()
            self._reported = self._round if outcome.survey.state is State.COMPLETED else 0
            self._tell_summary(outcome, seconds)
            checks = [
                *await check_report(self.files, listing, self.folder, read_again=once),
                *check_outcome(outcome, len(listing.files)),
                *check_history(self.files),
            ]
            _tell_checks(checks)
            good = all(check.kept for check in checks)
            if not once:
                await self._stay_until_ended(listing)
            return 0 if good else 1

    # Work ---------------------------------------------------------------------------------------------------

    async def _enqueue_survey(self, listing: Listing, changed: int) -> None:
        self._round += 1
        self._measured += changed
        self._started = seam.monotonic()
        write_listing(self.files.listing(self._round), listing)
        survey = self.kinds.survey_folder.with_options(queue=self.queue)
        folder, run = spell_path(self.folder), spell_path(self.files.folder.absolute())
        handle = await survey.aenqueue(folder=folder, run=run, number=self._round, before=self._reported)
        self._surveys.append(handle)

    async def _enqueue_extras(self) -> None:
        """The job that fails twice, and the one that can never work; ahead of the many."""
        leave_behind(self.files.lock, "a process that was killed")
        self.files.document.write_bytes(CUT_OFF)
        run = spell_path(self.files.folder.absolute())
        note = self.kinds.note_run.with_options(queue=self.queue, priority=10)
        document = self.kinds.read_document.with_options(queue=self.queue, priority=10)
        self._extras = await self.app.aenqueue_many(
            [
                note.job(run=run, folder=spell_path(self.folder)),
                document.job(path=spell_path(self.files.document.absolute())),
            ]
        )

    async def _watch_until_done(self) -> float:
        """Show the run until nothing of it is left to do; how many seconds it took."""
        display = make_display()
        display.start()
        try:
            while True:
                snapshot = await self._snapshot()
                display.show(snapshot)
                if not any(snapshot.counts.get(state) for state in LIVE):
                    return snapshot.seconds
                await seam.sleep(LOOK_SECONDS)
        finally:
            display.stop()

    async def _snapshot(self) -> Snapshot:
        waiting = await self.app.jobs.alist(queue=self.queue, state=State.SCHEDULED, limit=10)
        dead = await self.app.jobs.alist(queue=self.queue, state=State.DEAD, limit=10)
        counts = await self._counts()
        planned = self._measured + len(self._surveys) + len(self._extras)
        return Snapshot(
            seconds=seam.monotonic() - self._started,
            planned=max(
                planned, sum(counts.values())
            ),  # files that could not be read are tried in each round
            counts=counts,
            bytes_read=self.board.bytes_read,
            at_work=self.board.names(),
            retrying=[job for job in waiting.jobs if job.failures],
            dead=dead.jobs,
        )

    async def _counts(self) -> dict[State, int]:
        queues = await self.app.queues.alist()
        return next((queue.counts for queue in queues if queue.name == self.queue), {})

    async def _outcome(self) -> Outcome:
        note, document = self._extras
        store = await self.app._astore()
        return Outcome(
            counts=await self._counts(),
            survey=await self._surveys[-1].aget(),
            note=await note.aget(),
            document=await document.aget(),
            dead=tuple((await self.app.jobs.alist(queue=self.queue, state=State.DEAD)).jobs),
            findings=tuple(await store.verify()),
        )

    async def _stay_until_ended(self, listing: Listing) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._stay(listing)
        except asyncio.CancelledError:
            task.uncancel()  # the end that was wished for: the worker now stops as on any other way out
            click.echo("\nended")

    async def _stay(self, listing: Listing) -> None:
        """Work again on what changes, until cancelled."""
        click.echo(f"\nWaiting for changed files in {spell_path(self.folder)}; Ctrl-C ends it.")
        pause = WATCH_SECONDS
        seen = listing.files
        while True:
            await seam.sleep(pause)
            began = seam.monotonic()
            try:
                now = await list_files(str(self.folder))
            except OSError:
                continue  # moved away for a moment, or for ever
            # A look may cost much in a large folder: at most a twentieth of the time goes into looking.
            pause = max(WATCH_SECONDS, 20 * (seam.monotonic() - began))
            if now.files == seen:
                continue
            changed = len(set(now.files) - set(listing.files))
            seen = now.files
            click.echo(f"\n{changed:,} new or changed files, {len(now.files):,} in all:")
            await self._enqueue_survey(now, changed)
            await self._watch_until_done()
            survey = await self._surveys[-1].aget()
            if survey.state is State.COMPLETED:
                listing, self._reported = now, self._round
                click.echo(f"  the report holds {survey.result}: {self.files.markdown}")
            else:
                click.echo(f"  the survey is {survey.state}: {last_error(survey)}")

    # Words --------------------------------------------------------------------------------------------------

    def _tell_beginning(self, listing: Listing) -> None:
        size = show_size(sum(file.size for file in listing.files))
        click.echo(f"Folder  {spell_path(self.folder)}: {len(listing.files):,} files, {size}, {listing.how}")
        click.echo(f"Store   {self.app.url}")
        click.echo(f"Run     {self.files.folder}/ (one folder a run; delete {WORK_FOLDER}/ when you like)")
        click.echo(
            "Planned: a job per file, one that joins them, one that fails twice, one for the dead letter.\n"
        )

    def _tell_summary(self, outcome: Outcome, seconds: float) -> None:
        ended = sum(count for state, count in outcome.counts.items() if state not in LIVE)
        click.echo(f"\nDone in {seconds:.1f} s: {ended:,} jobs")
        click.echo(f"Survey: {self._throughput(outcome.survey)}")
        failed = [attempt for attempt in outcome.note.ends if attempt.end == "failed"]
        click.echo(f"Retries: {outcome.note.kind} failed {len(failed)} times and is {outcome.note.state}")
        for attempt in failed:
            click.echo(f"  attempt {attempt.attempt}: {in_a_line(attempt.error)}")
        click.echo(f"Dead letter: {len(outcome.dead)}")
        for job in outcome.dead:
            click.echo(f"  {job.kind} {job.id}: {job.reason or last_error(job)}")
        with suppress(OSError, ValueError):
            report = read_report(self.files.report)
            if report.problems:
                click.echo(f"Problems with files: {len(report.problems)}")
            for trouble in report.problems[:10]:
                click.echo(f"  {trouble.path}: {trouble.problem}")
        click.echo(f"Report: {self.files.markdown} and {self.files.report.name} beside it")
        self._tell_commands(outcome)

    def _throughput(self, survey: JobView) -> str:
        """What the files took, from the split to the report: the retries of others do not count."""
        if survey.finished_at is None or survey.created_at is None:
            return str(survey.state)
        seconds = max(0.001, (survey.finished_at - survey.created_at).total_seconds())
        read = self.board.bytes_read
        return (
            f"{self._measured:,} files in {seconds:.1f} s ({self._measured / seconds:,.0f}/s), "
            f"{show_size(read)} read ({show_size(round(read / seconds))}/s)"
        )

    def _tell_commands(self, outcome: Outcome) -> None:
        if self.app.url.startswith("memory:"):
            click.echo("The store lives in this process only and goes with it.")
            return
        command = f"{_command()} --url {self.app.url}"
        click.echo("Look at it:")
        click.echo(f"  {command} dead list")
        click.echo(f"  {command} explain {outcome.document.id}")
        click.echo(f"  {command} jobs show {outcome.note.id}")


def _tell_checks(checks: Sequence[Check]) -> None:
    click.echo("\nChecks:")
    for check in checks:
        detail = f" ({check.detail})" if check.detail else ""
        click.echo(f"  {'ok    ' if check.kept else 'FAILED'}  {check.promise}{detail}")


def _command() -> str:
    """How the shell finds the command: by name, or by its place beside this interpreter."""
    if shutil.which("tessera"):
        return "tessera"
    beside = Path(sys.executable).parent / "tessera"
    with suppress(ValueError):
        beside = beside.relative_to(Path.cwd())
    return str(beside)


def _end_on_sigterm() -> None:
    """SIGTERM ends a run as Ctrl-C does: what is running is finished, the rest stays in the store."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError):  # Windows has no such handlers
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
