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

-- name: size
-- The number of events that begin in a window.
SELECT count(*) AS event_count
FROM event e JOIN slice_window w ON w.rank = e.rank AND e.start_ns >= w.start_ns AND e.start_ns < w.end_ns;

-- name: gaps
-- One row per gap of the ranks asked for that begins in a window: cause, own times in ns. Order: rank, start.
SELECT g.rank, g.cause, g.start_ns, g.end_ns
FROM gap g JOIN slice_window w ON w.rank = g.rank AND g.start_ns >= w.start_ns AND g.start_ns < w.end_ns
ORDER BY g.rank, g.start_ns;

-- name: ranks
-- One row per rank: its number and its GPU's name. Order: rank.
SELECT rank, gpu_name AS label FROM rank WHERE rank IN (SELECT unnest($ranks::INTEGER[])) ORDER BY rank;
