"""A PostgreSQL server of the test's own that crashes, is stopped, or loses single backends, under load."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tessera.model.states import State
from tests.faults.rig import Process, Rig
from tests.servers import postgres

pytestmark = [pytest.mark.store("postgresql"), pytest.mark.timeout(240)]

MIX = {"nap": 6, "doze": 4, "stumble": 2}
STRIKES = int(os.environ.get("TESSERA_TEST_STRIKES", "5"))
"""How often the server is struck; the long form says 20."""
BACK_WITHIN = 2.0
"""Seconds from the port answering again to the next claim."""


@pytest.mark.capability("R1", "R7")
def test_no_acknowledged_job_is_lost_and_workers_go_on_when_the_server_crashes(tmp_path: Path) -> None:
    """T-restart. INV-1, INV-2, INV-5, INV-37: no process is restarted, no outage is charged as a crash."""
    if not postgres.is_installed():
        pytest.skip("no PostgreSQL is installed")
    (tmp_path / "server").mkdir()
    with postgres.PrivatePostgres(tmp_path / "server") as server, Rig(tmp_path, url=server.url) as rig:
        workers = [rig.worker(lease_seconds=3) for _ in range(3)]
        producers = [rig.producer(MIX, rate=10) for _ in range(2)]
        rig.until(lambda: all(_claims(worker) for worker in workers), "every worker has work")
        gaps = []
        for strike in range(STRIKES):
            rig.own.note("struck")
            if strike % 3 == 2:
                backends = server.backends("tessera")
                for pid in rig.random.sample(backends, min(3, len(backends))):
                    with suppress(ProcessLookupError):  # the server ends all others and recovers
                        os.kill(pid, signal.SIGKILL)
                server.wait_until_it_answers()
            elif strike % 3 == 1:
                server.kill()
                time.sleep(rig.random.uniform(0.1, 1.0))
                server.start()
            else:
                server.stop("immediate")
                time.sleep(rig.random.uniform(0.1, 1.0))
                server.start()
            answers_at, before = time.monotonic(), sum(map(_claims, workers))
            rig.until(partial(_is_more, workers, before), "somebody claims again")
            gaps.append(time.monotonic() - answers_at)
            time.sleep(1)
        rig.stop(*producers)
        rig.drain()
        rig.stop(*workers)
        _, rows = rig.check()
        rig.report(
            jobs=len(rows),
            strikes=STRIKES,
            slowest_return=max(gaps),
            crashes_counted=sum(row.crashes for row in rows.values()),
            machine_late=rig.pulse.worst_seconds,
        )
        assert max(gaps) <= BACK_WITHIN + rig.pulse.worst_seconds
        assert all(row.state is not State.QUARANTINED for row in rows.values())


def _is_more(workers: list[Process], before: int) -> bool:
    return sum(map(_claims, workers)) > before


def _claims(worker: Process) -> int:
    return sum(event.what == "claimed" for event in worker.events())
