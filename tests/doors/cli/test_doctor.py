"""``tessera doctor``: what an operator asks first, and a status that says whether something is wrong."""

import sqlite3
from contextlib import closing

import msgspec
import pytest

from tessera import Tessera, seam
from tessera.config import KNOWN
from tessera.model.changes import Group, PutRecord
from tessera.model.errors import StoreUnavailable
from tessera.model.worker import WORKER_SPACE, WorkerInfo


@pytest.fixture
def live_worker(app):
    """Writes the record of a worker that lives."""

    def write(**fields):
        info = WorkerInfo(
            "abc", name="w1", host="h", pid=7, started_at=1_800_000_000_000, version="0", **fields
        )
        put = PutRecord(WORKER_SPACE, "abc", msgspec.json.encode(info))
        app._run(lambda store: store.commit([Group(changes=(put,))]))

    return write


def test_every_setting_is_told_with_its_value_and_source(run, url):
    told = {
        setting["name"]: setting for setting in run("doctor", "--json", TESSERA_LEASE="1m").json["settings"]
    }
    assert set(told) == set(KNOWN)
    assert (told["url"]["value"], told["url"]["source"]) == (url, "--url")
    assert (told["lease"]["value"], told["lease"]["source"]) == (60.0, "TESSERA_LEASE")
    assert (told["concurrency"]["value"], told["concurrency"]["source"]) == (10, "default")


def test_a_password_in_the_url_is_not_told(bare):
    answer = bare("--url", "postgresql://ada:secret@db/work", "doctor", "--json")
    assert "secret" not in answer.out + answer.err


def test_the_store_is_described(run, app):
    facts = run("doctor", "--json").json["store"]
    assert (facts["store"], facts["reachable"]) == ("sqlite", True)
    assert facts["schema"] == facts["schema of this Tessera"] > 0
    assert facts["installation"] == app._store().installation.hex()
    assert facts["durability"].startswith("normal: an acknowledged write survives the death of the process")
    assert facts["file"].endswith("work.db")
    assert "in reserve" in facts["ballast"]
    assert abs(facts["clock ahead of this process by ms"]) < 1_000


def test_a_sound_installation_has_status_0(run):
    answer = run("doctor", "--deep")
    assert answer.status == 0
    assert "nothing is wrong" in answer.out
    assert "sound" in answer.out


def test_kinds_that_nobody_serves_and_paused_queues_are_warnings(run, greet):
    greet(queue="mail")
    run("queues", "pause", "mail")
    answer = run("doctor", "--json")
    assert answer.status == 0
    assert answer.json["work"]["unserved kinds"] == {"greet": 1}
    assert answer.json["work"]["paused queues"] == ["mail"]
    assert len(answer.json["warnings"]) == 2


def test_a_worker_that_knows_the_kind_serves_it(run, greet, live_worker):
    greet(queue="mail")
    live_worker(kinds=("greet",), queues=("mail",))
    work = run("doctor", "--json").json["work"]
    assert (work["workers alive"], work["unserved kinds"]) == (1, {})


def test_an_unhealthy_worker_is_named(run, live_worker):
    live_worker(state="unhealthy")
    assert "unhealthy workers: w1" in run("doctor").out


def test_damage_is_found_only_by_a_deep_look_and_has_status_1(run, monkeypatch, app):
    async def verify(self):
        return ["queue mail counts 3 available jobs and holds 2"]

    monkeypatch.setattr(type(app._store()), "verify", verify)
    assert run("doctor").status == 0
    answer = run("doctor", "--deep", "--json")
    assert answer.status == 1
    assert answer.json["errors"] == ["queue mail counts 3 available jobs and holds 2"]


def test_a_store_that_does_not_answer_has_status_4_and_the_settings_are_told_all_the_same(run, monkeypatch):
    def unavailable(self, operation):
        raise StoreUnavailable

    monkeypatch.setattr(Tessera, "_run", unavailable)
    answer = run("doctor", "--json")
    assert answer.status == 4
    assert answer.json["store"]["reachable"] is False
    assert answer.json["settings"]


def test_wrong_settings_have_status_5_and_are_all_told(run):
    answer = run("doctor", "--json", TESSERA_LEASE="soon", TESSERA_LOG_FORMAT="xml")
    assert answer.status == 5
    assert len(answer.json["errors"]) == 2


def test_a_missing_store_has_status_5(bare, tmp_path):
    answer = bare("doctor", "--json")
    assert answer.status == 5
    assert "there is no store at sqlite:///tessera.db" in answer.json["errors"][0]


def test_workers_are_listed(run, live_worker):
    live_worker(queues=("mail", "low"), concurrency=10, in_flight=3)
    [worker] = run("workers", "list", "--json").json["workers"]
    assert (worker["name"], worker["queues"], worker["in_flight"]) == ("w1", ["mail", "low"], 3)
    assert worker["started_at"] == "2027-01-15T08:00:00Z"
    out = run("workers", "list").out
    assert "mail, low" in out
    assert "3/10" in out


def test_no_worker_is_said(run):
    assert run("workers", "list").err == "no live worker\n"


def test_findings_come_first_and_spans_have_units(run, greet):
    greet(queue="mail")
    out = run("doctor", TESSERA_LEASE="1m").out
    assert out.startswith("warning: jobs wait whose kind no live worker knows")
    assert [line.split() for line in out.splitlines() if line.startswith("lease ")] == [
        ["lease", "60", "s", "TESSERA_LEASE"]
    ]


@pytest.fixture
def ahead(run, url):
    """The store after some process had a clock an hour ahead."""
    path = url.removeprefix("sqlite:///").partition("?")[0]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE tessera_meta SET clock = ?", [seam.now_ms() + 3_600_000])


def test_a_clock_far_ahead_is_found_and_what_to_do_is_told(run, ahead):
    answer = run("doctor", "--json")
    assert answer.status == 1
    [error] = answer.json["errors"]
    assert error.startswith(("the store's clock is 3,600 s ahead", "the store's clock is 3,599 s ahead"))
    assert "tessera doctor --reset-clock" in error


def test_a_clock_far_ahead_is_set_back_when_asked_to(run, ahead, greet):
    assert run("doctor", "--reset-clock").status == 2  # nobody there to be asked
    assert run("doctor").status == 1
    answer = run("doctor", "--reset-clock", "--yes", "--deep")
    assert answer.status == 0, answer
    assert "the store's clock was set back by 3,600 s" in answer.err or "by 3,599 s" in answer.err
    assert "not ahead; nothing was changed" in run("doctor", "--reset-clock", "--yes").err


def test_a_store_whose_clock_cannot_be_set_says_so(bare):
    answer = bare("--url", "memory://", "doctor", "--reset-clock", "--yes", "--json")
    assert answer.status == 1
    assert answer.error["code"] == "unsupported"
