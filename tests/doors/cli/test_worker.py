"""``tessera worker``: its log, its health, and real processes from start to SIGTERM."""

import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import IO

import pytest

from tessera import Tessera
from tessera.config import Settings
from tessera.doors.cli.health import HealthPort, ReadyFile, Vitals
from tessera.doors.cli.logs import JsonLines, TextLines
from tessera.engine import inspecting
from tessera.model.errors import ConfigError

CODE = """
import logging
from tessera import Tessera
from tessera.config import Settings

app = Tessera({url!r})

@app.job
def greet(name: str) -> str:
    return f"{greeting} {{name}}"
"""


def record(**extra):
    logger = logging.getLogger("tessera.worker")
    return logger.makeRecord(
        "tessera.worker", logging.WARNING, "f.py", 1, "an attempt took %d s", (3,), None, extra=extra
    )


# ------------------------------------------------------------------ the log


def test_json_lines_carry_job_kind_and_attempt():
    entry = json.loads(JsonLines().format(record(job="0190", kind="greet", attempt=2)))
    assert entry.pop("at").endswith("+00:00")
    assert entry == {
        "level": "warning",
        "logger": "tessera.worker",
        "message": "an attempt took 3 s",
        "job": "0190",
        "kind": "greet",
        "attempt": 2,
    }


def test_json_lines_hold_a_traceback_on_one_line():
    try:
        raise ValueError("no such city")
    except ValueError:
        one = record(odd=Path("/tmp"))
        one.exc_info = sys.exc_info()
    line = JsonLines().format(one)
    assert "\n" not in line
    assert "ValueError: no such city" in json.loads(line)["error"]
    assert json.loads(line)["odd"] == "/tmp"


def test_text_lines_say_which_job_they_are_about():
    text = TextLines().format(record(job="0190", kind="greet", attempt=2))
    assert text.endswith("WARNING tessera.worker: an attempt took 3 s [job=0190 kind=greet attempt=2]")


# ------------------------------------------------------------------ health


@contextmanager
def health_port(vitals):
    port = HealthPort(0, vitals)
    try:
        yield lambda path, method="GET": ask(port.port, path, method)
    finally:
        port.close()


