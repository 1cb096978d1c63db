-- What a picture of a stretch of time tells of its events beyond what the timeline holds.

-- name: noted
-- One row per event of a rank in a range of ids: its launch's id, graph node and bytes; the lowest number without one.
SELECT event_id, coalesce(correlation, -9223372036854775808) AS correlation,
    coalesce(graph_node, -9223372036854775808) AS graph_node, coalesce(bytes, -9223372036854775808) AS bytes
FROM event WHERE rank = $rank AND event_id BETWEEN $first AND $last;
