"""Settings: who wins, where a value came from, and every mistake at once."""

import dataclasses

import pytest

from tessera import Tessera, config
from tessera.config import KNOWN, Settings, find_url, load, read, shown_url
from tessera.doors.cli.working import worker_settings
from tessera.model.errors import ConfigError
from tessera.worker.settings import WorkerSettings


@pytest.fixture
def toml(tmp_path):
    """Writes tessera.toml into the test's folder and hands the folder out."""

    def write(text, folder=tmp_path):
        (folder / "tessera.toml").write_text(text, encoding="utf-8")
        return folder

    return write


def problems_of(**said):
    """What ``load`` refuses, line by line."""
    said.setdefault("environ", {})
    said.setdefault("directory", None)
    with pytest.raises(ConfigError) as caught:
        load(**said)
    return list(caught.value.problems)


# ------------------------------------------------------------------ who wins


def test_an_argument_wins_over_the_environment_the_file_and_the_default(toml):
    folder = toml("[tessera]\nconcurrency = 2\n")
    environ = {"TESSERA_CONCURRENCY": "3"}
    assert load({"concurrency": "4"}, environ=environ, directory=folder).concurrency == 4
    assert load({}, environ=environ, directory=folder).concurrency == 3
    assert load({}, environ={}, directory=folder).concurrency == 2
    assert load({}, environ={}, directory=None).concurrency is None


def test_every_value_remembers_its_source(toml):
    folder = toml("[tessera]\nlease = '1m'\n")
    settings = load({"log_level": "debug"}, environ={"TESSERA_GRACE": "5"}, directory=folder)
    assert settings.source("lease") == str(folder / "tessera.toml")
    assert settings.source("grace") == "TESSERA_GRACE"
    assert settings.source("log_level") == "--log-level"
    assert settings.source("url") == "default"


def test_an_argument_that_was_not_given_says_nothing():
    assert load({"lease": None}, environ={"TESSERA_LEASE": "7"}, directory=None).lease == 7


def test_an_empty_variable_says_nothing():
    assert load(environ={"TESSERA_URL": ""}, directory=None).url == config.DEFAULT_URL


def test_the_nearest_file_above_the_working_directory_counts(toml, tmp_path):
    toml("[tessera]\nname = 'far'\n")
    near = tmp_path / "near"
    (near / "deep").mkdir(parents=True)
    toml("[tessera]\nname = 'near'\n", near)
    assert load(environ={}, directory=near / "deep").name == "near"


def test_a_named_file_replaces_the_search(toml, tmp_path):
    folder = toml("[tessera]\nname = 'found'\n")
    other = tmp_path / "other.toml"
    other.write_text("[tessera]\nname = 'named'\n", encoding="utf-8")
    assert load(environ={}, directory=folder, file=str(other)).name == "named"
    assert load(environ={"TESSERA_CONFIG": str(other)}, directory=folder).name == "named"


