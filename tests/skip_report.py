"""What was skipped, why, and the command that would not skip it.

A skip is honest in one case: the store does not offer the capability. Its reason then starts with
``not offered:`` and comes from the capability table. Any other skip means that something is missing here (a
server, a package), so the report names the cure, and ``TESSERA_TEST_REQUIRE=all`` makes the session fail.

The suite runs in several sessions (parallel, serial). Each appends its skips to the file named by
``TESSERA_TEST_SKIPS``; ``python -m tests.skip_report FILE`` prints them together, as the last lines of
``make test``.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

NOT_OFFERED = "not offered:"
REQUIRE = "TESSERA_TEST_REQUIRE"
SKIPS_FILE = "TESSERA_TEST_SKIPS"
CURES = (
    "TESSERA_TEST_USE_RUNNING=1 make test   (use servers that already listen)",
    "make test-all                          (TESSERA_TEST_INSTALL=1: install missing servers)",
)

Skip = tuple[str, str]
"""Where, and why."""


def is_honest(reason: str) -> bool:
    """Whether nothing on this machine could have made the test run."""
    return reason.startswith(NOT_OFFERED)


def is_everything_required() -> bool:
    """Whether the environment asks that a curable skip be a failure."""
    asked = os.environ.get(REQUIRE, "")
    if asked not in ("", "all"):
        raise pytest.UsageError(f"{REQUIRE}={asked!r} is not known; the one value is 'all'")
    return asked == "all"


def lines_about(skips: Iterable[Skip]) -> list[str]:
    """The report: one line a reason, those that can be cured last, then the commands that cure them."""
    places: dict[str, set[str]] = {}
    for where, why in skips:
        places.setdefault(why, set()).add(where)
    if not places:
        return ["skipped: nothing"]
    lines = []
    for why in sorted(places, key=lambda why: (not is_honest(why), why)):
        tests = sorted(places[why])
        more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
        lines.append(f"skipped {len(tests)}: {why} [{tests[0]}{more}]")
    if not all(is_honest(why) for why in places):
        lines.append("to run what was skipped:")
        lines += [f"  {cure}" for cure in CURES]
    return lines


def read_skips(path: Path) -> list[Skip]:
    """What the sessions so far have appended; nothing if none has skipped."""
    if not path.exists():
        return []
    return [tuple(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


class SkipReport:
    """The plugin: it sees the reports of all xdist workers, since it lives in the controlling process."""

    def __init__(self) -> None:
        self.skips: dict[
            Skip, None
        ] = {}  # a set that keeps the order; each worker reports a skipped module again

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.outcome == "skipped" and not hasattr(report, "wasxfail"):
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.skips[report.nodeid, text.removeprefix("Skipped: ")] = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    @property
    def curable(self) -> list[Skip]:
        return [skip for skip in self.skips if not is_honest(skip[1])]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (name := os.environ.get(SKIPS_FILE)) and self.skips:
            with Path(name).open("a", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(skip)}\n" for skip in self.skips)
        if self.curable and is_everything_required() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter):
        yield
        if not self.skips:
            return
        terminalreporter.section("skipped")
        for line in lines_about(self.skips):
            terminalreporter.write_line(line)
        if self.curable and is_everything_required():
            count = Counter(why for _, why in self.curable).total()
            terminalreporter.write_line(f"{REQUIRE}=all: {count} curable skips fail this session", red=True)


def install(config: pytest.Config) -> None:
    """Register the plugin where the reports come together; an xdist worker only passes them on."""
    is_everything_required()  # a mistyped value is an error before the first test, not after the last
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipReport(), "tessera-skip-report")


if __name__ == "__main__":
    print("\n".join(lines_about(read_skips(Path(sys.argv[1])))))
