-- NVTX ranges and marks of the processes that an export lists. Order: process, start_ns, longest first, thread, domain,
-- text, kind, comm_id, message_bytes.

-- name: rows
-- One row per range or mark, in no order.
CREATE OR REPLACE TEMP VIEW nvtx_row AS
SELECT p.process, n.thread, n.domain, n.text, n.start_ns,
    CASE WHEN n.kind = 34 THEN NULL ELSE n.end_ns END AS end_ns,
    CASE WHEN n.kind = 34 THEN 'mark' ELSE 'range' END AS kind, n.comm_id, n.message_bytes
FROM raw_nvtx n
JOIN process p ON p.export = n.export AND p.global_pid = (n.thread & ~16777215);

-- name: text_width
-- Mean length of the texts that rows spell themselves, bytes, over all rows.
SELECT sum(strlen(text)) / count(*) AS width FROM ranges.nvtx_row;

-- name: sampled
-- (process, start_ns) of one row in $every, where (process, start_ns) ascend.
SELECT p.process, r.start_ns
FROM ranges.nvtx_row r
JOIN process p ON p.export = r.export AND p.global_pid = (r.thread & ~16777215)
WHERE r.rowid % $every = 0 AND r.start_ns IS NOT NULL
ORDER BY ALL;

-- name: part
-- The rows from ($low, $low_ns) on and before ($high, $high_ns), in order.
SELECT * FROM nvtx_row
WHERE (process > $low OR process = $low AND start_ns >= $low_ns) AND (process < $high OR process = $high AND start_ns < $high_ns)
ORDER BY process, start_ns, end_ns DESC NULLS LAST, thread, domain, text, kind, comm_id NULLS LAST, message_bytes NULLS LAST

-- name: in_memory
CREATE OR REPLACE TABLE raw_nvtx_sorted AS
SELECT * FROM nvtx_row
ORDER BY process, start_ns, end_ns DESC NULLS LAST, thread, domain, text, kind, comm_id NULLS LAST, message_bytes NULLS LAST;
CREATE OR REPLACE VIEW nvtx AS SELECT * FROM raw_nvtx_sorted;

-- name: excluded
SELECT n.export, 'NVTX_EVENTS' AS table_name, 'of a process that the export does not list' AS reason, count(*) AS row_count
FROM raw_nvtx n ANTI JOIN process p ON p.export = n.export AND p.global_pid = (n.thread & ~16777215)
GROUP BY ALL ORDER BY ALL;

-- name: unclosed
-- Ranges that nsys closed itself, at the end of the session, or never.
SELECT count(*) AS row_count FROM raw_nvtx n JOIN raw_export x USING (export)
WHERE n.kind <> 34 AND (n.end_ns IS NULL OR n.end_ns >= x.session_ns);

-- name: drop
DROP VIEW nvtx_row;
