"""Every way to end has its exit status, its words and its code; and where the settings lead to."""

import json
import subprocess
import sys

import click
import pytest

from tessera import Tessera
from tessera.doors.cli import failing
from tessera.doors.cli.opening import Door
from tessera.doors.cli.tree import COMMANDS, tree
from tessera.model import errors
from tessera.model.errors import OutcomeUnknown, StoreBusy, StoreFull, StoreUnavailable, TesseraError


@pytest.fixture
def failing_store(monkeypatch):
    """Lets every command meet an error in the store."""

    def fail(error):
        def run(self, operation):
            raise error

        monkeypatch.setattr(Tessera, "_run", run)

    return fail


def test_done_is_0(run):
    assert run("jobs", "list").status == 0


def test_refused_is_1(run, greet):
    greet(id="x")
    run("jobs", "cancel", "x")
    run("jobs", "delete", "x", "--yes")
    greet(id="y", pending=True)
    assert run("jobs", "retry", "y").status == 1


@pytest.mark.parametrize(
    "args", [["nothing"], ["jobs", "lst"], ["jobs", "list", "--sttate", "x"], ["jobs", "show"], []]
)
def test_a_wrong_usage_is_2(bare, args):
    assert bare(*args).status == 2


def test_nothing_found_is_3(run):
    answer = run("jobs", "show", "nobody")
    assert answer.status == 3
    assert answer.err == "error: no job 'nobody' in this store [not_found]\n"


@pytest.mark.parametrize("error", [StoreUnavailable(), StoreBusy(), StoreFull()])
def test_a_store_that_cannot_serve_now_is_4(run, failing_store, error):
    failing_store(error)
    answer = run("jobs", "list", "--json")
    assert (answer.status, answer.error["code"]) == (4, error.code)


def test_wrong_settings_are_5(bare):
    answer = bare("--url", "nonsense://", "jobs", "list")
    assert answer.status == 5
    assert "nonsense" in answer.err


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, click.Abort])
def test_an_interruption_is_130(run, failing_store, interruption):
    failing_store(interruption())
    assert run("jobs", "list").status == 130


def test_an_unknown_outcome_is_no_invitation_to_try_again(run, failing_store):
    failing_store(OutcomeUnknown())
    assert run("jobs", "list").status == 1


def test_every_error_of_tessera_has_a_status():
    todo = [TesseraError]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        assert failing.status_of(kind.__new__(kind)) in (1, 3, 4, 5)
    assert failing.status_of(errors.SchemaTooOld()) == 1


def test_a_typed_error_comes_without_a_traceback(run, failing_store):
    failing_store(StoreBusy("another writer holds it"))
    assert run("jobs", "list").err == "error: another writer holds it [store_busy]\n"


def test_a_mistake_of_ours_comes_with_its_traceback(run, failing_store):
    failing_store(ZeroDivisionError("oops"))
    answer = run("jobs", "list")
    assert answer.status == 1
    assert "ZeroDivisionError: oops [internal]" in answer.err.replace("\n [", " [")
    assert "Traceback" in answer.err


@pytest.mark.parametrize("args", [["jobs", "show", "nobody"], ["jobs", "lst"], ["jobs", "show"]])
def test_errors_for_programs_are_one_document_on_stderr(run, args):
    answer = run(*args, "--json")
    assert answer.out == ""
    assert set(json.loads(answer.err)["error"]) == {"code", "message"}


def test_json_may_stand_before_the_command(run, greet):
    greet(id="x")
    assert run("--json", "jobs", "show", "x").json["id"] == "x"
    assert run("jobs", "--json", "show", "x").json["id"] == "x"


def test_every_command_takes_json(bare):
    def leaves(command):
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                yield from leaves(command.get_command(context, name))
        else:
            yield command

    found = list(leaves(tree))
    assert len(found) > len(COMMANDS)
    assert all("json" in {parameter.name for parameter in command.params} for command in found)


