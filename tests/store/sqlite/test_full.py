"""A disk that fills up: what runs can finish, new jobs are refused, nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
import sys

import pytest

from tessera.model.changes import Done
from tessera.model.errors import StoreFull
from tessera.store.protocol import run_blocking
from tessera.store.sqlite import ballast as ballasts
from tessera.store.sqlite import connection as connections
from tessera.store.sqlite.ballast import Ballast
from tests.store.sqlite.rig import ROOT, child, output_of

FILL = """
import sys
from tests.store.sqlite.rig import *
from tessera.model.changes import After, Edits, EditJob
from tessera.model.errors import StoreFull
from tessera.store.sqlite import ballast
ballast.RETRY_SECONDS = float(sys.argv[2])
handle = Handle(SqliteFile(sys.argv[1]))
added, claimed, refused = [], [], 0
while not refused:
    names = [f"job{len(added) + n}" for n in range(5)]
    try:
        handle.add(*names, payload=b"x" * 1_000)
        added += names
        claimed += handle.claim(n=1).jobs
    except StoreFull:
        refused += 1
assert len(added) > 100, len(added)
print("full", len(added), len(claimed), flush=True)
done = 0
for job in claimed[:100]:                    # each finish is a commit of its own: the worst case
    edit = Group((Held(job.id, job.fence),), (EditJob(job.id, Edits(lease=After(60_000))),))
    assert handle.commit([edit]) == [Done()]
    handle.complete([job])
    done += 1
    try:
        handle.add(f"late{done}", payload=b"x" * 1_000)
    except StoreFull:
        refused += 1
    else:
        added.append(f"late{done}")
print("finished", done, "refused", refused, flush=True)
handle.close()
"""


def filled(output: str) -> tuple[int, int, int, int]:
    words = output.split()
    return int(words[1]), int(words[2]), int(words[4]), int(words[6])


def check(path: str, output: str, open_handle) -> int:
    """Everything acknowledged is there, finished or not; how many were refused."""
    added, claimed, finished, refused = filled(output)
    handle = open_handle(path=path)
    assert handle.verify() == []
    counts = {state.value: n for (_, state), n in run_blocking(handle.store.count_jobs()).items()}
    assert counts["completed"] == finished == min(claimed, 100)
    assert counts.get("running", 0) >= claimed - finished
    assert sum(counts.values()) >= added
    return refused


def test_under_a_limit_of_file_size_what_runs_can_finish(path, open_handle):
    """INV-1, INV-33, T-full: the portable form.

    Under such a limit there is always room for a ballast, so it is not put back here: the file itself would
    grow to the limit then, against which no ballast helps.
    """
    limit = 2 * 1024 * 1024

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    output = output_of(child(FILL, path, "3600", preexec_fn=limited))
    assert check(path, output, open_handle) >= 1


def _may_mount() -> bool:
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        return False
    return subprocess.run([unshare, "--mount", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _may_mount(), reason="a small disk needs root and a mount namespace")
def test_on_a_disk_of_six_megabytes_what_runs_can_finish(tmp_path, open_handle):
    """INV-1, INV-33, T-full: a real disk that is full."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size=6m tmpfs "$1" && "$2" -c "$3" "$1/work.db" 0 && cp "$1/work.db" "$4"'
        # the last handle has folded the log into the file
    )
    copy = str(tmp_path / "copy.db")
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(disk), sys.executable, FILL, copy],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
    )
    assert check(copy, output_of(process), open_handle) >= 1


LOOK_AND_CANCEL = """
import os, subprocess, sys
from tessera import Tessera

folder = sys.argv[1]
url = f"sqlite:///{folder}/work.db"
with Tessera(url) as app:
    job = app.job(kind="work")(lambda text: None).enqueue("x" * 1_000).id
with open(f"{folder}/filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4_096))
    except OSError:
        pass
cli = [sys.executable, "-m", "tessera", "--url", url]
for command in (["jobs", "list"], ["jobs", "cancel", job], ["queues", "list"], ["dead", "list"], ["doctor"]):
    told = subprocess.run([*cli, *command], capture_output=True, text=True)
    print(command, told.stderr.strip(), told.returncode, flush=True)
with Tessera(url) as app:
    try:
        app.job(kind="work")(lambda text: None).enqueue("x" * 1_000)
    except Exception as error:
        print("new", type(error).__name__)
os.unlink(f"{folder}/filler")
with Tessera(url) as app:
    print("later", app.job(kind="work")(lambda text: None).enqueue("").get().state, app.jobs.get(job).state)
"""


