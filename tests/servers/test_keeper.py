"""A server ends with what it was started for, whatever ends that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers.keeper import ENDS_WITHIN, Kept
from tests.servers.programs import is_alive, server_identity

PATIENCE = 20.0
SLEEPER = [sys.executable, "-S", "-c", "import time; print('up', flush=True); time.sleep(600)"]


def until(holds: Callable[[], object], what: str) -> None:
    """Other processes have no signal for us: look, for so long."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.01)


@pytest.fixture
def run() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for a test run."""
    with subprocess.Popen(SLEEPER, stdout=subprocess.DEVNULL) as run:
        yield run
        run.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the server needs, as a folder of its own."""
    folder = tmp_path / "server"
    folder.mkdir()
    return folder


@pytest.fixture
def kept(run: subprocess.Popen[bytes], folder: Path, tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(["sleep", "600"], tmp_path / "log", run.pid, folder, remove=True)
    assert is_alive(kept.pid)
    yield kept
    kept.keeper.terminate()
    kept.keeper.wait(PATIENCE)
    assert not is_alive(kept.pid)


def test_a_server_and_its_folder_go_with_a_run_that_is_killed(
    kept: Kept, run: subprocess.Popen[bytes], folder: Path
):
    run.kill()  # and nobody asks after it: it stays a zombie
    kept.keeper.wait(PATIENCE)
    assert not is_alive(kept.pid)
    assert not folder.exists()


def test_a_server_goes_with_its_folder(kept: Kept, folder: Path):
    folder.rmdir()
    kept.keeper.wait(PATIENCE)
    assert not is_alive(kept.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="not offered: this kernel ends nobody with his parent")
def test_a_server_goes_with_a_keeper_that_is_killed(kept: Kept):
    kept.keeper.kill()
    until(lambda: not is_alive(kept.pid), "the end of the server")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_the_terminals_signals_are_for_the_run(kept: Kept, number: signal.Signals):
    os.kill(kept.keeper.pid, number)
    assert not kept.has_ended
    kept.end(signal.SIGKILL, PATIENCE)  # were the first signal deadly, its status would not be the server's
    assert kept.keeper.returncode == 256 - signal.SIGKILL


@pytest.mark.parametrize("ended", ["with its run", "with its keeper"])
def test_a_server_that_hears_only_one_signal_is_ended_by_that(
    run: subprocess.Popen[bytes], folder: Path, tmp_path: Path, ended: str
):
    if ended == "with its keeper" and sys.platform != "linux":
        pytest.skip("not offered: this kernel ends nobody with his parent")
    deaf = "trap '' QUIT TERM INT; echo deaf; while :; do sleep 0.1; done"
    kept = Kept(["sh", "-c", deaf], tmp_path / "log", run.pid, folder, by=signal.SIGKILL)
    until(lambda: "deaf" in (tmp_path / "log").read_text(), "the trap")
    began = time.monotonic()
    if ended == "with its run":
        run.kill()
    else:
        kept.keeper.kill()
    kept.keeper.wait(PATIENCE)
    until(lambda: not is_alive(kept.pid), "the end of the server")
    assert time.monotonic() - began < ENDS_WITHIN


def test_a_keeper_goes_with_its_server(kept: Kept, folder: Path):
    kept.end(signal.SIGKILL, PATIENCE)
    assert kept.has_ended
    assert folder.exists(), "the run lives: what the server left is still of use"


def test_a_program_that_is_not_there_is_an_error_with_its_name(tmp_path: Path):
    with pytest.raises(RuntimeError, match="/no/such/server"):
        Kept(["/no/such/server"], tmp_path / "log", os.getpid(), tmp_path)


def test_a_server_is_never_run_as_root(kept: Kept):
    if Path("/proc/self").exists():
        user = Path(f"/proc/{kept.pid}").stat().st_uid
    else:
        user = int(subprocess.check_output(["ps", "-o", "uid=", "-p", str(kept.pid)]))
    assert user == server_identity().get("user", os.geteuid()) != 0


def test_a_process_that_ended_and_was_not_asked_after_is_not_alive():
    with subprocess.Popen(["true"]) as process:
        until(lambda: not is_alive(process.pid), "the end of a process")
        assert process.returncode is None
    assert is_alive(os.getpid())
