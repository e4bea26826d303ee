-- What the release after this one might bring: a column and an index on the hot table, a table of its own, and something that
-- only the new code may meet. For tests.

-- pre

ALTER TABLE {schema}.job ADD COLUMN note text;
ALTER TABLE {schema}.done ADD COLUMN note text;

-- concurrently
CREATE INDEX job_note ON {schema}.job (note, id) WHERE note IS NOT NULL;
CREATE TABLE {schema}.note (
    name text PRIMARY KEY,
    note text NOT NULL DEFAULT 'a;
b'
);

-- apart

CREATE FUNCTION {schema}.noted(name text) RETURNS boolean LANGUAGE sql STABLE
    AS $$ SELECT EXISTS (SELECT 1 FROM {schema}.note n WHERE n.name = noted.name); $$;

-- post

ALTER TABLE {schema}.job ALTER COLUMN note SET DEFAULT '';

-- concurrently
CREATE UNIQUE INDEX note_note ON {schema}.note (note);

-- down

DROP FUNCTION IF EXISTS {schema}.noted(text);
DROP TABLE IF EXISTS {schema}.note;
ALTER TABLE {schema}.job DROP COLUMN IF EXISTS note;
ALTER TABLE {schema}.done DROP COLUMN IF EXISTS note;
