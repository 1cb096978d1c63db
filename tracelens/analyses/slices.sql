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

-- name: members
-- One row per matched collective operation that starts in a window of its rank. arrival_ns, last_arrival_ns and end_ns
-- are on the aligned clock. Order: event_id.
SELECT m.event_id, m.communicator, m.instance, m.rank, m.operation, m.implementation, m.arrival_ns,
    m.arrival_ns + m.wait_ns AS last_arrival_ns, m.aligned_end_ns AS end_ns, m.is_last
FROM slice_member m
JOIN slice_window w ON w.rank = m.rank AND m.start_ns >= w.start_ns AND m.start_ns < w.end_ns
ORDER BY m.event_id;
