-- The columns of the model tables that step and gap analyses walk along.
-- Times are ns in each export's own time. The events come in the order of their ids (rank, start); the caller checks
-- that and sorts where a table was filled in another order, because sorting ten million sorted rows is not free.

-- name: ranks
-- One row per rank. Order: rank.
SELECT rank, export, process, device, clock FROM rank WHERE list_contains($ranks::INTEGER[], rank) ORDER BY rank

-- name: event_count
SELECT count(*) AS event_count FROM event WHERE list_contains($ranks::INTEGER[], rank)

-- name: events
-- One row per event: the columns that every walk needs.
SELECT event_id, rank, start_ns, end_ns, coalesce(stream, -1) AS stream, kind::UTINYINT AS kind, name_id FROM event WHERE list_contains($ranks::INTEGER[], rank)

-- name: correlations
-- One row per event: the id it shares with its launch call; null where the export has none.
SELECT event_id, correlation FROM event WHERE list_contains($ranks::INTEGER[], rank)

-- name: graph_nodes
-- One row per event: the graph node it ran as; null outside graphs.
SELECT event_id, graph_node FROM event WHERE list_contains($ranks::INTEGER[], rank)

-- name: copy_kinds
-- One row per copy between host and device, outside or inside graphs. copy_kind: 1 host to device, 2 device to host.
SELECT event_id, copy_kind FROM event
WHERE kind = 1 AND copy_kind IN (1, 2) AND list_contains($ranks::INTEGER[], rank)
ORDER BY event_id

-- name: launch_shapes
-- One row per event: its launch shape; null for copies.
SELECT event_id, shape FROM event WHERE list_contains($ranks::INTEGER[], rank)

-- name: graphs
-- One row per event: the graph it ran in; null outside graphs and where the export has no graph ids.
SELECT event_id, graph FROM event WHERE list_contains($ranks::INTEGER[], rank)

-- name: graph_ids_recorded
-- Whether the export names graphs at all.
SELECT count(*) > 0 AS recorded FROM (SELECT 1 FROM event WHERE graph IS NOT NULL LIMIT 1)

-- name: launches
-- One row per API call that launched an event, with the place of its name in `api_names`, -1 without a name.
SELECT process, thread, correlation, start_ns, end_ns, graph_launch,
    (coalesce(list_position($names::VARCHAR[], api_name), 0) - 1)::INTEGER AS api
FROM launch

-- name: api_names
-- One row per API name. Order: name.
SELECT DISTINCT api_name FROM launch WHERE api_name IS NOT NULL ORDER BY api_name

-- name: kernel_names
-- One row per name. Order: name_id, which is the order of names.
SELECT name_id, name, bucket, operation, barrier_end FROM kernel_name ORDER BY name_id
