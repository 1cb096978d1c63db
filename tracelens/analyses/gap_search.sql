-- The gaps of every rank, for other queries. Times are ns on the rank's own clock, in which a launch call stands where
-- the device would have seen it: device clocks of an export put together, host shift applied.

-- name: create
-- One row per gap of a rank, ascending by rank and start.
DROP TABLE IF EXISTS gap;
CREATE TABLE gap (
    rank INTEGER, step INTEGER, start_ns BIGINT, end_ns BIGINT,
    gap_ns BIGINT GENERATED ALWAYS AS (end_ns - start_ns) VIRTUAL,
    cause ENUM ('idle', 'step_boundary', 'in_graph', 'unknown', 'host_late', 'launch_latency', 'back_to_back', 'dependency'),
    before_event_id BIGINT, after_event_id BIGINT, launch_start_ns BIGINT, host_part_ns BIGINT, launch_part_ns BIGINT
);
COMMENT ON TABLE gap IS 'One row per gap: a maximal interval of a rank in which no event runs';
COMMENT ON COLUMN gap.rank IS 'Rank';
COMMENT ON COLUMN gap.step IS 'Step whose window holds the gap; null outside';
COMMENT ON COLUMN gap.start_ns IS 'The device ran dry, ns';
COMMENT ON COLUMN gap.end_ns IS 'The next event starts, ns';
COMMENT ON COLUMN gap.gap_ns IS 'Length, ns';
COMMENT ON COLUMN gap.cause IS 'Why: the first rule that holds';
COMMENT ON COLUMN gap.before_event_id IS 'Event that ended last';
COMMENT ON COLUMN gap.after_event_id IS 'Event that ended the gap';
COMMENT ON COLUMN gap.launch_start_ns IS 'Begin of the call that launched it, ns; null without a usable one';
COMMENT ON COLUMN gap.host_part_ns IS 'Dry until the call begins, ns; null where the cause has none';
COMMENT ON COLUMN gap.launch_part_ns IS 'Call begins until the event starts, ns; null where the cause has none';

-- name: append
INSERT INTO gap (rank, step, start_ns, end_ns, cause, before_event_id, after_event_id, launch_start_ns, host_part_ns, launch_part_ns)
SELECT rank, step, start_ns, end_ns,
    (['idle', 'step_boundary', 'in_graph', 'unknown', 'host_late', 'launch_latency', 'back_to_back', 'dependency'])[cause + 1],
    before_event_id, after_event_id, launch_start_ns, host_part_ns, launch_part_ns
FROM found_gap

-- name: opaque_ranks
-- One row per rank whose graph replays hide what ran inside: shown (a row per replay exists, so that busy time is known)
-- or not shown at all. Order: rank.
SELECT r.rank, coalesce(bool_or(g.rank IS NOT NULL), false) AS shown
FROM rank r
JOIN export x USING (export)
LEFT JOIN (SELECT DISTINCT rank FROM event WHERE kind = 3) g ON g.rank = r.rank
WHERE x.graph_trace = 'graph'
  AND (g.rank IS NOT NULL OR x.export NOT IN (SELECT o.export FROM event e JOIN rank o USING (rank) WHERE e.kind = 3))
GROUP BY r.rank ORDER BY r.rank
