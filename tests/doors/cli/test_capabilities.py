"""``tessera capabilities``: the column of a store from the packaged table."""

import json

import pytest

from tessera.doors.cli import capabilities

TABLE = {
    "capabilities": {
        "P7": {
            "title": "tags",
            "stores": {"sqlite": {"yes": "tests/a.py::test_tags"}, "memory": {"yes": "x"}},
        },
        "F4": {"title": "wakeups", "stores": {"sqlite": {"no": "polls"}}},
        "H5": {
            "title": "retries",
            "stores": {"sqlite": {"part": "tests/b.py::test_retry", "lacks": "a function of the error"}},
        },
        "P4": {"title": "HTTP enqueue", "stores": {}},
    }
}


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """Puts a table where the package's would be."""

    def put(text):
        (tmp_path / capabilities.TABLE).write_text(text, encoding="utf-8")

    monkeypatch.setattr(capabilities, "files", lambda package: tmp_path)
    return put


def test_the_column_of_the_urls_store_is_told(bare, packaged):
    packaged(json.dumps(TABLE))
    found = bare("capabilities", "sqlite:///any.db", "--json").json
    assert found["store"] == "sqlite"
    assert [(row["id"], row["answer"], row["why"]) for row in found["capabilities"]] == [
        ("P7", "yes", "tests/a.py::test_tags"),
        ("F4", "no", "polls"),
        ("H5", "in part", "lacks a function of the error"),
        ("P4", "", ""),
    ]


def test_people_see_what_is_built_and_the_sums(bare, packaged):
    packaged(json.dumps(TABLE))
    answer = bare("capabilities", "sqlite:///any.db")
    assert "tags" in answer.out
    assert "HTTP enqueue" not in answer.out
    assert answer.err == "sqlite: 1 offered, 1 in part, 1 not offered, 1 not built\n"
    assert "HTTP enqueue" in bare("capabilities", "sqlite:///any.db", "--all").out


def test_without_a_url_the_settings_store_is_meant_and_nothing_is_opened(bare, packaged, tmp_path):
    packaged(json.dumps(TABLE))
    assert bare("capabilities", "--json", TESSERA_URL="memory://").json["store"] == "memory"
    assert bare("capabilities", "--json").json["store"] == "sqlite"
    assert list(tmp_path.glob("*.db")) == []


def test_a_build_without_the_table_says_how_it_is_made(bare, packaged):
    answer = bare("capabilities")
    assert answer.status == 1
    assert "made by a full run of the tests" in answer.err


def test_a_broken_table_is_told(bare, packaged):
    packaged('{"capabilities": 3}')
    answer = bare("capabilities")
    assert answer.status == 1
    assert "is broken" in answer.err


def test_a_url_that_leads_nowhere_is_a_wrong_setting(bare, packaged):
    packaged(json.dumps(TABLE))
    assert bare("capabilities", "gopher://x").status == 5
