-- One side of a comparison.

-- name: names
-- name_id, name, bucket, operation, implementation in the order of name_id.
SELECT name_id, name, bucket, operation, implementation FROM kernel_name ORDER BY name_id;

-- name: positions
-- Where in a step each name first runs: rank, name_id, offset_ns from the window's start, over the windows given.
SELECT e.name_id, min(e.start_ns - w.start_ns) AS offset_ns
FROM event_row e JOIN sample_window w ON e.rank = w.rank AND e.start_ns >= w.start_ns AND e.start_ns < w.end_ns
GROUP BY e.name_id ORDER BY e.name_id;

-- name: environment
-- What one side ran on: key, value; several values are listed.
SELECT key, string_agg(DISTINCT value, ', ' ORDER BY value) AS value FROM (
    SELECT 'gpu' AS key, gpu_name AS value FROM rank
    UNION ALL SELECT 'nsys_version', nsys_version FROM export
    UNION ALL SELECT 'schema_version', schema_version FROM export
    UNION ALL SELECT 'graph_trace', graph_trace FROM export
) WHERE value IS NOT NULL GROUP BY key ORDER BY key;

-- name: spans
-- rank, span_ns from its first event to its last.
SELECT rank, max(end_ns) - min(start_ns) AS span_ns FROM event_row WHERE rank IN (SELECT unnest($ranks::INTEGER[])) GROUP BY rank ORDER BY rank;
