"""The tour names functions; each must stand in a file that its stop links to."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

TOUR = ROOT / "docs" / "tour.md"

_STOP = re.compile(r"^## (?=\d|Where)", re.MULTILINE)
_LINK = re.compile(r"\]\((\.\./src/[^)]+\.py)\)")
_NAME = re.compile(r"`([A-Za-z_][\w.]*)\(\)`")


def stops(text: str) -> dict[str, str]:
    """Heading -> text of the stop."""
    return {part.partition("\n")[0]: part for part in _STOP.split(text)[1:]}


def defined(path: Path) -> set[str]:
    """Functions of a module, methods with their class."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


def missing_names(stop: str, folder: Path) -> list[str]:
    """Names in a stop that none of its files defines."""
    there: set[str] = set()
    for link in _LINK.findall(stop):
        there |= defined(folder / link)
    return [name for name in _NAME.findall(stop) if name not in there]


STOPS = stops(TOUR.read_text(encoding="utf-8"))


@pytest.mark.parametrize("heading", list(STOPS))
def test_every_function_of_a_stop_is_in_its_files(heading):
    assert missing_names(STOPS[heading], TOUR.parent) == []


def test_every_stop_names_what_happens_there():
    numbered = [heading for heading in STOPS if heading[0].isdigit()]
    assert 8 <= len(numbered) <= 10
    assert all(_NAME.findall(STOPS[heading]) for heading in numbered)


def test_a_name_that_is_gone_is_found(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("class A:\n    def b(self): ...\ndef c(): ...\n")
    stop = "see [a.py](../src/a.py): `A.b()`, `c()`, `d()`, `A.c()`"
    (tmp_path / "docs").mkdir()
    assert missing_names(stop, tmp_path / "docs") == ["d", "A.c"]
