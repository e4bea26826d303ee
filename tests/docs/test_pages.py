"""What the pages say is so: examples run and print what is shown, links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, RUN, SHOWN, Block, agrees, blocks, pages

PAGES = {str(page.relative_to(ROOT)): page for page in pages()}
each_page = pytest.mark.parametrize("name", sorted(PAGES))

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def _run(block: Block, folder: Path) -> str:
    """What the block prints. Anything but success is a failure of the page."""
    python = Path(sys.executable)
    command = (
        ["sh", "-e", "-c", block.text]
        if block.language == "bash"
        else [str(python), "-W", "error", "-c", block.text]
    )
    # Pages are read in a wide window, without colours.
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    for name, first in (("PATH", python.parent), ("PYTHONPATH", folder)):
        environment[name] = os.pathsep.join(filter(None, (str(first), os.environ.get(name, ""))))
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, (
        f"line {block.line} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done.stdout


@each_page
def test_examples_run_and_print_what_is_shown(name, tmp_path):
    before: Block | None = None
    printed = ""
    for block in blocks(PAGES[name].read_text(encoding="utf-8")):
        if block.language == "output":
            assert before is not None, f"line {block.line}: output of nothing"
            assert before.language in RUN, f"line {block.line}: output of what does not run"
            if not before.not_run:
                assert agrees(printed, block.text), f"line {block.line}: it printed\n{printed}"
        elif block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
        elif block.language in RUN and not block.not_run:
            printed = _run(block, tmp_path)
        before = block


@each_page
def test_no_example_hides_from_being_run(name):
    for block in blocks(PAGES[name].read_text(encoding="utf-8")):
        assert block.language in RUN | SHOWN, f"line {block.line}: {block.language or 'no language'}"
        assert not block.not_run or len(block.not_run) > 10, f"line {block.line}: say why it is not run"


@each_page
def test_links_lead_somewhere(name):
    page = PAGES[name]
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith(("#", "mailto:")):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_the_state_machine_is_drawn_from_the_table():
    script = ROOT / "docs" / "generate_state_machine.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_shows_the_two_commands_before_any_other():
    first = blocks(PAGES["README.md"].read_text(encoding="utf-8"))[0]
    assert "make run" in first.text
    assert "make test" in first.text


# ------------------------------------------------------------------ the checks bite


@pytest.mark.parametrize(
    "printed, expected, is_so",
    [
        ("one\ntwo\n", "one\ntwo\n", True),
        ("one\ntwo", "one\ntwo\n", True),
        ("one\n", "one\ntwo\n", False),
        ("job 42 done\n", "job ... done\n", True),
        ("job 42\ndone\n", "job ... done\n", False),
        ("a\nb\nc\n", "a\n...\nc\n", True),
        ("a.c\n", "abc\n", False),
        ("", "", True),
    ],
)
def test_output_is_compared_with_what_is_shown(printed, expected, is_so):
    assert agrees(printed, expected) is is_so


def test_blocks_are_read_with_what_is_said_of_them():
    page = """
<!-- file: a.py -->
```python
x = 1
```

<!-- not run: needs a network -->
```bash
curl
```
```output
y
```
"""
    first, second, third = blocks(page)
    assert (first.language, first.file, first.text) == ("python", "a.py", "x = 1\n")
    assert (second.language, second.not_run) == ("bash", "needs a network")
    assert (third.language, third.file, third.not_run) == ("output", "", "")


def test_an_example_that_fails_fails_its_page(tmp_path):
    with pytest.raises(AssertionError, match="line 7 ended with 1"):
        _run(Block(7, "python", "raise SystemExit(1)\n"), tmp_path)
