"""``tessera check``: whether the code fits what waits, as CI asks before a deploy."""

import itertools

import pytest

_numbers = itertools.count()

GOOD = """
@app.job
def greet(name: str = "") -> str: ...
"""


@pytest.fixture
def check(run, url, tmp_path):
    """Runs check on the code of an application."""

    def call(code, *args, **environ):
        module = f"checked_{next(_numbers)}"
        text = f"from tessera import Tessera\napp = Tessera({url!r})\n{code}"
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
        return run("check", "--app", f"{module}:app", *args, **environ)

    return call


@pytest.mark.capability("H3")
def test_code_that_fits_has_status_0(check, greet):
    greet()
    answer = check(GOOD)
    assert answer.status == 0
    assert "1 kind(s), nothing wrong" in answer.out


@pytest.mark.capability("H3")
@pytest.mark.capability("U8")
def test_a_kind_that_waits_without_a_handler_is_wrong(check, greet):
    greet()
    greet(delay=3600)
    answer = check("", "--json")
    assert answer.status == 1
    assert answer.json["problems"] == [
        "2 job(s) of the kind 'greet' wait and the application has no handler for it"
    ]


@pytest.mark.capability("U8")
def test_a_waiting_payload_that_no_longer_fits_is_wrong(check, greet):
    greet(id="x")
    greet()
    answer = check("@app.job\ndef greet(user_id: int) -> str: ...\n")
    assert answer.status == 1
    assert "2 of 2 waiting payload(s) of the kind 'greet' do not fit its handler" in answer.out
    assert check("@app.job\ndef greet(user_id: int) -> str: ...\n", "--sample", "0").status == 0


def test_jobs_that_have_ended_do_not_count(check, run, greet):
    greet(id="x")
    run("jobs", "cancel", "x")
    assert check("").status == 0


@pytest.mark.capability("H3")
def test_a_kind_declared_twice_is_refused(check):
    answer = check(GOOD + GOOD, "--json")
    assert (answer.status, answer.error["code"]) == (1, "duplicate_kind")


@pytest.mark.capability("H3")
def test_unknown_settings_are_refused_with_the_import(check):
    answer = check("1 / 0", TESSERA_CONCURENCY="3")
    assert answer.status == 5
    assert "did you mean TESSERA_CONCURRENCY?" in answer.err
    assert "division by zero" in answer.err


def test_without_code_there_is_nothing_to_check(run):
    answer = run("check")
    assert answer.status == 5
    assert "give --app MODULE:APP" in answer.err


def test_no_store_yet_is_no_problem(bare, tmp_path):
    text = f"from tessera import Tessera\napp = Tessera('sqlite:///{tmp_path}/none.db')\n"
    (tmp_path / "storeless.py").write_text(text, encoding="utf-8")
    answer = bare("check", "--app", "storeless:app")
    assert answer.status == 0
    assert "there is no store yet" in answer.err
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("reference", ["shopping.py", "shopping", "shopping.py:app", "shopping:nothing"])
def test_who_names_a_file_or_a_module_is_told_what_he_may_have_meant(bare, tmp_path, reference):
    (tmp_path / "shopping.py").write_text("from tessera import Tessera\napp = Tessera('memory://')\n")
    answer = bare("--app", reference, "check")
    assert answer.status == 5
    assert "did you mean shopping:app?" in answer.err
