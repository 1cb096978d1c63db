-- The tables that step detection leaves in the database for other queries.

-- name: step
-- One row per rank and step. Order: set, step, rank. Times are ns on the rank's own clock.
CREATE OR REPLACE TABLE step AS SELECT * FROM found_step ORDER BY "set", step, rank;
COMMENT ON TABLE step IS 'One row per rank and step: a forward pass, from the edge on its main stream to the next';
COMMENT ON COLUMN step."set" IS 'Set of ranks that share collectives';
COMMENT ON COLUMN step.step IS 'Number within the set, from 0; equal on all its ranks';
COMMENT ON COLUMN step.rank IS 'Rank';
COMMENT ON COLUMN step.phase IS 'prefill, decode, mixed or other';
COMMENT ON COLUMN step.rung IS 'bs=N from the marker, else a hash of collective and GEMM launch shapes';
COMMENT ON COLUMN step.graph_id IS 'Graph that ran most of the step; null where none is recorded';
COMMENT ON COLUMN step.complete IS 'Whether this rank shows the whole step';
COMMENT ON COLUMN step.complete_on_all IS 'Whether every rank of the set does';
COMMENT ON COLUMN step.warm_up IS 'Whether the step belongs to the slow beginning, or to --skip';
COMMENT ON COLUMN step.edge_ns IS 'Start of the first event on the main stream, ns';
COMMENT ON COLUMN step.window_end_ns IS 'Next edge, or where idle between requests or the capture ends the step, ns';
COMMENT ON COLUMN step.step_ns IS 'Length of the window, ns';
COMMENT ON COLUMN step.idle_after_ns IS 'Idle between requests that follows, ns; 0 without';
COMMENT ON COLUMN step.kernel_count IS 'Kernels that belong to the step';
COMMENT ON COLUMN step.requests IS 'Requests of the batch, where the marker tells';
COMMENT ON COLUMN step.tokens IS 'Tokens of the batch, where the marker tells';

-- name: step_member
-- One row per event that belongs to a step: event_id, step (number within the set of the event's rank).
CREATE OR REPLACE TABLE step_member AS SELECT * FROM found_member;
COMMENT ON TABLE step_member IS 'One row per event that belongs to a step';
COMMENT ON COLUMN step_member.event_id IS 'The event';
COMMENT ON COLUMN step_member.step IS 'Number of its step within the set of its rank';
