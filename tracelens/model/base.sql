-- Export, process, rank: what the capture consists of.

-- name: copy_label
CREATE OR REPLACE TABLE copy_label (copy_kind BIGINT, label VARCHAR);

-- name: export
CREATE OR REPLACE TABLE export AS
SELECT export, shown AS path, nsys_version, schema_version, hostname, start_utc_ns, system_clock_ns, session_ns,
    CASE
        WHEN EXISTS (SELECT 1 FROM raw_other o WHERE o.export = x.export AND o.kind = 3) THEN 'graph'
        WHEN EXISTS (SELECT 1 FROM raw_kernel k WHERE k.export = x.export AND coalesce(k.graph_node, 0) <> 0) THEN 'node'
        WHEN x.graph_launch_count > 0 THEN 'graph'
        ELSE 'none'
    END AS graph_trace,
    size_bytes
FROM raw_export x ORDER BY export;

-- name: process
-- every process that the export lists or that has events
CREATE OR REPLACE TABLE process AS
SELECT (row_number() OVER (ORDER BY export, global_pid) - 1)::INTEGER AS process, export, global_pid,
    (global_pid >> 24) & 16777215 AS pid, max(title) AS title
FROM (
    SELECT export, global_pid, title FROM raw_process
    UNION ALL SELECT DISTINCT export, coalesce(global_pid, 0), NULL FROM raw_kernel
    UNION ALL SELECT DISTINCT export, coalesce(global_pid, 0), NULL FROM raw_other
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
