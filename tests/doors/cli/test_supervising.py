"""The supervisor: children are kept alive, signals are passed on, changed code starts them anew."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tessera.doors.cli import supervising
from tessera.doors.cli.supervising import Supervisor, python_files

BEGIN = "import os, pathlib, signal, sys; place = pathlib.Path(sys.argv[1]); "
LOG = "place.open('a').write(f'{os.getpid()}\\n'); "
ENDURE = LOG + "signal.pause()"
"""Says that it is there, and stays until a signal of some other sort ends it."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(supervising, "FIRST_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(supervising, "WATCH_SECONDS", 0.02)


class Fleet:
    """A supervisor over children that run a line of Python each, and the pids they wrote."""

    def __init__(self, folder, code, count=1, **how):
        self.folder = folder
        self.ended: list[int] = []
        argv = lambda number: [sys.executable, "-c", BEGIN + code, str(folder / f"{number}.log")]  # noqa: E731
        self.supervisor = Supervisor(argv, count, on_end=self.ended.append, **how)

    def pids(self, number=1):
        path = self.folder / f"{number}.log"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110  another process does it
                await asyncio.sleep(0.01)

    def live(self, story):
        """Run the supervisor beside a story that says when to stop; the exit status."""

        async def both():
            told = asyncio.ensure_future(story(self))
            try:
                async with asyncio.timeout(30):
                    status = await self.supervisor.run()
                await told
                return status
            finally:
                told.cancel()

        return asyncio.run(both())


def test_a_child_that_dies_is_started_again(tmp_path):
    async def story(fleet):
        await fleet.until(lambda: len(fleet.pids()) == 1)
        os.kill(fleet.pids()[0], signal.SIGKILL)
        await fleet.until(lambda: len(fleet.pids()) == 2)
        fleet.supervisor.stop()

    fleet = Fleet(tmp_path, ENDURE)
    assert fleet.live(story) == 0
    assert fleet.ended == [1, 1]


def test_every_place_has_a_child_of_its_own(tmp_path):
    async def story(fleet):
        await fleet.until(lambda: all(fleet.pids(number) for number in (1, 2, 3)))
        fleet.supervisor.stop()

    fleet = Fleet(tmp_path, ENDURE, count=3)
    assert fleet.live(story) == 0
    assert sorted(fleet.ended) == [1, 2, 3]


def test_a_child_that_ends_at_once_is_started_later_each_time(tmp_path):
    async def story(fleet):
        await fleet.until(lambda: len(fleet.pids()) >= 3)
        assert fleet.supervisor._children[0].backoff >= 0.04
        fleet.supervisor.stop()

    Fleet(tmp_path, LOG + "sys.exit(1)").live(story)


@pytest.mark.parametrize("status", [2, 5])
def test_what_another_start_would_only_repeat_ends_it_all(tmp_path, status):
    async def story(fleet):
        await fleet.until(lambda: fleet.supervisor.is_stopping)

    fleet = Fleet(tmp_path, f"sys.exit({status}) if place.name == '1.log' else None; " + ENDURE, count=2)
    assert fleet.live(story) == status
    assert sorted(fleet.ended) == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_as_sigterm(tmp_path, number):
    async def story(fleet):
        await fleet.until(fleet.pids)
        os.kill(os.getpid(), number)

    touch = "(place.with_suffix('.term').touch(), sys.exit(0))"
    code = f"signal.signal(signal.SIGTERM, lambda *_: {touch}); " + ENDURE
    assert Fleet(tmp_path, code).live(story) == 0
    assert (tmp_path / "1.term").exists()


def test_the_third_signal_kills(tmp_path):
    async def story(fleet):
        await fleet.until(fleet.pids)
        for _ in range(3):
            fleet.supervisor.stop()

    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " + ENDURE
    assert Fleet(tmp_path, code).live(story) == 128 + signal.SIGKILL


def test_a_child_that_fails_while_stopping_is_the_exit_status(tmp_path):
    async def story(fleet):
        await fleet.until(fleet.pids)
        fleet.supervisor.stop()

    code = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); " + ENDURE
    assert Fleet(tmp_path, code).live(story) == 7


def test_changed_code_starts_the_children_anew(tmp_path):
    code_folder = tmp_path / "code"
    code_folder.mkdir()

    async def story(fleet):
        await fleet.until(lambda: len(fleet.pids()) == 1)
        (code_folder / "new.py").write_text("x = 1\n")
        await fleet.until(lambda: len(fleet.pids()) == 2)
        fleet.supervisor.stop()

    assert Fleet(tmp_path, ENDURE, watched=code_folder).live(story) == 0


def test_broken_code_waits_for_a_change_instead_of_failing_again_and_again(tmp_path):
    code_folder = tmp_path / "code"
    code_folder.mkdir()

    async def story(fleet):
        await fleet.until(lambda: fleet.ended == [1])
        (code_folder / "mended.py").write_text("x = 1\n")
        await fleet.until(lambda: len(fleet.pids()) == 2)
        fleet.supervisor.stop()

    mended = f"pathlib.Path({str(code_folder / 'mended.py')!r}).exists()"
    fleet = Fleet(tmp_path, LOG + f"{mended} or sys.exit(5); signal.pause()", watched=code_folder)
    assert fleet.live(story) == 0


def test_a_child_that_ignores_the_change_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(supervising, "RELOAD_GRACE_SECONDS", 0.1)
    code_folder = tmp_path / "code"
    code_folder.mkdir()

    async def story(fleet):
        await fleet.until(lambda: len(fleet.pids()) == 1)
        (code_folder / "new.py").write_text("x = 1\n")
        await fleet.until(lambda: len(fleet.pids()) == 2)
        for _ in range(3):
            fleet.supervisor.stop()

    at_the_second = "asked.append(1) or len(asked) > 1 and os._exit(0)"
    asked = f"asked = []; signal.signal(signal.SIGTERM, lambda *_: {at_the_second}); "
    endure = LOG + "[signal.pause() for _ in range(9)]"
    fleet = Fleet(tmp_path, asked + endure, watched=code_folder)
    fleet.live(story)
    assert fleet.ended == [1, 1]


def test_only_python_files_outside_hidden_folders_and_environments_are_watched(tmp_path):
    for name in (
        "a.py",
        "b.txt",
        "sub/c.py",
        ".git/d.py",
        "env/pyvenv.cfg",
        "env/lib/e.py",
        "__pycache__/f.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    assert sorted(path for path, _ in python_files(tmp_path)) == ["a.py", str(Path("sub/c.py"))]


def test_a_supervised_process_stops_when_its_stdin_ends():
    code = (
        "import signal, sys, threading; from tessera.doors.cli.supervising import stop_with_parent; "
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); "
        "stop_with_parent(); print('up', flush=True); signal.pause()"
    )

    async def story():
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(20):
                assert process.stdin is not None
                assert process.stdout is not None
                assert await process.stdout.readline() == b"up\n"
                process.stdin.close()
                return await process.wait()
        finally:
            with suppress(ProcessLookupError):
                process.kill()

    assert asyncio.run(story()) == 3
