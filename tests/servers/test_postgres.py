"""A private PostgreSQL starts, stops, crashes and comes back as it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.servers import postgres
from tests.servers.postgres import PrivatePostgres
from tests.servers.programs import free_port, is_alive, is_listening, why_not_installed
from tests.servers.test_keeper import until
from tests.shape.source_rules import ROOT

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not postgres.is_installed(), reason=f"no PostgreSQL: {why_not_installed('postgresql')}"
    ),
]

KILLED_WITH_ITS_SERVER = """
import os, signal, sys
from tests.servers.postgres import PrivatePostgres
with PrivatePostgres() as server:
    print(server.pid, server.port, server.folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivatePostgres]:
    with PrivatePostgres(tmp_path_factory.mktemp("server")) as server:
        yield server


def ask(server: PrivatePostgres, query: str) -> object:
    with psycopg.connect(server.url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        return None if row is None else row[0]


def test_a_server_starts_and_stops_ten_times_in_a_row(server: PrivatePostgres):
    for _ in range(10):
        pid = server.pid
        assert pid is not None
        assert ask(server, "SELECT 1") == 1
        server.stop()
        assert server.pid is None
        assert not is_alive(pid)
        assert not is_listening(server.port)
        server.start()


@pytest.mark.parametrize("end", ["fast", "immediate", "kill"])
def test_what_was_committed_is_there_after_every_end(server: PrivatePostgres, end: str):
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (how text)")
        connection.execute("INSERT INTO kept VALUES (%s)", (end,))
        if end == "kill":
            server.kill()
        else:
            server.stop(end)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    server.start()
    assert ask(server, f"SELECT count(*) FROM kept WHERE how = '{end}'") == 1


def test_a_restart_keeps_the_address(server: PrivatePostgres):
    started = ask(server, "SELECT pg_postmaster_start_time()")
    server.restart("immediate")
    assert ask(server, "SELECT pg_postmaster_start_time()") != started


def test_commits_of_a_private_server_wait_for_the_disk(server: PrivatePostgres):
    assert ask(server, "SHOW fsync") == "on"
    assert ask(server, "SHOW synchronous_commit") == "on"


def test_settings_are_the_servers(tmp_path: Path):
    with PrivatePostgres(tmp_path / "other", max_connections="7") as other:
        assert ask(other, "SHOW max_connections") == "7"


def test_a_server_that_cannot_start_says_why(tmp_path: Path):
    server = PrivatePostgres(tmp_path / "odd", max_connections="odd")
    with pytest.raises(RuntimeError, match="max_connections"):
        server.start()


def test_a_server_and_its_folder_go_with_a_process_that_is_killed():
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WITH_ITS_SERVER], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, port, folder = done.stdout.split()
    until(lambda: not is_alive(int(pid)), "the end of the server")
    until(lambda: not Path(folder).exists(), "the end of its folder")
    assert not is_listening(int(port))


def test_ports_are_none_that_outgoing_connections_get():
    port = free_port()
    assert port < 32_768
    assert not is_listening(port)


def test_backends_are_known_by_the_name_of_their_application(server: PrivatePostgres):
    with psycopg.connect(server.url, application_name=f"looked-for-{os.getpid()}") as connection:
        assert server.backends(f"looked-for-{os.getpid()}") == [connection.info.backend_pid]
