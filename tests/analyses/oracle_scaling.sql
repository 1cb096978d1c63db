-- What is asked of the operations and gaps of chosen steps, in terms of the tables that DuckDB holds of them: the oracle
-- of `scaling_trace`. `scaling_window` holds the chosen steps: rank, step.

-- name: collectives
-- One row per operation, implementation and message size in the chosen steps, summed over ranks and steps.
-- duration_ns, wait_ns: ns; matched_count: calls whose wait is known; transfer_p50_ns: median over instances.
-- Order: operation, implementation, message size.
SELECT m.operation, m.implementation, m.message_bytes,
    count(*)::BIGINT AS call_count,
    count(m.wait_ns)::BIGINT AS matched_count,
    sum(m.end_ns - m.start_ns)::BIGINT AS duration_ns,
    coalesce(sum(m.wait_ns), 0)::BIGINT AS wait_ns,
    median(m.transfer_ns) FILTER (WHERE m.accepted) AS transfer_p50_ns
FROM collective_member m
JOIN step_member s USING (event_id)
JOIN scaling_window w ON w.rank = m.rank AND w.step = s.step
GROUP BY ALL
ORDER BY m.operation, m.implementation, m.message_bytes NULLS LAST;

-- name: gaps
-- One row per cause in the chosen steps, summed over ranks and steps, ns. Order: cause.
SELECT g.cause, sum(g.gap_ns)::BIGINT AS gap_ns
FROM gap g JOIN scaling_window w ON w.rank = g.rank AND w.step = g.step
WHERE g.cause <> 'idle'
GROUP BY g.cause
ORDER BY g.cause;

-- name: late_host
-- One row. late_host_ns: host parts of the gaps in the chosen steps that lie on a rank's way to the next matched instance
-- in which it arrives last, once for each member (they all wait for it); those before no instance count once. ns, summed
-- over ranks and steps. accepted_count: matched instances of the capture.
WITH arrival AS (
    SELECT rank, communicator, instance, start_ns, wait_ns = 0 AS last,
        count(*) OVER (PARTITION BY communicator, instance) AS member_count
    FROM collective_member WHERE accepted
),
way AS (
    SELECT a.communicator, a.instance, g.rank, a.last, a.member_count, sum(g.host_part_ns)::BIGINT AS host_ns
    FROM (
        SELECT gap.rank, gap.end_ns, gap.host_part_ns
        FROM gap JOIN scaling_window w ON w.rank = gap.rank AND w.step = gap.step
        WHERE gap.cause <> 'idle' AND gap.host_part_ns > 0
    ) g
    ASOF LEFT JOIN arrival a ON a.rank = g.rank AND a.start_ns >= g.end_ns
    GROUP BY ALL
),
-- Several arrive last at once: one of them holds the others up.
held AS (
    SELECT max(CASE WHEN instance IS NULL THEN host_ns WHEN last THEN host_ns * member_count ELSE 0 END) AS host_ns
    FROM way GROUP BY communicator, instance, CASE WHEN instance IS NULL THEN rank END
)
SELECT coalesce((SELECT sum(host_ns) FROM held), 0)::BIGINT AS late_host_ns,
    (SELECT count(*) FROM arrival)::BIGINT AS accepted_count;

-- name: group_size
-- One row: rank_count, the ranks of the largest communicator that all-reduces; null without one.
SELECT max(rank_count)::BIGINT AS rank_count
FROM (
    SELECT communicator, count(DISTINCT rank) AS rank_count
    FROM collective_member WHERE operation = 'all_reduce' AND communicator IS NOT NULL
    GROUP BY communicator
);

-- name: all_reduces
-- One row per implementation, payload size, tokens of the step and whether it was replayed by a graph: the calls of
-- the lowest rank that has them, in all steps. Order: payload, tokens, implementation, in_graph.
WITH lowest AS (SELECT min(rank) AS rank FROM collective_member WHERE operation = 'all_reduce')
SELECT m.implementation, m.message_bytes, coalesce(p.tokens, p.requests)::BIGINT AS tokens,
    coalesce(e.graph_node, 0) <> 0 AND p.phase = 'decode' AS in_graph,
    count(*)::BIGINT AS call_count
FROM collective_member m
JOIN lowest l ON l.rank = m.rank
JOIN event e USING (event_id)
LEFT JOIN step_member s USING (event_id)
LEFT JOIN step p ON p.rank = m.rank AND p.step = s.step
WHERE m.operation = 'all_reduce'
GROUP BY ALL
ORDER BY m.message_bytes NULLS LAST, tokens NULLS LAST, m.implementation, in_graph;
