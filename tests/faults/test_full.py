"""A disk that fills up while jobs run, and has room again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tessera.model.states import State
from tests.faults import filling
from tests.faults.rig import Rig

pytestmark = [pytest.mark.store("sqlite"), pytest.mark.timeout(90)]

DISK_MIB = 12


def _may_mount() -> bool:
    asked = (
        subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
        if os.name == "posix"
        else None
    )
    return asked is not None and asked.returncode == 0


@pytest.mark.capability("P22")
@pytest.mark.parametrize("disk", ["tmpfs", "file-size-limit"])
def test_on_a_full_disk_new_jobs_are_refused_running_ones_finish_and_all_goes_on_when_there_is_room(
    disk: str, tmp_path: Path
) -> None:
    """T-full. INV-1, INV-33."""
    if disk == "tmpfs" and not _may_mount():
        pytest.skip(
            "not offered: a mount namespace of its own; the case with a limit of file size ran instead"
        )
    small = tmp_path / "small"
    small.mkdir()
    mounts = f'mount -t tmpfs -o size={DISK_MIB}m tmpfs {small} && exec "$@"'
    within = ["unshare", "-m", "sh", "-c", mounts, "sh"] if disk == "tmpfs" else []
    database, copy = small / "work.db", tmp_path / "copy.db"
    with Rig(tmp_path, database=database, within=within) as rig:
        worker = rig.worker(queues=["gate"], lease_seconds=2, concurrency=filling.RUNNING)
        plan = filling.Plan(
            url=rig.url,
            database=str(database),
            gate=str(tmp_path / "gate"),
            folder=str(tmp_path),
            copy=str(copy),
            worker=worker.pid,
            is_small=disk == "tmpfs",
        )
        scenario = rig.start("filling", plan)
        status = scenario.wait()
        assert status == 0, f"{rig.log_of(scenario)}\nthe worker said:\n{rig.log_of(worker)}"
        assert worker.is_alive
        rig.stop(worker)
        rig.database, rig.url = copy, f"sqlite:///{copy}"
        events, rows = rig.check({"carry": State.AVAILABLE})
        mine = [event for event in events if event.who == scenario.name]
        marks = {event.how: event.number for event in mine if event.what == "marked"}
        rig.report(
            disk=disk,
            taken_before_full=sum(event.what == "acked" and event.kind == "carry" for event in mine),
            refused=sum(event.what == "refused" for event in mine),
            taken_again_after_ms=marks["taken again"],
        )
        assert set(marks) == {"finished while full", "taken again", "copied"}
        assert any(event.what == "refused" and event.how == "StoreFull" for event in mine)
        assert len(rows) == sum(event.what == "acked" for event in mine), "a refused job is there"
        assert sum(row.crashes for row in rows.values()) == 0
