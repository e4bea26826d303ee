"""Numbered SQL files: their parts, their pieces, and what is refused when they are read."""

from __future__ import annotations

import pytest

from tessera.model.errors import InvalidArgument
from tessera.store.sql.schemafiles import Piece, steps_of

TEXT = """-- A note before any part is nobody's; neither is CREATE TABLE in it.
-- pre
CREATE TABLE {schema}.a (
    b text DEFAULT 'x;
y'
);
INSERT INTO {schema}.a VALUES ('-- apart');
-- apart
-- Why this index: it's said here, INDEX or not;
-- concurrently
-- And here, it's INDEX again;
CREATE UNIQUE INDEX a_b ON {schema}.a (b);
CREATE FUNCTION {schema}.f() RETURNS int LANGUAGE plpgsql AS $$
    BEGIN
        RETURN 1;
    END
$$;
-- post
-- down
DROP TABLE {schema}.a;
"""


def step_of(folder, text: str):
    (folder / "0001_one.sql").write_text(text)
    [step] = steps_of(folder)
    return step


def test_a_part_falls_into_pieces(tmp_path):
    step = step_of(tmp_path, TEXT)
    first, index, last = step.pre
    assert [statement.split("(")[0].split()[0] for statement in first.statements] == ["CREATE", "INSERT"]
    assert (first.built, index.built, last.built) == ("", "a_b", "")
    assert len(last.statements) == 1
    assert "RETURN 1;\n    END" in last.statements[0]
    assert step.post == ()
    assert step.back == ("DROP TABLE {schema}.a;",)
    assert len(step.forward) == 4


def test_an_index_is_built_beside_the_work_or_plainly(tmp_path):
    [_, index, _] = step_of(tmp_path, TEXT).pre
    assert index.statements[0].endswith("CREATE UNIQUE INDEX a_b ON {schema}.a (b);")
    assert index.concurrent.endswith("CREATE UNIQUE INDEX CONCURRENTLY a_b ON {schema}.a (b);")
    assert index.concurrent.count("CONCURRENTLY") == 1


@pytest.mark.parametrize(
    "behind",
    ["", "CREATE TABLE {schema}.a (b int);", "CREATE INDEX ON {schema}.a (b);", "CREATE INDEX i ON a (b);"],
)
def test_only_an_index_with_a_name_is_built_beside_the_work(tmp_path, behind):
    with pytest.raises(InvalidArgument, match="behind -- concurrently stands no CREATE INDEX name"):
        step_of(tmp_path, f"-- pre\n-- concurrently\n{behind}\n-- post\n-- down\n")


@pytest.mark.parametrize("text", ["CREATE TABLE a (b)", "INSERT INTO a VALUES (';\n", "SELECT $$;\n"])
def test_a_statement_without_an_end_is_refused(tmp_path, text):
    with pytest.raises(InvalidArgument, match="does not end"):
        step_of(tmp_path, f"-- pre\n{text}\n")


def test_what_was_applied_is_told_apart_by_all_of_its_text_but_the_way_back(tmp_path):
    sums = {
        step_of(tmp_path, text).checksum
        for text in (TEXT, TEXT + "-- more\n", TEXT.replace("'x;", "'z;"), TEXT.replace("-- apart\n", ""))
    }
    assert len(sums) == 3


def test_an_empty_part_has_no_pieces(tmp_path):
    step = step_of(tmp_path, "-- pre\n\n-- A remark.\n-- apart\n-- post\n-- down\n")
    assert (step.pre, step.post, step.forward) == ((), (), ())
    assert Piece(("SELECT 1;",)).built == ""
