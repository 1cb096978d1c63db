-- Launches: one row per CUDA API call that put work on a device, on the host's clock. All nodes of one graph replay
-- share the call that launched it.

-- name: defect
-- What is wrong with a call's times; null: nothing.
CREATE OR REPLACE TEMP MACRO launch_defect(start_ns, end_ns, low_ns, high_ns) AS CASE
    WHEN start_ns IS NULL OR end_ns IS NULL THEN 'no time'
    WHEN start_ns = 0 AND end_ns = 0 OR end_ns < start_ns OR start_ns < low_ns OR end_ns > high_ns THEN 'bad timestamp'
END;
-- Whether a synchronising call waited: a shorter one found the work done, and says nothing about when that was.
CREATE OR REPLACE TEMP MACRO launch_waited(start_ns, end_ns) AS end_ns::HUGEINT - start_ns >= 5000;
CREATE OR REPLACE TEMP VIEW synchronising AS SELECT export, string FROM raw_string WHERE contains(text, 'Synchronize');

-- name: set_aside
-- Calls of which no event of their export bears the correlation id are only counted: they launched nothing, whichever
-- devices are ranks. Calls that waited for a device stay.
CREATE OR REPLACE TEMP TABLE launch_kept AS
SELECT * FROM raw_launch SEMI JOIN raw_correlation USING (export, correlation)
UNION ALL
SELECT * FROM raw_launch SEMI JOIN synchronising USING (export, string) ANTI JOIN raw_correlation USING (export, correlation)
WHERE launch_waited(start_ns, end_ns);
INSERT INTO raw_launch_aside
SELECT l.export, l.table_name,
    coalesce(launch_defect(l.start_ns, l.end_ns, x.low_ns, x.high_ns), 'put no work on a rank''s device'), count(*)
FROM raw_launch l JOIN session_window x USING (export)
ANTI JOIN raw_correlation c ON c.export = l.export AND c.correlation = l.correlation
ANTI JOIN synchronising w ON w.export = l.export AND w.string = l.string AND launch_waited(l.start_ns, l.end_ns)
GROUP BY ALL ORDER BY ALL;
CREATE OR REPLACE TABLE raw_launch AS SELECT * FROM launch_kept;
DROP TABLE launch_kept;

-- name: create
-- Millions of calls have a few names: until the end the place of a name in the order of names stands for it.
CREATE OR REPLACE TEMP TABLE api AS
SELECT text AS api_name, (row_number() OVER (ORDER BY text))::INTEGER AS api FROM (SELECT DISTINCT text FROM raw_string WHERE text IS NOT NULL);
-- caller: which process a thread's calls belong to; where kernels carry no process, the export is taken as one.
CREATE OR REPLACE TEMP VIEW call AS
SELECT l.export, l.table_name, p.process, l.thread, l.correlation, l.start_ns, l.end_ns, l.string, a.api,
    launch_defect(l.start_ns, l.end_ns, x.low_ns, x.high_ns) AS defect
FROM raw_launch l
JOIN session_window x USING (export)
LEFT JOIN (
    SELECT process.export FROM process JOIN rank USING (process) GROUP BY process.export HAVING max(global_pid) = 0 AND min(global_pid) = 0
) pidless ON pidless.export = l.export
LEFT JOIN process p ON p.export = l.export AND p.global_pid = CASE WHEN pidless.export IS NULL THEN l.thread & ~16777215 ELSE 0 END
LEFT JOIN (SELECT export, string, api FROM raw_string JOIN api ON api_name = text) a
    ON a.export = l.export AND a.string = l.string;
CREATE OR REPLACE TEMP TABLE used AS
SELECT process, correlation, sum(event_count)::BIGINT AS event_count
FROM (SELECT rank, correlation, count(*) AS event_count FROM event_row GROUP BY ALL) JOIN rank USING (rank)
GROUP BY ALL;
CREATE OR REPLACE TEMP TABLE launching AS
SELECT export, table_name, process, thread, correlation, start_ns, end_ns, api, event_count::INTEGER AS event_count
FROM call JOIN used USING (process, correlation) WHERE defect IS NULL;
-- a correlation id is unique within a process; should an export repeat one, the first call launched the work.
-- Ranking only the repeated ones spares a sort of every call.
CREATE OR REPLACE TEMP TABLE repeated AS
SELECT process, correlation FROM launching GROUP BY ALL HAVING count(*) > 1;
CREATE OR REPLACE TABLE raw_launch_sorted (
    process INTEGER, thread BIGINT, correlation BIGINT, start_ns BIGINT, end_ns BIGINT, api_name VARCHAR, graph_launch BOOLEAN,
    wait_end_ns BIGINT
);
CREATE OR REPLACE VIEW launch AS SELECT * FROM raw_launch_sorted;

