-- What leaves the program as files for other tools.

-- name: tables
-- One row per documented model table that is loaded: its name and what one row of it is. Order: name.
SELECT name, comment FROM (
    SELECT table_name AS name, comment FROM duckdb_tables() WHERE schema_name = 'main' AND NOT internal
    UNION ALL
    SELECT view_name AS name, comment FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal
) WHERE comment IS NOT NULL AND name <> 'event_row'
ORDER BY name;

-- name: columns
-- One row per column of those tables: table, column, meaning (of a view, that of the table under it). Order: as they stand.
SELECT c.table_name AS name, c.column_name, coalesce(c.comment, b.comment, '') AS comment
FROM duckdb_columns() c
LEFT JOIN duckdb_columns() b
    ON b.schema_name = 'main' AND b.table_name = c.table_name || '_row' AND b.column_name = c.column_name
WHERE c.schema_name = 'main' AND NOT c.internal
ORDER BY c.table_name, c.column_index;

-- name: ranks
-- One row per rank: its number and its GPU's name. Order: rank.
SELECT rank, gpu_name AS label FROM rank WHERE rank IN (SELECT unnest($ranks::INTEGER[])) ORDER BY rank;
