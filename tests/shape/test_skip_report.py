"""Skips are counted, explained and, where asked, refused. Each case is a pytest session of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shape.source_rules import ROOT
from tests.skip_report import lines_about, read_skips

CONFTEST = "from tests.skip_report import install\ndef pytest_configure(config): install(config)\n"
HONEST = "import pytest\ndef test_it(): pytest.skip('not offered: memory has no LISTEN')\n"
CURABLE = "import pytest\ndef test_it(): pytest.skip('needs a PostgreSQL server')\n"
WHOLE_MODULE = "import pytest\npytest.skip('needs psycopg', allow_module_level=True)\n"
PASSING = "def test_it(): pass\n"
EXPECTED_TO_FAIL = "import pytest\n@pytest.mark.xfail\ndef test_it(): assert False\n"


def run_session(
    folder: Path, source: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_one.py").write_text(source)
    (folder / "test_two.py").write_text(PASSING)
    ours = ("COVERAGE_", "PYTEST_", "TESSERA_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=inherited | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "xdist"])
@pytest.mark.parametrize("source", [CURABLE, WHOLE_MODULE], ids=["in a test", "of a module"])
def test_a_curable_skip_fails_the_session_that_requires_all(tmp_path, source, options):
    done = run_session(tmp_path, source, *options, TESSERA_TEST_REQUIRE="all")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "1 curable skips fail this session" in done.stdout


@pytest.mark.parametrize("source", [HONEST, PASSING, EXPECTED_TO_FAIL])
def test_what_the_store_does_not_offer_fails_nothing(tmp_path, source):
    done = run_session(tmp_path, source, TESSERA_TEST_REQUIRE="all")
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert "curable" not in done.stdout


def test_a_skip_is_only_reported_where_nothing_is_required(tmp_path):
    done = run_session(tmp_path, CURABLE)
    assert done.returncode == pytest.ExitCode.OK
    *_, before_last, last = done.stdout.rstrip().splitlines()
    assert "make test-all" in before_last
    assert "1 skipped" in last


def test_an_unknown_requirement_is_refused_before_the_first_test(tmp_path):
    done = run_session(tmp_path, PASSING, TESSERA_TEST_REQUIRE="everything")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "the one value is 'all'" in done.stderr


def test_sessions_add_their_skips_to_one_account(tmp_path):
    account = tmp_path / "skips"
    for source in (CURABLE, HONEST, PASSING):
        run_session(tmp_path, source, TESSERA_TEST_SKIPS=str(account))
    reasons = [why for _, why in read_skips(account)]
    assert reasons == ["needs a PostgreSQL server", "not offered: memory has no LISTEN"]


def test_nothing_skipped_is_said_as_well(tmp_path):
    assert lines_about(read_skips(tmp_path / "absent")) == ["skipped: nothing"]


def test_reasons_are_counted_and_the_cure_stands_last():
    lines = lines_about([("a::t", "needs Redis"), ("b::t", "needs Redis"), ("c::t", "not offered: x")])
    assert lines[0].startswith("skipped 1: not offered: x")
    assert lines[1] == "skipped 2: needs Redis [a::t and 1 more]"
    assert "make test-all" in lines[-1]


def test_an_honest_skip_needs_no_cure():
    assert len(lines_about([("c::t", "not offered: x")])) == 1
