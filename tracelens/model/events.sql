-- Events: one row per execution on a device of a rank - a kernel, a copy, a memset, or a graph launch that was traced
-- as a whole. Order: rank, start_ns, end_ns descending (of two that start together the longer owns the time), kind,
-- stream, correlation, graph_node, name, shape: values of the event, never its place in the file.

-- name: candidates
-- One row per (export, process, device) with events: what may become a rank.
SELECT export, global_pid, device,
    coalesce(sum(row_count) FILTER (kind = 0), 0)::BIGINT AS kernel_count,
    coalesce(sum(total_ns) FILTER (kind IN (0, 3)), 0)::HUGEINT AS kernel_ns,
    coalesce(sum(row_count) FILTER (kind = 3), 0)::BIGINT AS graph_count,
    sum(row_count)::BIGINT AS event_count,
    min(first_ns) AS first_ns
FROM raw_place
GROUP BY ALL ORDER BY ALL;

-- name: places
-- One row per place with events: how many, and what it is: rank, or (rank NULL) process and device of none.
-- Order: rank, then those that are none by export, process, device.
SELECT r.rank, e.export, e.global_pid, e.device, p.process, sum(e.row_count)::BIGINT AS event_count
FROM raw_place e
LEFT JOIN rank_place r ON r.export = e.export AND r.global_pid = e.global_pid AND r.device = e.device
LEFT JOIN process p ON p.export = e.export AND p.global_pid = e.global_pid
GROUP BY ALL
ORDER BY r.rank NULLS LAST, e.export, p.process, e.device;

-- name: in_memory
-- A capture of few events lies in memory, and an event's number is that of its row.
CREATE OR REPLACE TABLE event_row (
    rank INTEGER, kind UTINYINT, start_ns BIGINT, end_ns BIGINT, stream BIGINT, correlation BIGINT, graph_node BIGINT,
    graph BIGINT, name_id INTEGER, shape BIGINT, bytes BIGINT, copy_kind INTEGER
);
CREATE OR REPLACE VIEW event AS SELECT rowid AS event_id, * FROM event_row;

-- name: in_files
-- A capture of many events lies in files (raw_event_file), which hold each event's number.
CREATE OR REPLACE VIEW event_row AS SELECT * EXCLUDE (event_id) FROM raw_event_file;
CREATE OR REPLACE VIEW event AS SELECT * FROM raw_event_file;

-- name: other_event
CREATE OR REPLACE TABLE other_event (
    export INTEGER, process INTEGER, device BIGINT, kind UTINYINT, start_ns BIGINT, end_ns BIGINT, stream BIGINT,
    correlation BIGINT, graph_node BIGINT, graph BIGINT, name_id INTEGER, shape BIGINT, bytes BIGINT, copy_kind INTEGER
);

-- name: excluded
-- Rows that became no event of a rank, by export, table kind and reason.
SELECT export, kind, reason, row_count FROM raw_unsound
UNION ALL
SELECT e.export, e.kind, coalesce(o.reason, 'not a rank') AS reason, sum(e.row_count)::BIGINT AS row_count
FROM raw_place e
LEFT JOIN rank_place p ON p.export = e.export AND p.global_pid = e.global_pid AND p.device = e.device
LEFT JOIN not_a_rank o ON o.export = e.export AND o.global_pid = e.global_pid AND o.device = e.device
WHERE p.rank IS NULL
GROUP BY ALL ORDER BY ALL;

-- name: graphs
-- Graphs traced as a whole: how many launches, and how long together.
SELECT coalesce(sum(row_count), 0)::BIGINT AS launch_count, coalesce(sum(total_ns), 0)::HUGEINT AS graph_ns
FROM raw_place JOIN rank_place USING (export, global_pid, device) WHERE kind = 3;

-- name: invisible_graphs
-- Graph launches whose work left no row, over the exports without any row of a graph.
SELECT coalesce(sum(graph_launch_count), 0)::BIGINT AS launch_count FROM raw_export
WHERE export NOT IN (
    SELECT export FROM raw_place JOIN rank_place USING (export, global_pid, device) WHERE node_count > 0 OR kind = 3
);
