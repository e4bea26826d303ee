"""A worker process of these tests: ``python -m tests.faults.worker '{"url": ..., "settings": {...}}'``."""

from __future__ import annotations

import logging
import sys

import msgspec

from tessera.running import make_worker
from tessera.worker import run_until_signalled
from tests.faults import history, work


class Plan(msgspec.Struct, frozen=True):
    """What the worker is told."""

    url: str
    settings: dict[str, object]


def main(argument: str) -> int:
    """Run until a signal ends it."""
    plan = msgspec.json.decode(argument, type=Plan)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    app = work.use(plan.url, recorded=True)
    worker = make_worker(app, {"ends_process": True, **plan.settings})
    history.mine().note("lives", holder=worker.incarnation)
    try:
        return run_until_signalled(worker)
    finally:
        app.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