-- name: sizes
-- One row per process with launches: process, launch_count. Order: process.
SELECT process, count(*) AS launch_count FROM launching GROUP BY process ORDER BY process;

-- name: append
-- The launches of processes $low to $high, in order: all at once would take twice the memory of the table.
INSERT INTO raw_launch_sorted
WITH mine AS (
    SELECT * FROM launching WHERE process BETWEEN $low AND $high
), once AS (
    SELECT * FROM mine ANTI JOIN repeated USING (process, correlation)
    UNION ALL
    SELECT * FROM mine SEMI JOIN repeated USING (process, correlation)
    QUALIFY row_number() OVER (
        PARTITION BY process, correlation ORDER BY start_ns, end_ns, api NULLS LAST, thread NULLS LAST, table_name
    ) = 1
), waited AS (
    -- the call in which a thread waited for the device, having launched nothing since
    SELECT process, correlation, min(w.end_ns) AS wait_end_ns
    FROM (
        SELECT process, thread, start_ns, end_ns
        FROM call SEMI JOIN synchronising USING (export, string)
        WHERE process BETWEEN $low AND $high AND defect IS NULL AND launch_waited(start_ns, end_ns)
    ) w ASOF JOIN (SELECT process, thread, start_ns, correlation FROM mine) l USING (process, thread, start_ns)
    GROUP BY ALL
)
SELECT process, thread, correlation, start_ns, end_ns, api_name, coalesce(contains(api_name, 'GraphLaunch'), false) AS graph_launch,
    wait_end_ns
FROM once LEFT JOIN waited USING (process, correlation) LEFT JOIN api USING (api)
ORDER BY process, start_ns, end_ns, correlation;

-- name: repeated_count
SELECT count(*) AS row_count FROM repeated;

-- name: bad_count
SELECT count(*) + (SELECT coalesce(sum(row_count), 0)::BIGINT FROM raw_launch_aside WHERE reason = 'bad timestamp') AS row_count
FROM call WHERE defect = 'bad timestamp';

-- name: without_launch
-- Events less those that a call launched, told from the calls: joining the two again would take as long as all the rest.
SELECT (
    (SELECT coalesce(sum(event_count), 0) FROM used)
    - (SELECT coalesce(sum(event_count), 0) FROM launching ANTI JOIN repeated USING (process, correlation))
    - (SELECT coalesce(sum(event_count), 0) FROM used SEMI JOIN repeated USING (process, correlation))
)::BIGINT AS row_count;

-- name: excluded
-- Calls that launched nothing on a rank's device, by export, table and reason.
SELECT export, table_name, reason, sum(row_count)::BIGINT AS row_count
FROM (
    -- of the calls without a defect, those that launched something are taken off again
    SELECT export, table_name, coalesce(defect, 'put no work on a rank''s device') AS reason, count(*) AS row_count
    FROM call GROUP BY ALL
    UNION ALL
    SELECT export, table_name, 'put no work on a rank''s device', -count(*) FROM launching GROUP BY ALL
    UNION ALL
    SELECT export, table_name, 'repeats a correlation id', count(*)
    FROM (
        SELECT export, table_name FROM launching SEMI JOIN repeated USING (process, correlation)
        QUALIFY row_number() OVER (
            PARTITION BY process, correlation ORDER BY start_ns, end_ns, api NULLS LAST, thread NULLS LAST, table_name
        ) > 1
    )
    GROUP BY ALL
    UNION ALL
    SELECT export, table_name, reason, row_count FROM raw_launch_aside
)
GROUP BY ALL HAVING sum(row_count) > 0 ORDER BY ALL;

-- name: drop
DROP VIEW call; DROP VIEW synchronising; DROP TABLE api; DROP TABLE used; DROP TABLE launching; DROP TABLE repeated; DROP TABLE raw_launch; DROP TABLE raw_launch_aside;

-- name: forget
-- The rows of launch, once a file holds them.
DROP TABLE IF EXISTS raw_launch_sorted;