@pytest.mark.skipif(not _may_mount(), reason="a small disk needs root and a mount namespace")
def test_on_a_full_disk_that_no_process_works_on_an_operator_can_read_and_cancel(tmp_path):
    """INV-33: the ballast is there for him too."""
    disk = tmp_path / "disk"
    disk.mkdir()
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=6m tmpfs "$1" && "$2" -c "$3" "$1"', "sh",
         str(disk), sys.executable, LOOK_AND_CANCEL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
    )  # fmt: skip
    output = output_of(process)
    statuses = [line.rpartition(" ")[2] for line in output.splitlines() if line.startswith("[")]
    assert statuses == ["0"] * 5, output
    assert "new StoreFull" in output
    assert "later available cancelled" in output


@pytest.mark.parametrize("has_ballast", [True, False])
def test_without_room_to_open_the_file_the_ballast_goes_if_there_is_one(
    path, open_handle, has_ballast, monkeypatch
):
    """The portable form: there is room for a log only without the ballast."""
    size = 4_096 if has_ballast else 0
    first = open_handle(ballast_bytes=size)
    first.add("a")
    first.close()
    opened = connections.open_writer

    def open_writer(*args, **options):
        if not has_ballast or os.path.exists(path + ".ballast"):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
            raise error
        return opened(*args, **options)

    monkeypatch.setattr(connections, "open_writer", open_writer)
    if not has_ballast:
        with pytest.raises(StoreFull):
            open_handle(ballast_bytes=size)
        return
    handle = open_handle(ballast_bytes=size)
    assert handle.names() == ["a"]
    handle.complete(handle.claim().jobs)


# The ballast by itself --------------------------------------------------------------------------------------


@pytest.fixture
def ballast(tmp_path) -> Ballast:
    return Ballast(str(tmp_path / "work.db.ballast"), 100_000)


def test_opening_a_file_lays_the_ballast_beside_it(path, open_handle):
    open_handle(ballast_bytes=100_000)
    assert os.stat(path + ".ballast").st_size == 100_000


def test_after_the_ballast_went_more_is_allowed_only_once_it_is_back(ballast, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("tessera.seam.monotonic", lambda: now[0])
    assert ballast.put_back()
    assert ballast.allows_more()
    ballast.give_up()
    ballast.give_up()
    assert not os.path.exists(ballast.path)
    assert not ballast.allows_more()
    now[0] += ballasts.RETRY_SECONDS
    assert ballast.allows_more()
    assert os.stat(ballast.path).st_size == 100_000


def test_without_room_for_the_ballast_nothing_more_is_allowed_and_no_piece_is_left(
    ballast, tmp_path, monkeypatch
):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, before[1]))
    try:
        assert not ballast.put_back()
        assert not ballast.allows_more()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_where_no_ballast_can_be_made_for_another_reason_jobs_are_taken_without(tmp_path):
    ballast = Ballast(str(tmp_path / "absent" / "x"), 1_000)
    assert ballast.put_back()
    assert ballast.allows_more()


def test_a_ballast_of_no_bytes_is_none(tmp_path):
    ballast = Ballast(str(tmp_path / "x"), 0)
    assert ballast.put_back()
    assert ballast.allows_more()
    assert list(tmp_path.iterdir()) == []


def test_what_another_process_gave_up_counts_for_this_one(path, open_handle):
    one, two = open_handle(ballast_bytes=4_096), open_handle(ballast_bytes=4_096)
    two.add("a")
    one.file.ballast.give_up()
    two.file.ballast._next_try = one.file.ballast._next_try
    with pytest.raises(StoreFull, match="jobs that run can finish"):
        two.add("b")
    two.complete(two.claim().jobs)
    two.file.ballast._next_try = 0.0
    assert two.add("b") == [Done()]
