"""What is installed is found; what is not is installed only where that is allowed, and once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.servers import programs


class Machine:
    """A machine without the program, until its package is installed."""

    def __init__(self) -> None:
        self.installed: list[str] = []
        self.brings_it = True

    def find(self, name: str) -> str | None:
        return f"/usr/sbin/{name}" if self.installed and self.brings_it else None

    def apt_get(self, package: str) -> None:
        self.installed.append(package)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Where root may install, and is allowed to."""
    machine = Machine()
    monkeypatch.setattr(programs, "_find", machine.find)
    monkeypatch.setattr(programs, "_apt_get", machine.apt_get)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setenv("TESSERA_TEST_INSTALL", "1")
    return machine


def test_what_is_missing_is_installed_once(machine: Machine):
    assert [programs.program("pgbouncer", "pgbouncer") for _ in range(2)] == ["/usr/sbin/pgbouncer"] * 2
    assert machine.installed == ["pgbouncer"]


@pytest.mark.parametrize("value", ["", "0", None])
def test_nothing_is_installed_unasked(machine: Machine, monkeypatch: pytest.MonkeyPatch, value: str | None):
    if value is None:
        monkeypatch.delenv("TESSERA_TEST_INSTALL")
    else:
        monkeypatch.setenv("TESSERA_TEST_INSTALL", value)
    assert programs.program("pgbouncer", "pgbouncer") is None
    assert machine.installed == []
    assert "TESSERA_TEST_INSTALL=1" in programs.why_not_installed("pgbouncer")


def test_only_root_installs(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert programs.program("pgbouncer", "pgbouncer") is None
    assert machine.installed == []
    assert "install pgbouncer yourself" in programs.why_not_installed("pgbouncer")


def test_a_package_that_did_not_come_is_named(machine: Machine):
    machine.brings_it = False
    assert programs.program("initdb", "postgresql") is None
    assert programs.why_not_installed("postgresql") == "apt-get install postgresql brought none"


def test_the_newest_version_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for version in ("9.6", "15", "14"):
        folder = tmp_path / version / "bin"
        folder.mkdir(parents=True)
        (folder / "initdb").touch()
    monkeypatch.setattr(programs, "PLACES", (f"{tmp_path}/*/bin",))
    assert programs.program("initdb", "postgresql") == f"{tmp_path}/15/bin/initdb"
