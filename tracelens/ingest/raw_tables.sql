-- The raw tables: what all nsys versions have in common, and the only thing that ingest and the model share.
-- Times are int64 ns as exported, with the exporter's shifts undone; ids are nsys's own. A column that an export
-- lacks is NULL in all its rows.

-- name: create
-- one row per export; also what was found out about its clocks and its completeness
CREATE TABLE raw_export (
    export INTEGER, shown VARCHAR, stem VARCHAR, nsys_version VARCHAR, schema_version VARCHAR, hostname VARCHAR,
    start_utc_ns BIGINT, system_clock_ns BIGINT, session_ns BIGINT, shift_ns BIGINT, graph_mode VARCHAR,
    has_graph_table BOOLEAN, graph_launch_count BIGINT, partial BOOLEAN, size_bytes BIGINT, words VARCHAR
);
-- Events themselves are too many for a table that is only read once: they stand in `EventRuns`, by place.
-- one row per (process, device) and kind with events: 0 kernel, 1 copy, 2 memset, 3 graph launch traced as a whole;
-- node_count: those that ran as nodes of a graph
CREATE TABLE raw_place (
    export INTEGER, global_pid BIGINT, device BIGINT, kind UTINYINT, row_count BIGINT, total_ns HUGEINT, first_ns BIGINT,
    node_count BIGINT
);
-- rows that are no events, by kind and reason
CREATE TABLE raw_unsound (export INTEGER, kind UTINYINT, reason VARCHAR, row_count BIGINT);
-- how an export's rows show graphs: graph (as a whole), node, NULL where there is none
CREATE TABLE raw_graphs (export INTEGER, seen VARCHAR);
-- the processes that rows of events name, 0 where they name none
CREATE TABLE raw_running (export INTEGER, global_pid BIGINT);
-- the names of an export's events, as they are numbered in `EventRuns`; text NULL where the export does not know it
CREATE TABLE raw_name (export INTEGER, code INTEGER, text VARCHAR, row_count BIGINT);
-- the times that an export can hold; where the session's length is unknown, those within 52 days of the middle event
CREATE TABLE session_window (export INTEGER, low_ns BIGINT, high_ns BIGINT);
-- the text behind each string id that an API call uses; text NULL where the export does not know the id
CREATE TABLE raw_string (export INTEGER, string BIGINT, text VARCHAR);
-- one row per process that the export lists, with the parallel coordinates its title gave
CREATE TABLE raw_process (export INTEGER, global_pid BIGINT, pid BIGINT, title VARCHAR, dp INTEGER, pp INTEGER, tp INTEGER);
-- one row per (process, device ordinal) whose GPU is known; pid NULL: of every process; gpu_identity: equal for one
-- physical GPU, NULL where the row cannot tell which one a process saw
CREATE TABLE raw_gpu (export INTEGER, pid BIGINT, device BIGINT, gpu_name VARCHAR, gpu_uuid VARCHAR, gpu_identity VARCHAR);
-- rank numbers from the environment (kind: the variable) or from a communicator of `size` ranks (kind: nccl), which
-- the process began to join at start_ns
CREATE TABLE raw_rank_evidence (
    export INTEGER, global_pid BIGINT, kind VARCHAR, number BIGINT, size BIGINT, communicator UBIGINT, start_ns BIGINT
);
-- what ingest noticed and counted
CREATE TABLE raw_notice (code VARCHAR, severity VARCHAR, message VARCHAR, hint VARCHAR, count BIGINT);
-- rows read from each table; kind is that of raw_other, 0 for kernels, NULL for tables without events
CREATE TABLE raw_read (export INTEGER, table_name VARCHAR, kind UTINYINT, rows_read BIGINT);

-- rows that ingest itself left out of a table, by reason
CREATE TABLE raw_excluded (export INTEGER, table_name VARCHAR, reason VARCHAR, row_count BIGINT);

-- name: create_launch
-- one row per CUDA API call, on the host's clock; table_name: where it stood (one byte a row, in the order of the names)
CREATE TABLE raw_launch (
    export INTEGER, table_name ENUM ('CUPTI_ACTIVITY_KIND_DRIVER', 'CUPTI_ACTIVITY_KIND_RUNTIME'), start_ns BIGINT, end_ns BIGINT, thread BIGINT, correlation BIGINT, string BIGINT
);
-- calls that were counted instead of kept, because no event of their export bears their correlation id
CREATE TABLE raw_launch_aside (export INTEGER, table_name VARCHAR, reason VARCHAR, row_count BIGINT);

-- name: create_correlation
-- one row per correlation id that an event of an export bears
CREATE TABLE raw_correlation (export INTEGER, correlation BIGINT);

-- name: add_correlation
INSERT INTO raw_correlation SELECT DISTINCT $export, correlation FROM incoming WHERE correlation IS NOT NULL;

-- name: create_nvtx
-- NVTX rows may be tens of millions: they stand in a database of their own, `ranges`, which may lie in a file, with
-- their texts and domains by number where the export has it so; text is NULL where the number names it.
CREATE TABLE ranges.nvtx_row (
    export INTEGER, thread BIGINT, domain BIGINT, text_id BIGINT, text VARCHAR, start_ns BIGINT, end_ns BIGINT,
    kind BIGINT, comm_id UBIGINT, message_bytes BIGINT
);
CREATE TABLE ranges.nvtx_text (export INTEGER, text_id BIGINT, text VARCHAR);
CREATE TABLE ranges.nvtx_domain (export INTEGER, process BIGINT, domain BIGINT, name VARCHAR);
-- one row per NVTX range or mark; kind 34 mark, 59 push/pop, 60 start/end. A domain whose creation lies outside the
-- capture is NCCL's where its ranges are, else unknown (?).
CREATE OR REPLACE TEMP VIEW raw_nvtx AS
SELECT r.export, r.thread,
    CASE
        WHEN coalesce(r.domain, 0) = 0 THEN ''
        ELSE coalesce(d.name, if(starts_with(coalesce(r.text, t.text), 'nccl'), 'NCCL', '?'))
    END AS domain,
    coalesce(r.text, t.text) AS text, r.start_ns, r.end_ns, r.kind, r.comm_id, r.message_bytes
FROM ranges.nvtx_row r
LEFT JOIN ranges.nvtx_text t ON t.export = r.export AND t.text_id = r.text_id AND r.text IS NULL
LEFT JOIN ranges.nvtx_domain d ON d.export = r.export AND d.process = (r.thread & ~16777215) AND d.domain = r.domain
WHERE r.thread IS NOT NULL AND r.start_ns IS NOT NULL AND coalesce(r.text, t.text) IS NOT NULL;

-- name: drop_nvtx
-- What was counted and noticed too: the model has it, or else it is read once more.
DROP VIEW IF EXISTS raw_nvtx;
DETACH DATABASE IF EXISTS ranges;
DELETE FROM raw_read WHERE table_name = 'NVTX_EVENTS';
DELETE FROM raw_excluded WHERE table_name = 'NVTX_EVENTS';
DELETE FROM raw_notice;
