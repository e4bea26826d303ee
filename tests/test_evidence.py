"""The capability table says yes where a marked test ran and passed, and nowhere else."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.evidence import VARIABLE
from tests.shape.source_rules import ROOT

LISTED = """
[P]
title = "Producing"
P1 = "typed enqueue"
P3 = "transactional enqueue"
P4 = "HTTP enqueue"

[absent.memory]
P3 = "there is no transaction to join"
"""


def load() -> Any:
    """The generator: a script, not a module of any package."""
    spec = importlib.util.spec_from_file_location("generator", ROOT / "docs" / "generate_capabilities.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ran(ids: str, stores: str, outcome: str = "passed", test: str = "tests/a.py::test_it") -> str:
    """One line of the record."""
    return json.dumps({"test": test, "ids": ids.split(), "stores": stores.split(), "outcome": outcome})


class Project:
    """A folder with a list of capabilities, and the generator working on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.generator = load()
        self.generator.ROOT = folder
        self.generator.RECORD = folder / ".test-evidence"
        self.generator.PAGE = self.page = folder / "docs" / "capabilities.md"
        self.generator.TABLE = self.table = folder / "capabilities.json"
        (folder / "docs").mkdir()
        (folder / "docs" / "capabilities.toml").write_text(LISTED)

    def generate(self, *lines: str, check: bool = False) -> int:
        """Write or check after a run with this record; the exit status."""
        self.generator.RECORD.write_text("".join(f"{line}\n" for line in lines))
        status: int = self.generator.main(["--check"] if check else [])
        return status

    @property
    def cells(self) -> dict[str, Any]:
        """Capability -> store -> cell."""
        rows = json.loads(self.table.read_text())["capabilities"]
        return {name: row["stores"] for name, row in rows.items()}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


# The generator ----------------------------------------------------------------------------------------------


def test_a_cell_names_a_test_that_passed_there_gives_a_reason_or_is_empty(project: Project):
    lines = [
        ran("P1", "memory sqlite", test="tests/b.py::test_b"),
        ran("P1", "sqlite", test="tests/a.py::test_a"),
    ]
    assert project.generate(*lines) == 0
    assert project.cells == {
        "P1": {"memory": {"yes": "tests/b.py::test_b"}, "sqlite": {"yes": "tests/a.py::test_a"}},
        "P3": {"memory": {"no": "there is no transaction to join"}},
        "P4": {},
    }
    page = project.page.read_text()
    assert "## Producing" in page
    assert "| P1 | typed enqueue | **yes** `b.py::test_b` | **yes** `a.py::test_a` |" in page
    assert "| P3 | transactional enqueue | no: there is no transaction to join |  |" in page
    assert "| P4 | HTTP enqueue |  |  |" in page


def test_what_is_there_in_part_says_what_it_lacks(project: Project, capsys: pytest.CaptureFixture[str]):
    listed = project.folder / "docs" / "capabilities.toml"
    listed.write_text(LISTED + '\n[partial]\nP4 = "a proxy"\n')
    assert project.generate(ran("P4", "sqlite")) == 0
    assert project.cells["P4"] == {"sqlite": {"part": "tests/a.py::test_it", "lacks": "a proxy"}}
    assert "| P4 | HTTP enqueue |  | **in part** `a.py::test_it`; lacks a proxy |" in project.page.read_text()
    assert project.generate(ran("P1", "sqlite")) == 1
    assert "[partial] names 'P4', which no test shows" in capsys.readouterr().err


def test_an_id_that_is_not_listed_is_refused(project: Project, capsys: pytest.CaptureFixture[str]):
    assert project.generate(ran("P1", "sqlite"), ran("P99", "sqlite")) == 1
    assert "marked 'P99', which docs/capabilities.toml does not list" in capsys.readouterr().err


def test_a_marked_test_that_failed_is_no_evidence_and_no_success(
    project: Project, capsys: pytest.CaptureFixture[str]
):
    assert project.generate(ran("P1", "sqlite", "failed")) == 1
    assert "tests/a.py::test_it is marked P1 and failed" in capsys.readouterr().err
    assert project.cells["P1"] == {}


def test_a_failure_is_told_even_where_another_test_passed(project: Project):
    assert (
        project.generate(ran("P1", "sqlite"), ran("P1", "sqlite", "failed", test="tests/b.py::test_b")) == 1
    )


def test_a_cell_whose_tests_did_not_run_is_not_claimed(project: Project, capsys: pytest.CaptureFixture[str]):
    assert project.generate(ran("P1", "memory"), ran("P1", "sqlite", "skipped")) == 1
    assert "is marked P1 and did not run on sqlite" in capsys.readouterr().err
    assert set(project.cells["P1"]) == {"memory"}
    assert project.generate(ran("P1", "memory sqlite"), ran("P1", "sqlite", "skipped")) == 0


def test_a_skip_on_a_store_that_lacks_the_capability_is_right(project: Project):
    assert project.generate(ran("P3", "memory", "skipped"), ran("P3", "sqlite")) == 0


def test_a_store_cannot_show_what_it_is_said_to_lack(project: Project, capsys: pytest.CaptureFixture[str]):
    assert project.generate(ran("P3", "memory")) == 1
    assert "memory is said to lack P3, yet tests/a.py::test_it passed on it" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["page", "table"])
