"""A process of the release after this one: it knows one schema step more, and writes one field more into a
job's body, from the moment on at which no older code can meet it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from tessera.model.job import Job
from tessera.store.postgres import migrations
from tessera.store.postgres.migrations import Schema
from tessera.store.postgres.server import Server
from tessera.store.protocol import run_blocking
from tessera.store.sql import rows
from tests.faults import producer, worker
from tests.store.postgres.schema_rig import next_steps

LOOK_SECONDS = 0.1
FIELD = "note"
_BODY = rows.JOB_COLUMNS.index("body")


class Form:
    """Which form is to be written, looked up again every so often."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        name = parse_qs(parts.query)["schema"][0]
        server = Server(url.partition("?")[0], schema=name)
        self._schema = Schema(server.driver(blocking=True), name, blocking=True, steps=next_steps())
        self._is_new = False
        self._looked_at = 0.0

    def row_of_job(self, former: Callable[[Job], tuple[Any, ...]], job: Job) -> tuple[Any, ...]:
        """The columns of a job."""
        row = former(job)
        return (*row[:_BODY], self._with_note(row[_BODY]), *row[_BODY + 1 :]) if self._is_newest() else row

    def _with_note(self, body: bytes) -> bytes:
        return msgspec.msgpack.encode({**(msgspec.msgpack.decode(body) if body else {}), FIELD: "n"})

    def _is_newest(self) -> bool:
        if not self._is_new and time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._is_new = run_blocking(self._schema.form()) == len(next_steps())
            self._looked_at = time.monotonic()
        return self._is_new


def _be(main: Callable[[str], int], argument: str) -> int:
    steps = next_steps()
    migrations.our_steps = lambda: steps
    form = Form(msgspec.json.decode(argument)["url"])
    rows.row_of_job = partial(form.row_of_job, rows.row_of_job)
    return main(argument)


worker_main = partial(_be, worker.main)
producer_main = partial(_be, producer.main)
