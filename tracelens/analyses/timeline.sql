-- The columns of the model tables that step and gap analyses walk along.
-- Times are ns in each export's own time. The events come in the order of their ids (rank, start); the caller checks
-- that, because sorting ten million sorted rows is not free. Of the ranks asked for, none lies outside `first` to `last`,
-- which tells DuckDB which parts of the files to read.

-- name: ranks
-- One row per rank. Order: rank.
SELECT rank, export, process, device, clock FROM rank WHERE list_contains($ranks::INTEGER[], rank) ORDER BY rank

-- name: event_counts
-- One row per rank with events: rank, event_count. Order: rank.
SELECT rank, count(*) AS event_count FROM event WHERE list_contains($ranks::INTEGER[], rank) GROUP BY rank ORDER BY rank

-- name: events
-- One row per event: the columns that every walk needs. in_graph: 1 for a node of a replayed graph, else 0.
-- graph: the graph it ran in; -1 outside graphs and where the export has no graph ids.
-- copy_kind: 1 for a copy from host to device, 2 from device to host, inside or outside graphs, else 0.
SELECT event_id, rank, end_ns - start_ns AS length_ns, start_ns, kind::UTINYINT AS kind, (coalesce(graph_node, 0) <> 0)::UTINYINT AS in_graph,
    name_id, coalesce(graph, -1) AS graph, coalesce(stream, -1) AS stream,
    CASE WHEN kind = 1 AND copy_kind IN (1, 2) THEN copy_kind ELSE 0 END::UTINYINT AS copy_kind
FROM event WHERE rank BETWEEN $first AND $last AND list_contains($ranks::INTEGER[], rank)

-- name: correlations
-- One row per event: the id it shares with its launch call; -1 where the export has none.
SELECT coalesce(correlation, -1) AS correlation FROM event WHERE rank BETWEEN $first AND $last AND list_contains($ranks::INTEGER[], rank)

-- name: graph_nodes
-- One row per event: the graph node it ran as; 0 outside graphs.
SELECT coalesce(graph_node, 0) AS graph_node FROM event WHERE rank BETWEEN $first AND $last AND list_contains($ranks::INTEGER[], rank)

-- name: launch_shapes
-- One row per event: its launch shape; 0 for copies.
SELECT coalesce(shape, 0) AS shape FROM event WHERE rank BETWEEN $first AND $last AND list_contains($ranks::INTEGER[], rank)

-- name: launch_counts
-- One row per process that launched events: process, launch_count, last_id (the largest correlation). Order: process.
SELECT process, count(*) AS launch_count, max(correlation) AS last_id FROM launch WHERE list_contains($processes::INTEGER[], process)
GROUP BY process ORDER BY process

-- name: launches
-- One row per API call of these processes that launched an event, with the place of its name in `api_names`, -1
-- without a name; wait_end_ns: the lowest number without a wait. Order: that of the table, in which the calls of a
-- process follow each other by begin.
SELECT process, coalesce(thread, -1) AS thread, correlation, start_ns, end_ns,
    (coalesce(list_position($names::VARCHAR[], api_name), 0) - 1)::INTEGER AS api, graph_launch::UTINYINT AS graph_launch,
    coalesce(wait_end_ns, -9223372036854775808) AS wait_end_ns
FROM launch WHERE process BETWEEN $first AND $last AND list_contains($processes::INTEGER[], process)

-- name: api_names
-- One row per API name. Order: name.
SELECT DISTINCT api_name FROM launch WHERE api_name IS NOT NULL ORDER BY api_name

-- name: kernel_names
-- One row per name. Order: name_id, which is the order of names.
SELECT name_id, name, bucket, operation, barrier_end FROM kernel_name ORDER BY name_id
