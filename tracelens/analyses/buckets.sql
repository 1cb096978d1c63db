-- Time by bucket: the queries that the sweep over events needs.

-- name: names
-- name_id, name, bucket, pattern, collective (whether the collective table knows it), in the order of name_id.
SELECT name_id, name, bucket, pattern, operation IS NOT NULL AS collective FROM kernel_name ORDER BY name_id;

-- name: device_sweep
-- For --compat gputrc2graph: kernels, copies and memsets of all devices of an export in one sequence by start.
-- That script leaves ties to an unstable sort; here the longer one comes first, then by name.
SELECT export, name_id, start_ns, end_ns FROM (
    SELECT r.export, e.name_id, e.start_ns, e.end_ns FROM event_row e JOIN rank r USING (rank) WHERE e.kind < 3
    UNION ALL SELECT export, name_id, start_ns, end_ns FROM other_event WHERE kind < 3
) ORDER BY export, start_ns, end_ns DESC, name_id;

-- name: invisible_graphs
-- Whether graphs ran whose work left no row, so that busy and idle time are unknown.
SELECT count(*) > 0 AS invisible FROM notice WHERE code = 'graph-invisible';

-- name: devices_swept
-- The most devices of one process each that --compat sweeps as one timeline: those of the fullest export.
SELECT coalesce(max(devices), 0)::BIGINT AS device_count FROM (
    SELECT export, count(*) AS devices FROM (
        SELECT export, process, device FROM rank UNION SELECT export, process, device FROM other_event WHERE kind < 3
    ) GROUP BY export
);
