-- Events: one row per execution on a device of a rank - a kernel, a copy, a memset, or a graph launch that was traced
-- as a whole. Order: rank, start_ns, end_ns descending (of two that start together the longer owns the time), kind,
-- stream, correlation, graph_node, name, shape: values of the event, never its place in the file.

-- name: sound
-- All raw events under one shape. defect: why a row cannot be used; NULL where it can.
-- Rows without a time or a device, with start = end = 0 (CUPTI had no timing), that end before they start, or that lie
-- outside the session by more than 60 s are not events. A device is an ordinal; numbers far beyond any machine's stand
-- for nothing.
CREATE OR REPLACE VIEW raw_event AS
WITH every AS (
    SELECT k.export, 0::UTINYINT AS kind, k.start_ns, k.end_ns, k.device, k.stream, k.correlation, coalesce(k.global_pid, 0) AS global_pid,
        coalesce(s.name_id, u.name_id) AS name_id, k.graph_node, k.graph, k.shape, NULL::BIGINT AS bytes, NULL::BIGINT AS copy_kind
    FROM raw_kernel k
    LEFT JOIN string_name s ON s.export = k.export AND s.string = k.string
    LEFT JOIN name_text u ON u.name = '[unknown kernel]' AND s.name_id IS NULL
    UNION ALL
    SELECT o.export, o.kind, o.start_ns, o.end_ns, coalesce(m.device, o.device), o.stream, o.correlation, coalesce(o.global_pid, 0),
        n.name_id, o.graph_node, o.graph, NULL, o.bytes, o.copy_kind
    FROM raw_other o
    LEFT JOIN copy_label c ON o.kind = 1 AND c.copy_kind = coalesce(o.copy_kind, 0)
    LEFT JOIN name_text n ON n.name = CASE o.kind
        WHEN 1 THEN coalesce(c.label, '[CUDA memcpy Unknown]')
        WHEN 2 THEN '[CUDA memset]'
        ELSE '[CUDA graph ' || coalesce(o.graph::VARCHAR, '?') || ']' END
    -- a graph whose first node runs on the host carries INT_MAX as its device: it belongs to its process's main one
    LEFT JOIN main_device m ON o.kind = 3 AND o.device = 2147483647 AND m.export = o.export AND m.global_pid = coalesce(o.global_pid, 0)
)
SELECT every.*,
    CASE
        WHEN start_ns IS NULL OR end_ns IS NULL OR device IS NULL OR device < 0 OR device > 1000000 THEN 'no time or device'
        WHEN start_ns = 0 AND end_ns = 0 THEN 'bad timestamp'
        WHEN end_ns < start_ns THEN 'bad timestamp'
        WHEN start_ns < x.low_ns OR end_ns > x.high_ns THEN 'bad timestamp'
    END AS defect
FROM every JOIN session_window x USING (export);

-- name: session_window
-- The times that an export can hold. Where the session's length is unknown, those within 52 days (2^52 ns) of the
-- middle one: a stamp of garbage must not stretch a span by years.
CREATE OR REPLACE TABLE session_window AS
SELECT x.export, greatest(-60000000000, coalesce(m.middle_ns::HUGEINT - 4503599627370496, -60000000000)) AS low_ns,
    least(coalesce(x.session_ns::HUGEINT, m.middle_ns::HUGEINT + 4503599627370496, 0) + 60000000000, 4611686018427387904) AS high_ns
FROM raw_export x
LEFT JOIN (
    SELECT export, quantile_disc(start_ns, 0.5) AS middle_ns
    FROM (SELECT export, start_ns FROM raw_kernel UNION ALL SELECT export, start_ns FROM raw_other WHERE kind = 3)
    WHERE export IN (SELECT export FROM raw_export WHERE session_ns IS NULL) AND start_ns <> 0
    GROUP BY export
) m USING (export);

-- name: main_device
-- The device on which a process spends most of its kernel time.
CREATE OR REPLACE TABLE main_device AS
SELECT export, coalesce(global_pid, 0) AS global_pid,
    coalesce(arg_max(device, (kernel_ns, -device)) FILTER (device BETWEEN 0 AND 1000000), 0) AS device
