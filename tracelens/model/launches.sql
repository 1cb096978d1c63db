-- Launches: one row per CUDA API call that put work on a device, on the host's clock. All nodes of one graph replay
-- share the call that launched it.

-- name: launch
CREATE OR REPLACE TABLE launch AS
WITH used AS (
    SELECT DISTINCT r.process, e.correlation FROM event_row e JOIN rank r USING (rank) WHERE e.correlation IS NOT NULL
), call AS (
    SELECT p.process, l.thread, l.correlation, l.start_ns, l.end_ns, s.text AS api_name
    FROM raw_launch l
    JOIN process p ON p.export = l.export AND (p.global_pid = (l.thread & ~16777215) OR p.global_pid = 0)
    LEFT JOIN raw_string s ON s.export = l.export AND s.string = l.string
    WHERE l.start_ns IS NOT NULL AND l.end_ns IS NOT NULL
)
SELECT call.process, call.thread, call.correlation, call.start_ns, call.end_ns, call.api_name,
    coalesce(contains(call.api_name, 'GraphLaunch'), false) AS graph_launch
FROM call JOIN used USING (process, correlation)
-- a correlation id is unique within a process; should an export repeat one, the first call launched the work
QUALIFY row_number() OVER (PARTITION BY process, correlation ORDER BY start_ns, end_ns, api_name, thread) = 1
ORDER BY process, start_ns, end_ns, correlation;

-- name: repeated_count
SELECT count(*) AS row_count FROM (
    SELECT export, thread & ~16777215, correlation FROM raw_launch WHERE correlation IS NOT NULL GROUP BY ALL HAVING count(*) > 1
);

-- name: without_launch
SELECT count(*) AS row_count FROM event_row e JOIN rank r USING (rank)
WHERE NOT EXISTS (SELECT 1 FROM launch l WHERE l.process = r.process AND l.correlation = e.correlation);

-- name: nvtx
CREATE OR REPLACE TABLE nvtx AS
SELECT p.process, n.thread, n.domain, n.text, n.start_ns,
    CASE WHEN n.kind = 34 THEN NULL ELSE n.end_ns END AS end_ns,
    CASE WHEN n.kind = 34 THEN 'mark' ELSE 'range' END AS kind, n.comm_id, n.message_bytes
FROM raw_nvtx n
JOIN process p ON p.export = n.export AND p.global_pid = (n.thread & ~16777215)
ORDER BY p.process, n.start_ns, n.end_ns DESC NULLS LAST, n.thread, n.domain, n.text;
