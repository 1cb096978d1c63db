-- What the residual of a TP sweep needs of a capture. `scaling_window` holds the chosen steps: rank, step.

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
SELECT g.cause, sum(g.gap_ns)::BIGINT AS gap_ns, coalesce(sum(g.host_part_ns), 0)::BIGINT AS host_part_ns
FROM gap g JOIN scaling_window w ON w.rank = g.rank AND w.step = g.step
WHERE g.cause <> 'idle'
GROUP BY g.cause
ORDER BY g.cause;

-- name: group_size
-- One row: rank_count, the ranks of the largest communicator that all-reduces; null without one.
SELECT max(rank_count)::BIGINT AS rank_count
FROM (
    SELECT communicator, count(DISTINCT rank) AS rank_count
    FROM collective_member WHERE operation = 'all_reduce' AND communicator IS NOT NULL
    GROUP BY communicator
);

-- name: names
-- One row per kernel name. Order: name_id, without gaps.
SELECT name_id, bucket, operation IS NOT NULL AS collective FROM kernel_name ORDER BY name_id;

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
