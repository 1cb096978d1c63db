-- What is in a capture.

-- name: exports
-- one row per export, as typed
SELECT path, nsys_version, schema_version, hostname, start_utc_ns, graph_trace, size_bytes FROM export ORDER BY export;

-- name: ranks
-- one row per rank
SELECT r.rank, r.dp, r.pp, r.tp, x.path, x.hostname, p.pid, r.device, r.gpu_name, r.rank_source
FROM rank r JOIN export x USING (export) JOIN process p USING (process)
ORDER BY r.rank;

-- name: event_counts
-- one row per rank with events: kernels, copies, memsets, and the streams that they ran on (null where none is recorded)
WITH of_stream AS (
    -- one row per rank, kind and stream: few, however many events there are
    SELECT rank, kind, stream, count(*) AS event_count FROM event_row
    WHERE list_contains($ranks::INTEGER[], rank) GROUP BY rank, kind, stream
)
SELECT rank, coalesce(sum(event_count) FILTER (kind = 0), 0)::BIGINT AS kernel_count,
    coalesce(sum(event_count) FILTER (kind = 1), 0)::BIGINT AS memcpy_count,
    coalesce(sum(event_count) FILTER (kind = 2), 0)::BIGINT AS memset_count,
    nullif(count(DISTINCT stream) FILTER (stream >= 0), 0) AS stream_count
FROM of_stream GROUP BY rank;

-- name: ledger
-- one row per table that was read
SELECT table_name AS "table", rows_read, rows_used, rows_excluded, reason FROM ledger ORDER BY ALL;
