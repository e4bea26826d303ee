"""No wake-up is lost between processes, whatever stands in between and whoever dies."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from itertools import count

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tessera import seam
from tessera.store.postgres import signals as module
from tessera.store.postgres.server import Server
from tessera.store.postgres.signals import Signals
from tests.servers.run import pgbouncer_url
from tests.servers.schemas import direct_url
from tests.store.postgres.driver_rig import PATIENCE, until

_numbers = count()
Open = Callable[..., Signals]


@pytest.fixture
def channel() -> str:
    return f"tessera_test_{os.getpid()}_{next(_numbers)}"


@pytest.fixture
def opened(channel: str) -> Iterator[Open]:
    """Opens signals on the channel of this test, as other processes would, and closes them."""
    found: list[Signals] = []

    def open_one(url: str = "", *, listen: bool = True) -> Signals:
        found.append(Signals(url or direct_url(), channel, listen=listen))
        return found[-1]

    yield open_one
    for one in found:
        one.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "tessera-postgres-signals"]


@pytest.fixture
def listener(channel: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(direct_url(), autocommit=True) as connection:
        connection.execute(f'LISTEN "{channel}"')
        yield connection


def listening(signals: Signals) -> Signals:
    signals.begin()
    until(lambda: signals.delivers, "what the probe sends to itself")
    return signals


def notify(channel: str, payload: str = "") -> None:
    with psycopg.connect(direct_url(), autocommit=True) as connection:
        connection.execute("SELECT pg_notify(%s, %s)", (channel, payload))


def is_heard(listener: psycopg.Connection) -> bool:
    """Whether one comes within our patience. (More than one may be in a packet: none may be left over.)"""
    return len(list(listener.notifies(timeout=PATIENCE, stop_after=1))) > 0


def owed_and_sent(listener: psycopg.Connection, channel: str) -> int:
    """How many notifications without a word came until now. (They come in the order of their commits.)"""
    notify(channel, "until now")
    count = 0
    for notice in listener.notifies(timeout=PATIENCE):
        if notice.payload == "until now":
            return count
        count += notice.payload == ""
    raise AssertionError("the marker never came")


def backends(channel: str) -> list[int]:
    with psycopg.connect(direct_url(), autocommit=True) as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
        return [pid for (pid,) in connection.execute(query, (channel,))]


def named(channel: str) -> str:
    return f"{direct_url()}&application_name={channel}"


def test_who_listens_hears_what_others_notify(opened: Open, channel: str):
    signals = listening(opened())
    rings = signals.bell.rings
    notify(channel)
    assert signals.bell.wait_blocking(PATIENCE, rings)
    assert signals.poll_seconds == float("inf")


def test_the_first_write_of_a_moment_notifies_and_the_others_owe(opened: Open, monkeypatch):
    signals = opened(listen=False)
    clock = [100.0]
    monkeypatch.setattr(seam, "monotonic", lambda: clock[0])
    assert [signals.may_notify() for _ in range(3)] == [True, False, False]
    clock[0] += module.MOMENT_SECONDS
    assert [signals.may_notify() for _ in range(2)] == [True, False]


def test_what_is_owed_is_sent_once(opened: Open, listener: psycopg.Connection):
    signals = opened(listen=False)
    for _ in range(100):
        signals.owe()
    signals.close()
    assert 1 <= owed_and_sent(listener, signals.channel) < 100


def test_what_is_owed_at_the_close_is_sent(opened: Open, listener: psycopg.Connection, monkeypatch):
    go = threading.Event()
    run = Signals._run

    def run_late(self: Signals) -> None:
        go.wait(PATIENCE)
        run(self)

    monkeypatch.setattr(Signals, "_run", run_late)
    signals = opened()
    signals.owe()
    closer = threading.Thread(target=signals.close)
    closer.start()
    until(lambda: signals._closed, "the close")  # before the thread has done anything
    go.set()
    closer.join(PATIENCE)
    assert is_heard(listener)


def test_a_writer_is_never_held_up_by_a_server_that_says_nothing(channel: str):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=2"
        signals = Signals(url, channel, listen=True)

        def write() -> None:
            for _ in range(5_000):
                signals.owe()

        writer = threading.Thread(target=write)
        writer.start()
        accepted, _ = silent.accept()  # the thread has begun to connect, and waits
        writer.join(PATIENCE)
        assert not writer.is_alive()
        accepted.close()
    signals.close()


def test_a_process_with_many_open_files_hears_too(opened: Open, channel: str):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_048:
        pytest.skip("this system does not let a process open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        signals = listening(opened())
        rings = signals.bell.rings
        notify(channel)
        assert signals.bell.wait_blocking(PATIENCE, rings)
    finally:
        for file in files:
            os.close(file)
        signals.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_after_a_lost_connection_it_rings_and_listens_again(opened: Open, channel: str, caplog):
    signals = listening(opened(named(channel)))
    rings = signals.bell.rings
    [pid] = backends(channel)
    with psycopg.connect(direct_url(), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", (pid,))
    assert signals.bell.wait_blocking(PATIENCE, rings)  # something may have been missed
    until(lambda: signals.delivers and backends(channel) not in ([], [pid]), "the second connection")
    rings = signals.bell.rings
    notify(channel)
    assert signals.bell.wait_blocking(PATIENCE, rings)
    assert [record.message[:36] for record in caplog.records] == ["signals from PostgreSQL stopped, pol"]


def test_behind_a_pooler_it_polls_and_says_so_once(opened: Open, channel: str, caplog, monkeypatch):
    monkeypatch.setattr(module, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    signals = opened(pgbouncer_url())
    probed = []
    probe = signals._probe

    def probe_and_fail_once(connection: psycopg.Connection) -> None:
        probe(connection)
        probed.append(signals.delivers)
        if len(probed) == 1:
            raise psycopg.OperationalError("lost")

    monkeypatch.setattr(signals, "_probe", probe_and_fail_once)
    signals.begin()
    until(lambda: len(probed) == 2, "a second probe")
    assert probed == [False, False]
    assert signals.poll_seconds == module.POLL_SECONDS
    assert sum("does not deliver" in record.message for record in caplog.records) == 1


def test_what_is_owed_arrives_through_a_pooler(opened: Open, listener: psycopg.Connection, caplog):
    many = [opened(pgbouncer_url(), listen=False) for _ in range(4)]
    for _ in range(10):  # more often than after which psycopg would prepare
        for signals in many:
            signals.owe()
            assert is_heard(listener)
    assert caplog.records == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_signals_of_its_own(opened: Open, channel: str, listener: psycopg.Connection):
    signals = listening(opened(named(channel)))
    [parents] = backends(channel)
    with signals._lock:  # as the parent's thread may, at any moment
        pid = os.fork()
        if pid == 0:
            code = 1
            signal.alarm(int(PATIENCE))  # a child that waits for a lock of the parent's ends, and fails
            try:
                signals.owe()
                listening(signals)
                signals.close()
                code = 0
            except BaseException:  # noqa: BLE001 - whatever it is, the child ends here and says so
                traceback.print_exc()
            finally:
                os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert is_heard(listener)
    assert parents in backends(channel)
    rings = signals.bell.rings
    notify(channel)
    assert signals.bell.wait_blocking(PATIENCE, rings)


SCRIPT = """
import sys
from tessera.store.postgres.signals import Signals
signals = Signals(sys.argv[1], sys.argv[2], listen=True)
signals.may_notify()
signals.owe()
"""


def test_a_script_that_writes_and_ends_leaves_nothing_owed(channel: str, listener: psycopg.Connection):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, direct_url(), channel], capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert owed_and_sent(listener, channel) == 1


def test_what_is_owed_waits_for_the_end_of_the_moment(
    opened: Open, listener: psycopg.Connection, monkeypatch, channel: str
):
    monkeypatch.setattr(module, "MOMENT_SECONDS", 3_600)
    signals = listening(opened())
    assert signals.may_notify()
    signals.owe()
    rings = signals.bell.rings
    notify(channel)
    assert signals.bell.wait_blocking(PATIENCE, rings)  # meanwhile it hears others at once
    assert owed_and_sent(listener, channel) == 1  # that of the others
    signals.close()  # which waits for no moment
    assert owed_and_sent(listener, channel) == 1


def test_without_listen_no_connection_is_kept_for_who_only_waits(opened: Open, channel: str, caplog):
    signals = opened(named(channel), listen=False)
    signals.begin()
    signals.begin()
    assert signals.poll_seconds == module.POLL_SECONDS
    assert backends(channel) == []
    assert [record.message for record in caplog.records] == [
        "LISTEN does not deliver here (listen=0): workers poll every 100 ms"
    ]


def test_an_end_does_not_wait_for_a_server_that_says_nothing(channel: str, monkeypatch):
    monkeypatch.setattr(module, "END_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=2"
        signals = Signals(url, channel, listen=True)
        signals.owe()
        thread = signals._thread
        assert thread is not None
        accepted, _ = silent.accept()
        signals.close()
        assert thread.is_alive()  # nobody waited for it
        accepted.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_processes_that_know_one_database_by_different_names_share_a_channel():
    names = {Server(f"postgresql://h/{name}", schema="s").signals.channel for name in ("a", "b")}
    assert len(names) == 1
    assert names != {Server("postgresql://h/a", schema="t").signals.channel}


def test_what_the_url_says_comes_before_our_defaults():
    named = conninfo_to_dict(Server("postgresql://h/a?connect_timeout=77&application_name=mine").conninfo)
    assert (named["connect_timeout"], named["application_name"]) == ("77", "mine")
    assert named["tcp_user_timeout"] == "10000"
