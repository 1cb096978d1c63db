-- What is in a capture.

-- name: exports
-- one row per export, as typed
SELECT path, nsys_version, schema_version, hostname, start_utc_ns, graph_trace, size_bytes FROM export ORDER BY export;

-- name: ranks
-- one row per rank; events counted by kind, span from the first event's start to the last one's end
SELECT r.rank, r.dp, r.pp, r.tp, x.path, x.hostname, p.pid, r.device, r.gpu_name, r.rank_source,
    count(*) FILTER (e.kind = 0) AS kernel_count, count(*) FILTER (e.kind = 1) AS memcpy_count,
    count(*) FILTER (e.kind = 2) AS memset_count, nullif(count(DISTINCT e.stream) FILTER (e.stream >= 0), 0) AS stream_count
FROM rank r JOIN export x USING (export) JOIN process p USING (process) JOIN event_row e USING (rank)
WHERE r.rank IN (SELECT unnest($ranks::INTEGER[]))
GROUP BY ALL ORDER BY r.rank;

-- name: ledger
-- one row per table that was read
SELECT table_name AS "table", rows_read, rows_used, rows_excluded, reason FROM ledger ORDER BY ALL;
