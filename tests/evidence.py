"""The record of a run: which test, marked with which capability, passed on which store. The page
``docs/capabilities.md`` is made from it.

Every process of a parallel run appends lines to the file that ``TESSERA_TEST_EVIDENCE`` names; a line is one
test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

STORES = ("memory", "sqlite", "postgresql")
WORKING_ON = {
    "tests/doors/cli/": ["sqlite"],
    "tests/engine/": ["memory"],
    "tests/faults/": ["sqlite"],
    "tests/store/postgres/": ["postgresql"],
    "tests/store/sqlite/": ["sqlite"],
    "tests/worker/": ["memory"],
}
"""What the tests of a folder work on. A test of rules alone shows nothing of any store."""
VARIABLE = "TESSERA_TEST_EVIDENCE"


def marked_ids(item: pytest.Item) -> list[str]:
    """The capabilities that a test says it shows."""
    return sorted({str(name) for mark in item.iter_markers("capability") for name in mark.args})


def stores_of(item: pytest.Item) -> list[str]:
    """Where the test ran: by the mark ``store``, its parameters, or its folder."""
    named = [str(name) for mark in item.iter_markers("store") for name in mark.args]
    if named:
        return named
    callspec = getattr(item, "callspec", None)
    words = set() if callspec is None else set(str(callspec.id).replace("-", " ").replace("_", " ").split())
    found = [store for store in STORES if store in words or (store == "postgresql" and "pgbouncer" in words)]
    if found:
        return found
    return next((stores for folder, stores in WORKING_ON.items() if item.nodeid.startswith(folder)), [])


class Recorder:
    """The pytest plugin."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        ids = marked_ids(item)
        # What did not get as far as its own code, or fell down after it, is no evidence, and must be seen.
        outcome = report.outcome  # type: ignore[attr-defined]  # a hook wrapper is sent the report
        if ids and (call.when == "call" or outcome != "passed"):
            line = {
                "test": item.nodeid.split("[")[0],
                "ids": ids,
                "stores": stores_of(item),
                "outcome": outcome,
            }
            with self._path.open("a", encoding="utf-8") as record:
                record.write(json.dumps(line) + "\n")
        return report


def install(config: pytest.Config) -> None:
    """Record this run if it was asked for."""
    path = os.environ.get(VARIABLE)
    if path:
        config.pluginmanager.register(Recorder(Path(path)), "tessera-evidence")
