"""The generated pages say what the commands and settings say now."""

import importlib.util

import pytest

from tests.shape.source_rules import ROOT


@pytest.mark.parametrize("name", ["cli", "settings"])
def test_the_reference_page_is_current(name):
    spec = importlib.util.spec_from_file_location(f"generate_{name}", ROOT / "docs" / f"generate_{name}.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page(), "run: make docs"
    assert generator.PAGE.name == f"{name}.md"