# ------------------------------------------------------------------ forms


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90", 90),
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("7d", 604_800),
        (".5", 0.5),
        (45, 45),
    ],
)
def test_spans_have_units(text, seconds):
    assert config.read_span(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-1", "5 weeks", "1e3", -2, True, None, ["1"]])
def test_what_is_no_span_is_refused(text):
    with pytest.raises(ValueError, match="give seconds"):
        config.read_span(text)


@pytest.mark.parametrize(
    "said, queues",
    [
        ("mail", ["mail"]),
        ("mail, low", ["mail", "low"]),
        ("mail=6,low", {"mail": 6.0, "low": 1.0}),
        (["mail", "low"], ["mail", "low"]),
        ({"mail": 6, "low": 1}, {"mail": 6.0, "low": 1.0}),
    ],
)
def test_queues_are_names_or_weights(said, queues):
    assert config.read_queues(said) == queues


@pytest.mark.parametrize("said", ["", "mail,", "mail=many", "mail=1,mail=2", 3, [1]])
def test_what_is_no_list_of_queues_is_refused(said):
    with pytest.raises(ValueError, match=r"give|twice"):
        config.read_queues(said)


@pytest.mark.parametrize("text, value", [("1", True), ("Yes", True), ("off", False), (False, False)])
def test_flags_may_be_words(text, value):
    assert config.read_flag(text) is value


# ------------------------------------------------------------------ mistakes


def test_all_problems_are_told_at_once_each_with_its_source(toml):
    folder = toml("[tessera]\nlease = 'soon'\nconcurency = 3\n")
    told = problems_of(
        arguments={"processes": "0"}, environ={"TESSERA_HEALTH_PORT": "http"}, directory=folder
    )
    assert told == [
        f"{folder / 'tessera.toml'}: lease: is 'soon'; give seconds, or a number with ms, s, m, h or d",
        f"{folder / 'tessera.toml'}: concurency: is no setting; did you mean 'concurrency'?",
        "TESSERA_HEALTH_PORT: health_port: is 'http'; give a whole number",
        "--processes: processes: is 0; it lies between 1 and 1000",
    ]


def test_what_a_worker_refuses_is_told_with_the_rest_and_by_the_settings_name(toml):
    folder = toml("[tessera]\nlease = 0\nstrict = true\nqueues = { mail = 2 }\nlog_format = 'xml'\n")
    with pytest.raises(ConfigError) as caught:
        worker_settings({}, {"environ": {}, "directory": folder, "file": ""})
    path = folder / "tessera.toml"
    assert [problem.partition(": is")[0].partition(": have")[0] for problem in caught.value.problems] == [
        f"{path}: log_format",
        f"{path}: queues",
        f"{path}: lease",
    ]


def test_an_unknown_key_far_from_any_name_lists_what_there_is(toml):
    [told] = problems_of(directory=toml("[tessera]\nzzz = 1\n"))
    assert "is no setting; there are: url, app, queues" in told


def test_a_misspelt_variable_is_refused():
    assert problems_of(environ={"TESSERA_CONCURENCY": "3"}) == [
        "TESSERA_CONCURENCY: is no setting; did you mean TESSERA_CONCURRENCY?"
    ]


def test_variables_that_a_platform_sets_are_left_alone():
    environ = {
        "TESSERA_PORT": "tcp://10.0.0.1:80",
        "TESSERA_SERVICE_HOST": "10.0.0.1",
        "TESSERA_TEST_URL": "x",
    }
    assert read(environ=environ, directory=None)[1] == []


def test_settings_outside_their_table_are_pointed_at(toml):
    [told] = problems_of(directory=toml("url = 'memory://'\n"))
    assert "has no table [tessera]; put url under [tessera]" in told


def test_another_programs_file_of_that_name_is_no_mistake(toml):
    assert read(environ={}, directory=toml("[other]\nx = 1\n"))[1] == []


def test_a_broken_file_is_one_problem(toml):
    [told] = problems_of(directory=toml("[tessera\n"))
    assert "tessera.toml: is not TOML" in told


def test_a_named_file_that_is_not_there_is_a_problem(tmp_path):
    [told] = problems_of(file=str(tmp_path / "none.toml"))
    assert "none.toml: cannot be read" in told


# ------------------------------------------------------------------ defaults and the application


def test_every_setting_of_a_worker_can_be_said_outside_the_code():
    not_said = {"ends_process"}  # run_worker's own
    said = {info["worker"] for info in KNOWN.values() if info["worker"]}
    assert said == set(WorkerSettings.__dataclass_fields__) - not_said


def test_defaults_of_a_worker_are_written_in_worker_settings_only():
    assert Settings().worker() == {}
    assert all(f.default is None for f in dataclasses.fields(Settings) if KNOWN.get(f.name, {}).get("worker"))


def test_what_was_said_reaches_the_worker_under_its_own_names():
    settings = load({"queues": "a,b", "strict": "true", "lease": "1m"}, environ={}, directory=None)
    assert settings.worker() == {"queues": ["a", "b"], "mode": "strict", "lease_seconds": 60.0}


def test_an_application_without_a_url_takes_the_environments(monkeypatch):
    monkeypatch.setenv("TESSERA_URL", "memory://")
    assert Tessera().url == "memory://"


def test_an_application_without_a_url_takes_the_files(monkeypatch, toml):
    monkeypatch.chdir(toml("[tessera]\nurl = 'sqlite:///file.db'\nlease = 'no business of a producer'\n"))
    assert Tessera().url == "sqlite:///file.db"


def test_an_application_with_a_url_asks_nobody(monkeypatch, toml):
    monkeypatch.chdir(toml("[tessera\n"))
    monkeypatch.setenv("TESSERA_URL", "sqlite:///other.db")
    assert Tessera("memory://").url == "memory://"


def test_making_an_application_reads_no_file(monkeypatch, toml):
    monkeypatch.chdir(toml("[tessera\n"))
    app = Tessera()
    with pytest.raises(ConfigError, match="is not TOML"):
        assert app.url


def test_the_default_url_is_a_file_in_the_working_directory(tmp_path):
    assert find_url({}, tmp_path) == "sqlite:///tessera.db"


@pytest.mark.parametrize(
    "url, shown",
    [
        ("postgresql://ada:secret@db:5432/work?x=1", "postgresql://ada:***@db:5432/work?x=1"),
        ("redis://:secret@db", "redis://:***@db"),
        ("sqlite:///work.db", "sqlite:///work.db"),
        ("postgresql://ada@db/work", "postgresql://ada@db/work"),
    ],
)
def test_a_password_is_never_shown(url, shown):
    assert shown_url(url) == shown