FROM (
    SELECT k.export, coalesce(global_pid, 0) AS global_pid, device, sum(end_ns - start_ns) AS kernel_ns
    FROM raw_kernel k JOIN session_window x USING (export)
    WHERE start_ns BETWEEN x.low_ns AND end_ns AND end_ns <= x.high_ns
    GROUP BY ALL
    UNION ALL SELECT export, coalesce(global_pid, 0), device, 0 FROM raw_other WHERE kind = 3
)
GROUP BY ALL;

-- name: candidates
-- One row per (export, process, device) with events: what may become a rank.
SELECT export, global_pid, device,
    count(*) FILTER (kind = 0) AS kernel_count,
    coalesce(sum(end_ns - start_ns) FILTER (kind IN (0, 3)), 0)::HUGEINT AS kernel_ns,
    count(*) FILTER (kind = 3) AS graph_count,
    count(*) AS event_count,
    min(start_ns) AS first_ns
FROM raw_event WHERE defect IS NULL
GROUP BY ALL ORDER BY ALL;

-- name: event
CREATE OR REPLACE TABLE event_row AS
SELECT r.rank, e.kind, e.start_ns, e.end_ns, e.stream, e.correlation, e.graph_node, e.graph, e.name_id, e.shape, e.bytes,
    try_cast(e.copy_kind AS INTEGER) AS copy_kind
FROM raw_event e
JOIN rank_place p ON p.export = e.export AND p.global_pid = e.global_pid AND p.device = e.device
JOIN rank r ON r.rank = p.rank
WHERE e.defect IS NULL
ORDER BY r.rank, e.start_ns, e.end_ns DESC, e.kind, e.stream NULLS FIRST, e.correlation NULLS FIRST,
    e.graph_node NULLS FIRST, e.name_id, e.shape NULLS FIRST, e.bytes NULLS FIRST, e.copy_kind NULLS FIRST, e.graph NULLS FIRST;
CREATE OR REPLACE VIEW event AS SELECT rowid AS event_id, * FROM event_row;

-- name: other_event
CREATE OR REPLACE TABLE other_event AS
SELECT e.export, p.process, e.device, e.kind, e.start_ns, e.end_ns, e.stream, e.correlation, e.graph_node, e.graph, e.name_id, e.shape,
    e.bytes, try_cast(e.copy_kind AS INTEGER) AS copy_kind
FROM raw_event e
LEFT JOIN process p ON p.export = e.export AND p.global_pid = e.global_pid
WHERE e.defect IS NULL AND (e.export, e.global_pid, e.device) NOT IN (SELECT (export, global_pid, device) FROM rank_place)
ORDER BY ALL;

-- name: excluded
-- Rows that became no event of a rank, by export, table kind and reason.
SELECT e.export, e.kind, coalesce(e.defect, o.reason, 'not a rank') AS reason, count(*) AS row_count
FROM raw_event e
LEFT JOIN rank_place p ON p.export = e.export AND p.global_pid = e.global_pid AND p.device = e.device
LEFT JOIN not_a_rank o ON o.export = e.export AND o.global_pid = e.global_pid AND o.device = e.device
WHERE e.defect IS NOT NULL OR p.rank IS NULL
GROUP BY ALL ORDER BY ALL;

-- name: graphs
-- Graphs traced as a whole: how many launches, and how long together.
SELECT count(*) AS launch_count, coalesce(sum(end_ns - start_ns), 0)::HUGEINT AS graph_ns FROM event_row WHERE kind = 3;

-- name: invisible_graphs
-- Graph launches whose work left no row, over the exports without any row of a graph.
SELECT coalesce(sum(graph_launch_count), 0)::BIGINT AS launch_count FROM raw_export
WHERE export NOT IN (
    SELECT r.export FROM event_row e JOIN rank r USING (rank) WHERE coalesce(e.graph_node, 0) <> 0 OR e.kind = 3
);
