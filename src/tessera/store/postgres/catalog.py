"""What a schema consists of, in lines that can be compared: tables, columns, indexes, constraints, functions,
triggers. Where it lies, who owns it, and the days of the archive say nothing.
"""

from __future__ import annotations

from typing import Final

from tessera.store.postgres.driver import Flights

# Definitions name the schema that they are in; a temporary one has several names.
_BARE: Final = r"""
regexp_replace(
    replace(
        replace({0}, '"' || replace(n.nspname, '"', '""') || '".', ''), quote_ident(n.nspname) || '.', ''),
    'pg_temp(_[0-9]+)?[.]', '', 'g')
"""
_OURS: Final = r"c.relname !~ '^(done_d[0-9]{8}|migration)$'"
_LINES: Final = rf"""
WITH n AS (
    SELECT oid, nspname FROM pg_catalog.pg_namespace
    WHERE oid = CASE WHEN $1 = 'pg_temp' THEN pg_my_temp_schema()
        ELSE (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1) END
), c AS (
    SELECT c.* FROM pg_catalog.pg_class c, n
    WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p') AND {_OURS}
)
SELECT 'table ' || c.relname,
    concat_ws(' ', coalesce(pg_get_partkeydef(c.oid), ''), coalesce(pg_get_expr(c.relpartbound, c.oid), ''),
        (SELECT string_agg(o, ', ' ORDER BY o) FROM unnest(c.reloptions) AS o))
FROM c
UNION ALL
SELECT 'column ' || c.relname || '.' || a.attname,
    concat_ws(' ', format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'not null' END,
        a.attstorage, a.attidentity,
        (SELECT collname FROM pg_catalog.pg_collation WHERE oid = a.attcollation),
        (SELECT {_BARE.format("pg_get_expr(d.adbin, d.adrelid)")} FROM pg_catalog.pg_attrdef d, n
         WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum))
FROM c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'index ' || i.relname,
    concat_ws(' ', {_BARE.format("pg_get_indexdef(x.indexrelid)")},
        CASE WHEN NOT x.indisvalid AND c.relkind = 'r' THEN 'invalid' END)
FROM n, c JOIN pg_catalog.pg_index x ON x.indrelid = c.oid
JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
UNION ALL
SELECT 'constraint ' || c.relname || '.' || o.conname,
    concat_ws(' ', {_BARE.format("pg_get_constraintdef(o.oid)")},
        CASE WHEN NOT o.convalidated THEN 'not valid' END)
FROM n, c JOIN pg_catalog.pg_constraint o ON o.conrelid = c.oid AND o.contype <> 'n'
UNION ALL
SELECT 'trigger ' || c.relname || '.' || t.tgname, {_BARE.format("pg_get_triggerdef(t.oid)")}
FROM n, c JOIN pg_catalog.pg_trigger t ON t.tgrelid = c.oid AND NOT t.tgisinternal
UNION ALL
SELECT 'function ' || p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
    concat_ws(' ', pg_get_function_result(p.oid), l.lanname, p.provolatile, p.proparallel,
        {_BARE.format("p.prosrc")})
FROM n JOIN pg_catalog.pg_proc p ON p.pronamespace = n.oid
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
ORDER BY 1
"""
TEMPORARY: Final = "pg_temp"


async def contents(flights: Flights, schema: str) -> dict[str, str]:
    """Definitions by object. ``schema`` is the unquoted name, or ``TEMPORARY``."""
    [found] = await flights.flight([(_LINES, [schema])])
    return dict(found)


def missing(wanted: dict[str, str], found: dict[str, str]) -> list[str]:
    """What is not there as it should be, each in a sentence. What is there beside it is somebody's own."""
    return [
        f"{name} is missing"
        if name not in found
        else f"{name} is {found[name]!r} and should be {wanted[name]!r}"
        for name in sorted(wanted, key=lambda name: (not name.startswith("table "), name))
        if found.get(name) != wanted[name]
    ]
