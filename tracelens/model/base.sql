-- Export, process, rank: what the capture consists of.

-- name: export
CREATE OR REPLACE TABLE export AS
SELECT export, shown AS path, nsys_version, schema_version, hostname, start_utc_ns, system_clock_ns, session_ns,
    coalesce(g.seen, if(x.graph_launch_count > 0, 'graph', 'none')) AS graph_trace, size_bytes
FROM raw_export x LEFT JOIN raw_graphs g USING (export) ORDER BY export;

-- name: process
-- every process that the export lists or that has events
CREATE OR REPLACE TABLE process AS
SELECT (row_number() OVER (ORDER BY export, global_pid) - 1)::INTEGER AS process, export, global_pid,
    (global_pid >> 24) & 16777215 AS pid, max(title) AS title
FROM (
    SELECT export, global_pid, title FROM raw_process
    UNION ALL SELECT export, global_pid, NULL FROM raw_running
)
GROUP BY export, global_pid;

-- name: rank
CREATE OR REPLACE TABLE rank (
    rank INTEGER, dp INTEGER, pp INTEGER, tp INTEGER, export INTEGER, process INTEGER, device INTEGER, gpu_name VARCHAR,
    gpu_uuid VARCHAR, rank_source VARCHAR, clock INTEGER
);
-- which (export, process, device) is which rank, and why the others are none
CREATE OR REPLACE TABLE rank_place (rank INTEGER, export INTEGER, global_pid BIGINT, device BIGINT);
CREATE OR REPLACE TABLE not_a_rank (export INTEGER, global_pid BIGINT, device BIGINT, reason VARCHAR);
CREATE OR REPLACE TABLE notice (code VARCHAR, severity VARCHAR, message VARCHAR, hint VARCHAR, count BIGINT);
CREATE OR REPLACE TABLE ledger (export INTEGER, table_name VARCHAR, rows_read BIGINT, rows_used BIGINT, rows_excluded BIGINT, reason VARCHAR);
