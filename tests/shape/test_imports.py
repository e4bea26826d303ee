"""The layers hold, each contract would notice if they did not, and ``import tessera`` is cheap and quiet."""

import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

from tests.shape.source_rules import ROOT

CONTRACTS = {
    "Dependencies point one way",
    "Rules know the model only",
    "Only connect names a concrete store",
    "Rules, engine and stores know no event loop",
}

LAYOUT = [
    "app", "config", "connect", "demo", "doors.cli", "engine.claiming", "extras.otel", "kinds", "model.job",
    "rules.backoff", "seam", "store.driver", "store.memory", "store.protocol", "store.sqlite.driver",
    "testing.clock", "worker.fetcher",
]  # fmt: skip
"""Modules of a small tree with the shape of ours: dots are folders."""

PERMITTED = {
    "app": "from tessera import connect, kinds, worker",
    "connect": "from tessera.store import memory\nfrom tessera.store.sqlite import driver",
    "doors.cli": "from tessera import app, demo",
    "engine.claiming": "from tessera.rules import backoff\nfrom tessera.store import protocol",
    "rules.backoff": "from tessera.model import job",
    "seam": "import asyncio",
    "store.driver": "import asyncio",
    "store.memory": "from tessera.rules import backoff\nfrom tessera import seam",
    "store.sqlite.driver": "import asyncio",
}

VIOLATIONS = [
    ("Dependencies point one way", "model.job", "from tessera import seam"),
    ("Dependencies point one way", "engine.claiming", "from tessera import app"),
    ("Dependencies point one way", "worker.fetcher", "def later():\n    from tessera.doors import cli"),
    ("Dependencies point one way", "doors.cli", "from tessera.extras import otel"),
    ("Dependencies point one way", "surprise", "import math"),
    ("Rules know the model only", "rules.backoff", "from tessera import seam"),
    ("Only connect names a concrete store", "engine.claiming", "from tessera.store import memory"),
    ("Only connect names a concrete store", "doors.cli", "from tessera.store.sqlite import driver"),
    ("Rules, engine and stores know no event loop", "store.memory", "import asyncio"),
    ("Rules, engine and stores know no event loop", "rules.backoff", "from asyncio import Lock"),
]


def lint_imports(folder: Path) -> tuple[set[str], set[str], str]:
    """The contracts kept and broken by the package ``tessera`` that lies in ``folder``, and the report."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(
        [*command, "--config", str(ROOT / "pyproject.toml")],
        cwd=folder,
        env=quiet_environment() | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    kept = {name for name in CONTRACTS if f"{name} KEPT" in done.stdout}
    broken = {name for name in CONTRACTS if f"{name} BROKEN" in done.stdout}
    assert (done.returncode == 0) == (kept == CONTRACTS), done.stdout + done.stderr
    return kept, broken, done.stdout + done.stderr


def quiet_environment() -> dict[str, str]:
    """This environment without what makes a child interpreter load more: coverage, Python's own switches."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE_", "PYTHON"))}


def write_tree(folder: Path, sources: dict[str, str]) -> None:
    """A package ``tessera`` of these modules and of the layout's, which are empty unless given here."""
    for name in {*LAYOUT, *sources}:
        path = folder / "tessera" / Path(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(sources.get(name, ""), encoding="utf-8")
    for package in [folder / "tessera", *(folder / "tessera").rglob("*/")]:
        (package / "__init__.py").touch()


def test_the_layers_hold():
    kept, _, report = lint_imports(ROOT / "src")
    assert kept == CONTRACTS, report


def test_what_the_layout_needs_is_permitted(tmp_path):
    write_tree(tmp_path, PERMITTED)
    kept, _, report = lint_imports(tmp_path)
    assert kept == CONTRACTS, report


@pytest.mark.parametrize("contract, module, line", VIOLATIONS)
def test_each_contract_notices_a_violation(tmp_path, contract, module, line):
    write_tree(tmp_path, PERMITTED | {module: line})
    _, broken, report = lint_imports(tmp_path)
    assert contract in broken, report


# ------------------------------------------------------------------ import tessera

UNWANTED = """
    _sqlite3 sqlite3 psycopg asyncpg pymysql asyncmy MySQLdb redis valkey starlette fastapi uvicorn httpx
    aiohttp flask django sqlalchemy rich click pygments pydantic opentelemetry prometheus_client sentry_sdk
    cryptography uvloop yaml tomllib zoneinfo http.server http.client urllib.request multiprocessing
    importlib.metadata email
    tessera.doors tessera.extras tessera.testing tessera.store.sqlite tessera.store.memory
""".split()
"""What only the use of a store, a door or an extra may load."""

PROBE = """
import json, sys, threading
before = set(sys.modules)
import tessera
print(json.dumps({"modules": sorted(set(sys.modules) - before), "threads": threading.active_count()}))
"""


def probe_import() -> dict:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=quiet_environment(), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_importing_tessera_loads_no_driver_web_or_telemetry_module():
    modules = set(probe_import()["modules"])
    assert "tessera" in modules
    assert modules.isdisjoint(UNWANTED), sorted(modules.intersection(UNWANTED))


def test_importing_tessera_loads_no_third_party_package_but_msgspec():
    tops = {module.partition(".")[0] for module in probe_import()["modules"]}
    # msgspec takes typing_extensions along where it is installed; it asks for none.
    assert tops - sys.stdlib_module_names <= {"tessera", "msgspec", "typing_extensions"}


def test_importing_tessera_starts_no_thread():
    assert probe_import()["threads"] == 1


@pytest.mark.serial
def test_importing_tessera_costs_at_most_90_ms():
    """The best of nine runs each, taken in turn, so that a busy moment of the machine strikes both."""

    def run_seconds(code: str) -> float:
        started = perf_counter()
        subprocess.run([sys.executable, "-c", code], env=quiet_environment(), check=True)
        return perf_counter() - started

    run_seconds("import tessera")  # writes the byte code once
    pairs = [(run_seconds("pass"), run_seconds("import tessera")) for _ in range(9)]
    bare, loaded = (min(times) for times in zip(*pairs, strict=True))
    assert loaded - bare <= 0.090, f"bare {bare * 1000:.0f} ms, with tessera {loaded * 1000:.0f} ms"
