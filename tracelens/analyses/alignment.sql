-- Alignment: what matching and clocks read from the model.

-- name: ranks
-- One row per rank asked for: its GPU clock, and what is recorded about the time 0 of its export. Order: rank.
SELECT r.rank, r.clock, r.export, x.hostname, x.start_utc_ns, x.system_clock_ns
FROM rank r JOIN export x USING (export)
WHERE r.rank IN (SELECT unnest($ranks::INTEGER[]))
ORDER BY r.rank;

-- name: families
-- One row per kernel name that belongs to a collective operation. Order: name_id.
SELECT name_id, operation, implementation, coalesce(synchronising, false) AS synchronising,
    coalesce(barrier_end, true) AS barrier_end
FROM kernel_name WHERE operation IS NOT NULL
ORDER BY name_id;

-- name: shapes
-- One row per event: its launch shape, -1 where none is recorded. Order: event_id, in which events are stored; the
-- timeline relies on it as well. Of the ranks asked for, none lies outside `first` to `last`.
SELECT coalesce(shape, -1) AS shape FROM event
WHERE rank BETWEEN $first AND $last AND list_contains($ranks::INTEGER[], rank);

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

-- name: comments
COMMENT ON VIEW clock IS 'One row per rank and stretch of its GPU clock: aligned = local - offset_ns - drift_ppm * 1e-6 * (local - t0_ns)';
COMMENT ON COLUMN clock."set" IS 'Ranks that share a common clock, that of the lowest';
COMMENT ON COLUMN clock.rank IS 'Rank';
COMMENT ON COLUMN clock.method IS 'ends: fitted to the ends of collectives; trust: as recorded';
COMMENT ON COLUMN clock.valid_from_ns IS 'Own time from which it holds, ns; a stepped clock has several rows';
COMMENT ON COLUMN clock.offset_ns IS 'Own clock less the reference''s at t0_ns, ns';
COMMENT ON COLUMN clock.drift_ppm IS 'How much faster the own clock runs, parts per million';
COMMENT ON COLUMN clock.t0_ns IS 'Own time at which the offset holds, ns';
COMMENT ON COLUMN clock.residual_ns IS '95th percentile of the end deviations after the fit, ns; null under trust';
COMMENT ON COLUMN clock.asymmetry_ns IS 'How far kinds of operation disagree about who leaves late, ns; null under trust or with one kind';
COMMENT ON COLUMN clock.matched_count IS 'Instances that the clock rests on';
COMMENT ON VIEW collective_member IS 'One row per collective operation of one rank, matched across ranks or not';
COMMENT ON COLUMN collective_member.communicator IS 'Number of the communicator; null where its ranks could not be matched';
COMMENT ON COLUMN collective_member.instance IS 'Number of the operation, equal on all its members; null where unmatched';
COMMENT ON COLUMN collective_member.position IS 'Place of the instance in its communicator, from 0';
COMMENT ON COLUMN collective_member.rank IS 'Rank';
COMMENT ON COLUMN collective_member.operation IS 'all_reduce, all_gather, reduce_scatter, all_to_all, ...';
COMMENT ON COLUMN collective_member.implementation IS 'How it is implemented, as in the collective table';
COMMENT ON COLUMN collective_member.name_id IS 'Name of its first kernel';
COMMENT ON COLUMN collective_member.shape IS 'Launch shape of its first kernel: equal shapes have equal numbers';
COMMENT ON COLUMN collective_member.stream IS 'Stream';
COMMENT ON COLUMN collective_member.start_ns IS 'Start of its first kernel on the rank''s own clock, ns';
COMMENT ON COLUMN collective_member.end_ns IS 'End of its last kernel on the rank''s own clock, ns';
COMMENT ON COLUMN collective_member.arrival_ns IS 'Start on the aligned clock, ns';
COMMENT ON COLUMN collective_member.aligned_end_ns IS 'End on the aligned clock, ns';
COMMENT ON COLUMN collective_member.wait_ns IS 'Last arrival of the instance less the own, ns; null where not accepted';
COMMENT ON COLUMN collective_member.transfer_ns IS 'Of the instance: median over members of end less last arrival, ns';
COMMENT ON COLUMN collective_member.transfer_min_ns IS 'Of the instance: earliest end less last arrival, ns';
COMMENT ON COLUMN collective_member.completion_ns IS 'Of the instance: last end less last arrival, ns';
COMMENT ON COLUMN collective_member.skew_ns IS 'Of the instance: last less first arrival, ns';
COMMENT ON COLUMN collective_member.is_last IS 'Whether this rank arrived last by more than the clocks resolve; null where nobody did';
COMMENT ON COLUMN collective_member.accepted IS 'Whether the instance is whole and its ends agree, so that it has waits';
COMMENT ON COLUMN collective_member.set_aside_reason IS 'Why it has none; null where accepted';
COMMENT ON COLUMN collective_member.event_id IS 'Its first kernel';
COMMENT ON COLUMN collective_member.last_event_id IS 'Its last kernel';
COMMENT ON COLUMN collective_member.message_bytes IS 'Bytes of the message, from NCCL''s payload; null where it is not recorded';