def test_check_refuses_what_the_run_does_not_show_and_writes_nothing(
    project: Project, capsys: pytest.CaptureFixture[str], file: str
):
    project.generate(ran("P1", "sqlite"))
    assert project.generate(ran("P1", "sqlite"), check=True) == 0
    assert project.generate(ran("P1", "sqlite"), ran("P4", "sqlite"), check=True) == 1
    path: Path = getattr(project, file)
    path.write_text("edited by hand")
    assert project.generate(ran("P1", "sqlite"), check=True) == 1
    assert f"{path.relative_to(project.folder)} is not what the last run shows" in capsys.readouterr().err
    assert path.read_text() == "edited by hand"


def test_check_refuses_a_page_that_is_not_there(project: Project):
    assert project.generate(ran("P1", "sqlite"), check=True) == 1
    assert not project.page.exists()


def test_without_a_run_there_is_nothing_to_say(project: Project, capsys: pytest.CaptureFixture[str]):
    assert project.generator.main([]) == 1
    assert "make test" in capsys.readouterr().err


def test_every_mark_of_this_project_is_listed():
    """Of the tests that are here now; the generator sees those that ran."""
    generator = load()
    listed = generator.tomllib.loads((ROOT / "docs" / "capabilities.toml").read_text())
    names = {name for group in listed.values() for name in group}
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    marks = [mark for text in texts for mark in re.findall(r"mark\.capability\(([^)]*)\)", text)]
    marked = {name for mark in marks for name in re.findall(r'"(\w+)"', mark)}
    assert len(marked) > 50
    assert marked <= names


# The record -------------------------------------------------------------------------------------------------

SESSION = """
import pytest

P1, P3 = pytest.mark.capability("P1"), pytest.mark.capability("P3")

@P1
@P3
@pytest.mark.parametrize("rig", ["memory-blocking", "sqlite_async", "postgresql-blocking", "pgbouncer-async"])
def test_by_parameter(rig): pass

@P1
@pytest.mark.store("sqlite")
def test_by_mark(): pass

@P1
def test_on_no_store(): pass

@P1
def test_fails(): assert False

@P1
def test_skips(): pytest.skip("not today")

@P1
@pytest.mark.skip(reason="not today")
def test_never_begins(): pass

@pytest.fixture
def broken(): raise OSError

@P1
def test_without_its_fixture(broken): pass

@pytest.fixture
def left_behind():
    yield
    raise OSError

@P1
def test_leaves_a_mess(left_behind): pass

def test_unmarked(): pass
"""


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, str, str]]:
    """What one session with two processes wrote: (test, ids, stores, outcome)."""
    folder = tmp_path_factory.mktemp("session")
    (folder / "conftest.py").write_text(
        "from tests.evidence import install\ndef pytest_configure(config): install(config)\n"
    )
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  capability(id)\n  store(name)\n")
    (folder / "test_one.py").write_text(SESSION)
    engine = folder / "tests" / "engine"
    engine.mkdir(parents=True)
    (engine / "test_two.py").write_text(
        "import pytest\n@pytest.mark.capability('P1')\ndef test_by_folder(): pass\n"
    )
    ours = ("COVERAGE_", "PYTEST_", "TESSERA_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", str(folder)],
        cwd=folder,
        env=inherited | {"PYTHONPATH": str(ROOT), VARIABLE: str(folder / "record")},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert "1 failed, 9 passed, 2 skipped, 2 errors" in done.stdout, done.stdout
    entries = [json.loads(line) for line in (folder / "record").read_text().splitlines()]
    return sorted(
        (
            entry["test"].partition("::")[2],
            " ".join(entry["ids"]),
            " ".join(entry["stores"]),
            entry["outcome"],
        )
        for entry in entries
    )


def test_a_test_counts_for_the_stores_it_ran_on(record: list[tuple[str, str, str, str]]):
    assert [line for line in record if "_by_" in line[0] or "_no_store" in line[0]] == [
        ("test_by_folder", "P1", "memory", "passed"),
        ("test_by_mark", "P1", "sqlite", "passed"),
        ("test_by_parameter", "P1 P3", "memory", "passed"),
        ("test_by_parameter", "P1 P3", "postgresql", "passed"),
        ("test_by_parameter", "P1 P3", "postgresql", "passed"),  # by way of PgBouncer
        ("test_by_parameter", "P1 P3", "sqlite", "passed"),
        ("test_on_no_store", "P1", "", "passed"),
    ]


def test_what_failed_or_did_not_run_is_on_record_too(record: list[tuple[str, str, str, str]]):
    assert [(test, outcome) for test, _, _, outcome in record if outcome != "passed"] == [
        ("test_fails", "failed"),
        ("test_leaves_a_mess", "failed"),
        ("test_never_begins", "skipped"),
        ("test_skips", "skipped"),
        ("test_without_its_fixture", "failed"),
    ]


def test_a_test_without_a_mark_is_not_on_record(record: list[tuple[str, str, str, str]]):
    assert "test_unmarked" not in {test for test, *_ in record}
