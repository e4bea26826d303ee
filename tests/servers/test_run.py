"""The servers of a run are started once, shared, explained where they are missing, and gone at its end. Each
case is a pytest session of its own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import bouncer, postgres
from tests.servers.programs import is_alive, is_listening, why_not_installed
from tests.servers.test_keeper import until
from tests.shape.source_rules import ROOT

CONFTEST = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
ASKING = """
import os, pytest
from pathlib import Path
from tests.servers import run

@pytest.mark.parametrize("number", range(4))
def test_it(number, {fixture}):
    answer = {fixture}, run.run_pid(), os.getpid()
    Path("asked", str(number)).write_text(" ".join(map(str, answer)))
"""
KILLING = ASKING + "    import signal; os.kill(run.run_pid(), signal.SIGKILL)\n"
BROKEN = """
import pytest
from tests.servers import postgres, run

def breaks():
    Path("tries").open("a").write("x")
    raise OSError("no space left")

from pathlib import Path
postgres.is_installed = breaks

@pytest.mark.parametrize("number", range(4))
def test_it(number, postgres_url):
    pass
"""
NOTHING_INSTALLED = "from tests.servers import programs\nprograms._find = lambda name: None\n"
needs_postgres = pytest.mark.skipif(
    not postgres.is_installed(), reason=f"no PostgreSQL: {why_not_installed('postgresql')}"
)
needs_pgbouncer = pytest.mark.skipif(
    not bouncer.is_installed(), reason=f"no PgBouncer: {why_not_installed('pgbouncer')}"
)
pytestmark = pytest.mark.timeout(180)


class Session:
    """A pytest session in a folder of its own, with our conftest and nobody's environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.asked = folder / "asked"
        self.asked.mkdir()
        self.temporary.mkdir()

    def run(self, source: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "conftest.py").write_text(CONFTEST)
        (self.folder / "pytest.ini").write_text("[pytest]\n")
        (self.folder / "test_one.py").write_text(source)
        ours = ("COVERAGE_", "PYTEST_", "TESSERA_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        changed = {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "-n0", *options]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=inherited | changed | environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=150,
        )

    def plugin(self, source: str) -> dict[str, str]:
        """The environment in which every process of the session begins with that."""
        folder = self.folder / "plugins"
        folder.mkdir(exist_ok=True)
        (folder / "a_plugin.py").write_text(source)
        return {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "PYTEST_PLUGINS": "a_plugin"}

    def answers(self) -> list[list[str]]:
        """For each test: the URL, the run's process, the test's process."""
        return [one.read_text().split() for one in sorted(self.asked.iterdir())]

    def left(self) -> list[str]:
        """What it left in the temporary folder."""
        return [one.name for one in self.temporary.iterdir() if one.name.startswith("tessera-")]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


def port_of(url: str) -> int:
    return int(url.rpartition("/")[0].rpartition(":")[2])


@needs_postgres
@needs_pgbouncer
@pytest.mark.parametrize(
    "fixture,options", [("postgres_url", ()), ("pgbouncer_url", ("-n", "2"))], ids=["one process", "xdist"]
)
def test_all_processes_of_a_run_share_one_server_that_is_gone_when_pytest_is(
    session: Session, fixture: str, options: tuple[str, ...]
):
    done = session.run(ASKING.format(fixture=fixture), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = session.answers()
    assert len({url for url, *_ in answers}) == 1
    assert len({process for *_, process in answers}) == (2 if options else 1)
    assert not is_listening(port_of(answers[0][0]))
    assert session.left() == []


@needs_postgres
@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_no_server_and_no_folder_outlives_a_run_that_is_killed(session: Session, options: tuple[str, ...]):
    done = session.run(KILLING.format(fixture="postgres_url"), *options)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    url = session.answers()[0][0]
    until(lambda: not is_listening(port_of(url)), "the end of the server")
    until(lambda: session.left() == [], "the end of its folder")


def test_a_run_that_needs_no_server_makes_no_folder(session: Session):
    done = session.run("def test_it(): pass\n")
    assert done.returncode == 0, done.stdout
    assert session.left() == []


def test_what_dead_runs_left_is_removed_and_what_lives_is_not(session: Session):
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    old = [session.temporary / f"tessera-test-run-{dead.pid}{tail}" for tail in ("", "-ab12", "-ab12-ended")]
    living = session.temporary / f"tessera-test-run-{os.getpid()}-ab12"
    for folder in (*old, living):
        folder.mkdir()
        (folder / "postgres.url").write_text("postgresql://nobody@127.0.0.1:1/nothing")
    session.run(ASKING.format(fixture="postgres_url"), **session.plugin(NOTHING_INSTALLED))
    assert session.left() == [living.name]


@pytest.mark.parametrize(
    "fixture,options", [("postgres_url", ("-n", "2")), ("pgbouncer_url", ())], ids=["xdist", "one process"]
)
def test_without_a_server_tests_are_skipped_with_the_command_that_would_not_skip_them(
    session: Session, fixture: str, options: tuple[str, ...]
):
    done = session.run(ASKING.format(fixture=fixture), *options, **session.plugin(NOTHING_INSTALLED))
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("skipped 4: ")]
    assert "no PostgreSQL: none is installed (TESSERA_TEST_INSTALL=1" in line
    assert "TESSERA_TEST_USE_RUNNING=1" in line
    assert session.left() == []


def test_a_server_that_cannot_be_had_is_a_failure_where_everything_is_required(session: Session):
    done = session.run(
        ASKING.format(fixture="postgres_url"), TESSERA_TEST_REQUIRE="all", **session.plugin(NOTHING_INSTALLED)
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "4 curable skips fail this session" in done.stdout


def test_a_server_that_breaks_while_it_starts_is_an_error_for_all_and_tried_once(session: Session):
    done = session.run(BROKEN, "-n", "2")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert len(re.findall("^E .*no space left", done.stdout, re.MULTILINE)) == 4, done.stdout
    assert (session.folder / "tries").read_text() == "x"


@needs_postgres
def test_a_server_that_listens_is_used_only_if_that_is_allowed(session: Session, tmp_path: Path):
    with postgres.PrivatePostgres(tmp_path / "listens") as server:
        plugin = f"from tests.servers import postgres\npostgres.LISTENS_AT = {server.port}\n"
        allowed = {"TESSERA_TEST_USE_RUNNING": "1", "PGUSER": "postgres"}
        session.run(ASKING.format(fixture="postgres_url"), **allowed, **session.plugin(plugin))
        assert {url for url, *_ in session.answers()} == {server.url}
        assert session.left() == []
        assert is_listening(server.port), "it is not ours to end"
        session.run(ASKING.format(fixture="postgres_url"), **session.plugin(plugin))
        assert server.port not in {port_of(url) for url, *_ in session.answers()}


def test_a_session_inside_a_worker_has_servers_of_its_own(session: Session):
    session.run(
        ASKING.format(fixture="tmp_path"), PYTEST_XDIST_WORKER="gw0", TESSERA_TEST_RUN="tessera-test-run-1-x"
    )
    assert {pid for _, pid, *_ in session.answers()} == {process for *_, process in session.answers()}
    assert not is_alive(int(session.answers()[0][1]))
