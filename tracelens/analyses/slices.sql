-- What a picture of a stretch of time is drawn from.

-- name: events
-- One row per event that starts in a window of its rank: own times in ns, bucket and name.
-- Order: event_id, which is rank, start.
SELECT e.event_id, e.rank, coalesce(e.stream, -1)::BIGINT AS stream, e.kind, n.bucket, n.name, e.start_ns, e.end_ns,
    e.correlation, e.graph_node, e.bytes
FROM event e
JOIN slice_window w ON w.rank = e.rank AND e.start_ns >= w.start_ns AND e.start_ns < w.end_ns
JOIN kernel_name n USING (name_id)
ORDER BY e.event_id;
