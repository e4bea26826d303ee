"""The generated pages say what the commands and settings say now."""

import runpy

import pytest

from tests.shape.source_rules import ROOT


@pytest.mark.parametrize("name", ["cli", "settings"])
def test_the_reference_page_is_current(name):
    generator = runpy.run_path(str(ROOT / "docs" / f"generate_{name}.py"))
    assert generator["PAGE"].name == f"{name}.md"
    assert generator["PAGE"].read_text(encoding="utf-8") == generator["page"](), "run: make docs"
