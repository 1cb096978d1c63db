-- Alignment: what matching and clocks read from the model.

-- name: ranks
-- One row per rank asked for: its GPU clock, and what is recorded about the time 0 of its export. Order: rank.
-- first_ns: start of its first event, ns of its own time.
SELECT r.rank, r.clock, r.export, x.hostname, x.start_utc_ns, x.system_clock_ns,
    (SELECT min(start_ns) FROM event e WHERE e.rank = r.rank) AS first_ns
FROM rank r JOIN export x USING (export)
WHERE r.rank IN (SELECT unnest($ranks::INTEGER[]))
ORDER BY r.rank;

-- name: families
-- One row per kernel name that belongs to a collective operation. Order: name_id.
SELECT name_id, operation, implementation, coalesce(synchronising, false) AS synchronising,
    coalesce(barrier_end, true) AS barrier_end
FROM kernel_name WHERE operation IS NOT NULL
ORDER BY name_id;

-- name: kernels
-- One row per kernel of a collective operation. Times in ns of the rank's own time. Order: event_id.
SELECT e.event_id, e.rank, e.name_id, e.stream, e.start_ns, e.end_ns, coalesce(e.shape, -1) AS shape,
    coalesce(e.graph_node, 0) <> 0 AS in_graph
FROM event e JOIN kernel_name n USING (name_id)
WHERE e.kind = 0 AND n.operation IS NOT NULL AND e.rank IN (SELECT unnest($ranks::INTEGER[]))
ORDER BY e.event_id;

-- name: followers
-- One row per kernel that finishes an operation begun by the kernel before it on its stream. previous_id: that
-- kernel; null for the first of a stream. Order: event_id.
WITH shared AS (
    SELECT DISTINCT e.rank, e.stream
    FROM event e JOIN kernel_name n USING (name_id)
    WHERE e.kind = 0 AND n.operation IS NOT NULL AND NOT coalesce(n.barrier_end, true)
), sequence AS (
    SELECT e.event_id, e.name_id, lag(e.event_id) OVER (PARTITION BY e.rank, e.stream ORDER BY e.event_id) AS previous_id
    FROM event e JOIN shared s ON s.rank = e.rank AND s.stream = e.stream
    WHERE e.kind = 0
)
SELECT q.event_id, q.previous_id
FROM sequence q JOIN kernel_name n USING (name_id)
WHERE n.operation IS NOT NULL AND NOT coalesce(n.barrier_end, true)
ORDER BY q.event_id;

-- name: payload_count
SELECT count(*) AS row_count FROM nvtx WHERE comm_id IS NOT NULL AND kind = 'range';

-- name: payloads
-- One row per collective kernel launched inside a range that carries NCCL's payload: the communicator and the message
-- size. A call inside nested ranges takes the innermost. Order: event_id.
WITH call AS (
    SELECT e.event_id, l.process, l.thread, l.start_ns
    FROM event e
    JOIN kernel_name n USING (name_id)
    JOIN rank r USING (rank)
    JOIN launch l ON l.process = r.process AND l.correlation = e.correlation
    WHERE e.kind = 0 AND n.operation IS NOT NULL AND coalesce(e.graph_node, 0) = 0
), payload AS (
    SELECT process, thread, start_ns, end_ns, comm_id, message_bytes
    FROM nvtx WHERE comm_id IS NOT NULL AND kind = 'range'
)
SELECT c.event_id, p.comm_id, p.message_bytes
FROM call c ASOF JOIN payload p ON c.process = p.process AND c.thread = p.thread AND c.start_ns >= p.start_ns
WHERE c.start_ns < p.end_ns
ORDER BY c.event_id;