def test_a_reader_that_goes_away_is_no_error(run, greet, url):
    for _ in range(50):
        greet()
    command = (
        f"{sys.executable} -m tessera --url '{url}' jobs list --limit 50 | head -1; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


# ------------------------------------------------------------------ which store


def test_a_mistyped_store_is_told_and_not_made(bare, tmp_path):
    answer = bare("--url", f"sqlite:///{tmp_path}/nope.db", "jobs", "list")
    assert answer.status == 5
    assert "--url: url: there is no store at" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_the_url_after_the_command_wins_over_the_one_before(bare, url, greet):
    greet(id="x")
    assert bare("--url", "memory://", "jobs", "show", "x", "--url", url).status == 0


def test_the_url_may_come_from_the_environment_and_from_the_file(bare, url, greet, tmp_path):
    greet(id="x")
    assert bare("jobs", "show", "x", TESSERA_URL=url).status == 0
    (tmp_path / "tessera.toml").write_text(f"[tessera]\nurl = '{url}'\n", encoding="utf-8")
    assert bare("jobs", "show", "x").status == 0


def test_an_application_that_is_set_names_the_store_if_nothing_else_does(bare, url, greet, tmp_path):
    greet(id="x")
    (tmp_path / "named_store.py").write_text(
        f"import tessera\napp = tessera.Tessera({url!r})\n", encoding="utf-8"
    )
    assert bare("jobs", "show", "x", TESSERA_APP="named_store:app").status == 0
    assert bare("jobs", "show", "x", TESSERA_APP="named_store:app", TESSERA_URL="memory://").status == 3


@pytest.mark.parametrize(
    "reference, code, told",
    [
        ("shop", "", "is not of the form MODULE:APP"),
        ("nowhere_at_all:app", "", "there is no module 'nowhere_at_all'"),
        ("wrong_a:app", "x = 1\n", "'wrong_a' has no 'app'"),
        ("wrong_b:app", "app = 1\n", "wrong_b:app is a int, not a Tessera"),
        ("wrong_c:app", "import nowhere_at_all\n", "cannot be imported: ModuleNotFoundError"),
        ("wrong_d:app", "1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_an_application_that_cannot_be_had_is_a_wrong_setting(bare, tmp_path, reference, code, told):
    (tmp_path / f"{reference.partition(':')[0]}.py").write_text(code, encoding="utf-8") if code else None
    answer = bare("--app", reference, "check")
    assert answer.status == 5
    assert told in answer.err


def test_an_error_of_tessera_in_the_users_module_keeps_its_own_words(bare, tmp_path):
    code = (
        "import tessera\napp = tessera.Tessera('memory://')\n@app.job\ndef a(): ...\n@app.job\ndef a(): ...\n"
    )
    (tmp_path / "twice.py").write_text(code, encoding="utf-8")
    answer = bare("--app", "twice:app", "check", "--json")
    assert (answer.status, answer.error["code"]) == (1, "duplicate_kind")


# ------------------------------------------------------------------ asking


@pytest.mark.parametrize("answer, status, state", [("y\n", 0, None), ("n\n", 130, "available")])
def test_on_a_terminal_the_person_decides(run, greet, app, monkeypatch, answer, status, state):
    greet(id="x")
    monkeypatch.setattr(Door, "is_attended", True)
    assert run("jobs", "delete", "x", typed=answer).status == status
    assert [str(job.state) for job in app.jobs.list().jobs] == ([state] if state else [])


@pytest.mark.parametrize(
    "url, status", [("sqlite://[::1", 5), (f"sqlite:///{'a' * 300}.db", 4), ("sqlite:///a%00b.db", 5)]
)
@pytest.mark.parametrize("command", ["queues list", "doctor", "migrate --dry-run", "enqueue x"])
def test_a_url_that_leads_nowhere_is_told_in_words(bare, url, status, command):
    assert bare("--url", url, *command.split()).status == status
