"""The report from what was measured."""

import pytest

from tessera.demo.measuring import Measured
from tessera.demo.report import (
    Totals,
    TypeTotals,
    as_markdown,
    build,
    code,
    read_report,
    show_size,
    write_report,
)


def file(path: str, size: int = 1, sha256: str = "", kind: str = "text", lines: int | None = 1) -> Measured:
    return Measured(path, size, sha256 or f"hash of {path}", kind, lines, lines)


FILES = [
    file("a", 30),
    file("b", 10, "same"),
    file("c", 10, "same"),
    file("d", 500, kind="PNG image", lines=None),
    file("e", 0, "nothing", "empty", 0),
    file("f", 0, "nothing", "empty", 0),
    Measured("g", problem="PermissionError: Permission denied"),
]


def test_totals_leave_out_what_could_not_be_read():
    report = build("/f", "found below it", FILES)
    assert report.totals == Totals(6, 550, 3, 3)
    assert [trouble.path for trouble in report.problems] == ["g"]
    assert report.files == tuple(FILES)


def test_types_are_summed_most_bytes_first():
    assert build("/f", "", FILES).types == (
        TypeTotals(1, 500, 0, 0, type="PNG image"),
        TypeTotals(3, 50, 3, 3, type="text"),
        TypeTotals(2, 0, 0, 0, type="empty"),
    )


def test_largest_come_first_and_are_few():
    many = [file(f"{n:03}", n) for n in range(50)]
    assert [f.size for f in build("/f", "", many).largest] == list(range(49, 39, -1))


def test_same_content_is_a_duplicate_unless_it_is_none():
    [copies] = build("/f", "", FILES).duplicates
    assert (copies.sha256, copies.paths) == ("same", ("b", "c"))


def test_folders_that_were_closed_are_problems():
    [trouble] = build("/f", "", [], ["a: b: Permission denied"]).problems
    assert (trouble.path, trouble.problem) == ("a: b/", "Permission denied")


def test_both_forms_are_written_and_the_json_comes_back(tmp_path):
    report = build("/f", "tracked by git", FILES)
    write_report(report, tmp_path / "r.json", tmp_path / "r.md")
    assert read_report(tmp_path / "r.json") == report
    assert (tmp_path / "r.md").read_text() == as_markdown(report)


def test_the_markdown_has_a_row_for_every_file():
    text = as_markdown(build("/f", "", FILES)).partition("## Every file")[2]
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| `")]
    assert rows == [f"`{f.path}`" for f in FILES]


def test_an_empty_folder_has_a_report_too():
    text = as_markdown(build("/f", "", []))
    assert "0 files" in text
    assert text.count("None.") == 5


@pytest.mark.parametrize(
    "name, shown",
    [("a", "`a`"), ("a|b", "`a\\|b`"), ("a`b", "``a`b``"), ("`", "`` ` ``")],
)
def test_a_name_cannot_break_out_of_its_cell(name, shown):
    assert code(name) == shown


@pytest.mark.parametrize(
    "count, shown",
    [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (2_500_000, "2.5 MB"), (10**18, "1000.0 PB")],
)
def test_sizes_are_shown_in_the_unit_that_reads_best(count, shown):
    assert show_size(count) == shown