def ask(port, path, method="GET"):
    """(status, document) of one probe."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        return response.status, json.loads(body) if response.status != 404 and body else None
    finally:
        connection.close()


@pytest.mark.parametrize(
    "alive, ready, live, readiness",
    [(True, True, 200, 200), (True, False, 200, 503), (False, False, 503, 503)],
)
def test_the_port_says_whether_it_is_alive_and_ready(alive, ready, live, readiness):
    with health_port(lambda: Vitals(alive, ready)) as probe:
        assert probe("/live") == (live, {"alive": alive, "ready": ready})
        assert probe("/ready?from=kubelet")[0] == readiness
        assert probe("/")[0] == max(live, readiness)
        assert probe("/ready", "HEAD") == (readiness, None)
        assert probe("/metrics")[0] == 404


def test_a_port_that_is_taken_is_a_wrong_setting():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="health_port"):
        HealthPort(taken.getsockname()[1], lambda: Vitals(True, True))


def test_a_client_that_says_nothing_does_not_keep_others_waiting_for_ever():
    port = HealthPort(0, lambda: Vitals(True, True))
    try:
        with socket.create_connection(("127.0.0.1", port.port)):
            assert ask(port.port, "/live")[0] == 200
    finally:
        port.close()


def test_the_file_is_there_while_the_worker_is_ready(tmp_path):
    looked, ready = threading.Semaphore(0), [False]

    def vitals():
        looked.release()
        return Vitals(True, ready[0])

    def two_looks():
        for _ in range(2):  # the second begins after the first was acted on
            assert looked.acquire(timeout=10)

    path = tmp_path / "ready"
    path.touch()  # left by a process that was killed
    file = ReadyFile(path, vitals)
    try:
        two_looks()
        assert not path.exists()
        ready[0] = True
        two_looks()
        two_looks()
        assert path.exists()
    finally:
        file.close()
    assert not path.exists()


def test_a_file_in_no_folder_is_a_wrong_setting(tmp_path):
    with pytest.raises(ConfigError, match="ready_file: there is no folder"):
        ReadyFile(tmp_path / "none" / "ready", lambda: Vitals(True, True))


# ------------------------------------------------------------------ what is refused before anything starts


def test_all_wrong_settings_are_told_at_once(bare):
    answer = bare("worker", "shop:app", "--lease", "0", "--concurrency", "many", TESSERA_GRACE="soon")
    assert answer.status == 5
    assert [line.strip() for line in answer.err.splitlines()[1:]] == [
        "- TESSERA_GRACE: grace: is 'soon'; give seconds, or a number with ms, s, m, h or d",
        "- --concurrency: concurrency: is 'many'; give a whole number",
        "- --lease: lease: is 0.0; it is a number of seconds, at least 0.2 [config_error]",
    ]


def test_a_worker_without_an_application_is_refused(bare):
    answer = bare("worker")
    assert answer.status == 5
    assert "a worker needs the application's code" in answer.err


# ------------------------------------------------------------------ real processes


def until(condition, seconds=30.0):
    """Wait for what another process does."""
    end = monotonic() + seconds
    while not (found := condition()):
        assert monotonic() < end, "it did not happen in time"
        sleep(0.02)
    return found


@pytest.fixture
def shop(tmp_path, url):
    """A module with an application; calling it writes it anew."""

    def write(greeting="Hello"):
        (tmp_path / "shop.py").write_text(CODE.format(url=url, greeting=greeting), encoding="utf-8")

    write()
    return write


@pytest.fixture
def start(tmp_path, shop):
    """Starts ``tessera worker shop:app``; whatever is left of it at the end is killed."""
    started: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []

    def launch(*args):
        log = (tmp_path / f"log{len(started)}").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "tessera", "worker", "shop:app", "--ready-file", "ready", *args],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
        started.append((process, log))
        until(lambda: (tmp_path / "ready").exists() or process.poll() is not None)
        return process

    yield launch
    for process, log in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.capability("H10")
def test_a_worker_works_and_stops_on_sigterm_with_status_0(start, tmp_path, run):
    port = free_port()
    process = start("--log-format", "json", "--log-level", "debug", "--health-port", str(port), "--name", "w")
    assert run("enqueue", "greet", "name=Ada", "--wait", "20").out == '"Hello Ada"\n'
    assert ask(port, "/ready") == (200, {"alive": True, "ready": True})
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert not (tmp_path / "ready").exists()
    entries = [json.loads(line) for line in (tmp_path / "log0").read_text().splitlines()]
    about_the_job = [entry for entry in entries if entry.get("kind") == "greet"]
    assert about_the_job
    assert {entry["attempt"] for entry in about_the_job} == {1}


def test_two_processes_are_kept_and_end_with_their_supervisor(start, app):
    process = start("--processes", "2", "--name", "w")

    def pids():
        return {worker.name: worker.pid for worker in app._run(inspecting.workers)}

    before = until(lambda: found if set(found := pids()) == {"w-1", "w-2"} else None)
    os.kill(before["w-1"], signal.SIGKILL)
    # The record of the killed one stays until it expires: the newcomer is the pid not seen before.
    until(lambda: {w.pid for w in app._run(inspecting.workers)} - set(before.values()))
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert not any(lives(worker.pid) for worker in app._run(inspecting.workers))


def test_children_stop_when_their_supervisor_is_killed(start, app):
    process = start("--processes", "1", "--reload")
    [child] = until(lambda: app._run(inspecting.workers))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: not app._run(inspecting.workers))
    until(lambda: not lives(child.pid))


def test_reload_runs_the_changed_code(start, shop, run):
    start("--reload")
    assert run("enqueue", "greet", "name=Ada", "--wait", "20").out == '"Hello Ada"\n'
    shop(greeting="Good morning")
    until(lambda: run("enqueue", "greet", "name=Ada", "--wait", "20").out == '"Good morning Ada"\n')


def test_python_m_tessera_is_the_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tessera", "--version"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0
    assert done.stdout.startswith("tessera ")


def test_the_command_loads_neither_rich_nor_a_store_nor_the_worker_to_say_its_version(tmp_path):
    code = (
        "import sys; from tessera.doors.cli import main\n"
        "try:\n    sys.argv = ['tessera', '--version']; main()\n"
        "finally:\n    print(*sorted(sys.modules))"
    )
    # Coverage, where it measures children too, would load modules of its own.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environ
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    unwanted = {
        "rich",
        "asyncio",
        "sqlite3",
        "tessera.worker",
        "tessera.doors.cli.jobs",
        "tomllib",
        "http.server",
    }
    assert not loaded & unwanted
    assert Tessera.__module__ in loaded


@pytest.mark.parametrize("queues, warns", [(["elsewhere"], True), (["default"], False), (None, False)])
def test_queues_that_no_kind_names_are_a_warning(monkeypatch, caplog, queues, warns):
    from tessera import worker
    from tessera.doors.cli import working

    class BroughtDoor:
        def code(self, reference):
            app = Tessera("memory://")
            app.job(_nothing)
            return app

    monkeypatch.setattr(worker, "run_until_signalled", lambda runs: 0)
    working._work(BroughtDoor(), Settings(app="x:app", queues=queues))  # type: ignore[arg-type]  # a door that brings its own application
    assert ("no kind of the application names the queue(s) 'elsewhere'" in caplog.text) is warns


def _nothing() -> None:
    return None
