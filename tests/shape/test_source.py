"""The source keeps the rules of ``source_rules``. An exception is a line in a table here, with its reason."""

import sys

import pytest

from tests.shape.source_rules import (
    SOURCE,
    all_problems,
    declared_all,
    impure_imports,
    parse,
    seam_leaks,
    source_files,
    sql_text,
    unsafe_loading,
)

SEAM = "seam.py"

ALLOWED_LEAKS: dict[tuple[str, str], str] = {}
"""(file below ``src/tessera``, full name) -> why the seam cannot serve there."""

FILES = {str(path.relative_to(SOURCE)): path for path in source_files()}
each_file = pytest.mark.parametrize("name", sorted(FILES))


def test_the_source_was_found():
    assert "__init__.py" in FILES
    assert len(FILES) > 10


@each_file
def test_clock_chance_sleep_and_spawn_stay_in_the_seam(name):
    if name == SEAM:
        return
    leaks = [found for found in seam_leaks(parse(FILES[name])) if (name, found.name) not in ALLOWED_LEAKS]
    assert leaks == [], f"{name}: use tessera.seam, or give a reason in ALLOWED_LEAKS"


def test_the_seam_is_where_the_clock_is_read():
    assert any(found.name.startswith("time.") for found in seam_leaks(parse(SOURCE / SEAM)))


def test_no_exception_outlives_its_reason():
    used = {(name, found.name) for name, path in FILES.items() for found in seam_leaks(parse(path))}
    assert set(ALLOWED_LEAKS) <= used
    assert all(len(reason) > 10 for reason in ALLOWED_LEAKS.values())


@each_file
def test_stored_bytes_never_become_code(name):
    assert unsafe_loading(parse(FILES[name])) == []


@each_file
def test_sql_stands_under_store_only(name):
    if name.startswith("store/"):
        return
    assert sql_text(parse(FILES[name])) == []


@pytest.mark.parametrize("name", sorted(name for name in FILES if name.startswith("rules/")))
def test_rules_import_the_model_and_nothing_that_acts(name):
    assert impure_imports(parse(FILES[name]), frozenset(sys.stdlib_module_names)) == []


@each_file
def test_all_is_sorted_and_literal(name):
    assert all_problems(parse(FILES[name])) == []


def test_the_package_says_what_is_public():
    assert declared_all(parse(SOURCE / "__init__.py"))
