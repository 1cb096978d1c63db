-- Waiting by place and by rank, for the report's heat-map and distributions.

-- name: arrivals
-- One row per matched collective operation of a rank outside warm-up: communicator, rank, how long after the first
-- member it arrived (ns), its step (null outside all), its position in its communicator's sequence, and what it is.
-- Order: communicator, position, rank.
SELECT m.communicator, m.rank, m.skew_ns - m.wait_ns AS after_first_ns, m.wait_ns, s.step, m.position, m.operation
FROM collective_member m
LEFT JOIN step_member s ON s.event_id = m.event_id
WHERE m.wait_ns IS NOT NULL
ORDER BY m.communicator, m.position, m.rank;
